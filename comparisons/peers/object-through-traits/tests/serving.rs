//! The program on each runtime: it answers with objects of any length, whole and in chunks, also to a client that reads
//! late.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, process, thread};

const RUNTIMES: [&str; 5] = ["tokio", "tokio-uring", "compio", "monoio", "glommio"];

/// The name and the length of each object. The last one is larger than the buffers of both sockets.
const OBJECTS: [(&str, usize); 3] = [("empty", 0), ("small", 1024), ("large", 20_000_000)];

/// How long anything may take. The machine may be busy with other work.
const LIMIT: Duration = Duration::from_secs(60);

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// A folder with the objects. Dropping this removes it.
struct Folder(PathBuf);

impl Folder {
    fn create(name: &str) -> Self {
        let folder =
            env::temp_dir().join(format!("object-through-traits-{name}-{}", process::id()));
        fs::create_dir(&folder).unwrap();
        for (name, len) in OBJECTS {
            fs::write(folder.join(name), content(len)).unwrap();
        }
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running server. Dropping this ends it.
struct Server {
    process: Child,
    addr: SocketAddr,
}

impl Server {
    fn start(objects: &Path, options: &str) -> Self {
        let mut server = Command::new(env!("CARGO_BIN_EXE_object-through-traits"));
        server.arg("127.0.0.1:0").arg("--objects").arg(objects).args(options.split_whitespace());
        let mut process = server.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let addr = line.strip_prefix("listening object ").map(|addr| addr.trim().parse());
        Self { process, addr: addr.unwrap().unwrap() }
    }

    /// Asks for each object, then for one that is not there. Reads late, and returns all answers.
    fn ask_for_all(&self) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.addr).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let names = OBJECTS.map(|(name, _)| name);
        for name in names {
            write!(stream, "GET /object/{name} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        }
        let last = "GET /object/none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        stream.write_all(last.as_bytes()).unwrap();
        thread::sleep(Duration::from_millis(200)); // so that the server has to wait
        let mut answers = Vec::new();
        stream.read_to_end(&mut answers).unwrap();
        answers
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The head of the first answer, and what follows it.
fn split_head(answers: &[u8]) -> (&str, &[u8]) {
    let end = answers.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
    (str::from_utf8(&answers[..end]).unwrap(), &answers[end..])
}

/// The content of a chunked body, the length of its longest chunk, and what follows it.
fn split_chunked(mut rest: &[u8]) -> (Vec<u8>, usize, &[u8]) {
    let (mut content, mut longest) = (Vec::new(), 0);
    loop {
        let line_end = rest.windows(2).position(|end| end == b"\r\n").unwrap();
        let len = str::from_utf8(&rest[..line_end]).unwrap();
        let len = usize::from_str_radix(len, 16).unwrap();
        let chunk = &rest[line_end + 2..];
        content.extend_from_slice(&chunk[..len]);
        longest = longest.max(len);
        rest = chunk[len..].strip_prefix(b"\r\n").unwrap();
        if len == 0 {
            return (content, longest, rest);
        }
    }
}

fn assert_is_not_found(answers: &[u8]) {
    let (head, rest) = split_head(answers);
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    assert!(rest.is_empty());
}

#[test]
fn each_runtime_answers_with_whole_objects() {
    let folder = Folder::create("whole");
    for runtime in RUNTIMES {
        for more in ["--ring default", "--ring tuned", "--ring tuned --http owned-io"] {
            let options = format!("--runtime {runtime} {more}");
            let answers = Server::start(&folder.0, &options).ask_for_all();
            let mut rest = &answers[..];
            for (name, len) in OBJECTS {
                let head;
                (head, rest) = split_head(rest);
                assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{options}, {name}: {head}");
                let head = head.to_ascii_lowercase();
                assert!(head.contains(&format!("content-length: {len}\r\n")), "{head}");
                let body;
                (body, rest) = rest.split_at(len);
                assert!(body == content(len), "{options}: another content of {name}");
            }
            assert_is_not_found(rest);
        }
    }
}

#[test]
fn each_runtime_answers_in_chunks() {
    let folder = Folder::create("chunks");
    let both = |runtime| ["hyper", "owned-io"].map(|http| (runtime, http));
    for (runtime, http) in RUNTIMES.into_iter().flat_map(both) {
        let options = format!("--runtime {runtime} --http {http} --chunk 16384");
        let answers = Server::start(&folder.0, &options).ask_for_all();
        let mut rest = &answers[..];
        for (name, len) in OBJECTS {
            let head;
            (head, rest) = split_head(rest);
            let head = head.to_ascii_lowercase();
            if len == 0 && http == "hyper" {
                assert!(head.contains("content-length: 0\r\n"), "{head}"); // hyper knows that it is empty
                continue;
            }
            assert!(head.contains("transfer-encoding: chunked\r\n"), "{options}, {name}: {head}");
            let (body, longest);
            (body, longest, rest) = split_chunked(rest);
            assert_eq!(longest, len.min(16_384));
            assert!(body == content(len), "{options}: another content of {name}");
        }
        assert_is_not_found(rest);
    }
}
