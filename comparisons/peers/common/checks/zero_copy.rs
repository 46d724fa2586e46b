//! What is checked of each server of objects that has `--zero-copy`, from outside.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use std::{env, fs, process, thread};

/// How long a line, a read or a write may take. The machine may be busy with other work.
const LIMIT: Duration = Duration::from_secs(60);

/// The bytes of the object: many pages, and few enough of them to be locked by a process without privileges.
const OBJECT_BYTES: usize = 300_007;

/// How many requests are on the way at once.
const REQUESTS: usize = 3;

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The answers are right, and the server prints what the kernel said of each send: over loopback, that it copied.
pub(crate) fn check(program: &str, name: &str) {
    let object: Vec<u8> = (0..OBJECT_BYTES).map(|at| (at % 251) as u8).collect();
    let folder = env::temp_dir().join(format!("{name}-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("a"), &object).unwrap();
    let mut server = Command::new(program);
    server.args(["127.0.0.1:0", "--zero-copy", "--objects"]).arg(&folder);
    let server = server.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut server = Ended(server);
    let line = first_line(server.0.stdout.take().unwrap());
    fs::remove_dir_all(&folder).unwrap(); // it has read them
    let addr = line.strip_prefix("listening object ").unwrap().trim();
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    for _ in 0..2 {
        let requests = "GET /object/a HTTP/1.1\r\nHost: a\r\n\r\n".repeat(REQUESTS);
        stream.write_all(requests.as_bytes()).unwrap();
        for _ in 0..REQUESTS {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.extend(byte);
            }
            let mut body = vec![0; OBJECT_BYTES];
            stream.read_exact(&mut body).unwrap();
            assert!(body == object, "another body after {}", head.escape_ascii());
        }
    }
    drop(stream);
    let line = first_line(server.0.stderr.take().unwrap());
    let figures = line.trim().strip_prefix(&format!("{name}: ")).unwrap();
    let (sends, copied) = figures.split_once(" zero-copy sends, ").unwrap();
    assert!(sends.parse::<u64>().unwrap() >= 2, "{line}");
    assert_eq!(copied, format!("{sends} of them copied"));
}

/// The first line of what the server prints. A read of a pipe has no time limit, so a thread reads it. If no line comes
/// in time, the server is killed, and that ends the thread.
fn first_line(output: impl Read + Send + 'static) -> String {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(output).read_line(&mut line);
        let _ = sender.send(read.map(|_| line)); // an error: nobody waits for it any more
    });
    receiver.recv_timeout(LIMIT).expect("the server prints a line in time").unwrap()
}
