//! The program, on each runtime that is compiled in: its services, its limits, its end, and what it
//! says of bad input.

#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Those that this test was built with.
const RUNTIMES: &[&str] = &[
    #[cfg(feature = "tokio")]
    "tokio",
    #[cfg(feature = "tokio-uring")]
    "tokio-uring",
    #[cfg(feature = "compio")]
    "compio",
    #[cfg(feature = "monoio")]
    "monoio",
    #[cfg(feature = "glommio")]
    "glommio",
];

const PATIENCE: Duration = Duration::from_secs(20);

struct Server {
    process: Child,
    addrs: Vec<SocketAddr>,
}

impl Server {
    fn start(runtime: &str, options: &[&str]) -> Self {
        Self::start_with(&[&["--runtime", runtime, "--workers", "2"], options].concat())
    }

    fn start_with(options: &[&str]) -> Self {
        let mut process =
            program(options).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let services =
            options.iter().filter(|option| ["--echo", "--sink", "--source"].contains(option));
        let addrs = services.map(|option| {
            let line = lines.next().unwrap().unwrap();
            let said = line.strip_prefix("listening ").unwrap();
            let (service, addr) = said.split_once(' ').unwrap();
            assert_eq!(service, &option[2..]);
            addr.parse().unwrap()
        });
        let addrs = addrs.collect();
        Self { process, addrs }
    }

    fn connect(&self, service: usize) -> TcpStream {
        let stream = TcpStream::connect(self.addrs[service]).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// The exit code, once it has ended by itself.
    fn wait(mut self) -> i32 {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the server did not end");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_owned-io-server"));
    command.args(args);
    command
}

fn echoed(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    let mut answer = vec![0; bytes.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, bytes);
}

fn announce(stream: &mut TcpStream, len: u32, bytes: &[u8]) {
    stream.write_all(&len.to_le_bytes()).unwrap();
    stream.write_all(bytes).unwrap();
}

/// Closed by the server, cleanly or by a reset, with nothing more to read.
fn assert_closed(stream: &mut TcpStream) {
    match stream.read(&mut [0; 16]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("expected the end, got {other:?}"),
    }
}

#[test]
fn services_answer() {
    for runtime in RUNTIMES {
        let all = ["--echo", "127.0.0.1:0", "--sink", "127.0.0.1:0", "--source", "127.0.0.1:0"];
        let server = Server::start(runtime, &all);
        for round in 0..8 {
            echoed(&mut server.connect(0), &vec![round; 10_000]);
        }

        let mut sink = server.connect(1);
        for len in [0, 1, 5, 70_000, 2_000_000_u32] {
            announce(&mut sink, len, &vec![7; len as usize]);
            let mut answer = [0; 8];
            sink.read_exact(&mut answer).unwrap();
            assert_eq!(u64::from_le_bytes(answer), len.into());
        }

        let mut source = server.connect(2);
        for (messages, bytes, batch) in [(10_u32, 1_000_u32, 3_u32), (2, 600_000, 2), (0, 5, 1)] {
            for number in [messages, bytes, batch] {
                source.write_all(&number.to_le_bytes()).unwrap();
            }
            for n in 0..messages {
                let mut message = vec![0; 4 + bytes as usize];
                source.read_exact(&mut message).unwrap();
                assert_eq!(message[..4], bytes.to_le_bytes());
                let expected = |i: usize| (n as usize + i) as u8;
                assert!(message[4..].iter().enumerate().all(|(i, byte)| *byte == expected(i)));
            }
        }
    }
}

#[test]
fn bad_clients_lose_their_connection_and_nobody_elses() {
    for runtime in RUNTIMES {
        let options = ["--echo", "127.0.0.1:0", "--sink", "127.0.0.1:0", "--source", "127.0.0.1:0"];
        let limits = ["--message-seconds-max", "1", "--announced-bytes-max", "1000000"];
        let server = Server::start(runtime, &[&options[..], &limits[..]].concat());
        let mut neighbour = server.connect(0);
        echoed(&mut neighbour, b"before");

        let mut too_long = server.connect(1);
        announce(&mut too_long, u32::MAX, b"");
        assert_closed(&mut too_long);

        // More is announced than the worker commits to, however little of it is sent.
        let mut beyond = server.connect(1);
        announce(&mut beyond, 1_000_001, b"x");
        assert_closed(&mut beyond);

        let mut half = server.connect(1);
        announce(&mut half, 100, b"half");
        let started = Instant::now();
        assert_closed(&mut half);
        assert!(started.elapsed() >= Duration::from_millis(900));

        let mut nonsense = server.connect(2);
        nonsense.write_all(&[0; 12]).unwrap(); // batches of none
        assert_closed(&mut nonsense);

        echoed(&mut neighbour, b"after");
    }
}

#[test]
fn connections_over_the_limit_wait_until_there_is_a_place() {
    for runtime in RUNTIMES {
        // One worker, so that it is known which one has the places.
        let one_worker = ["--runtime", runtime, "--workers", "1", "--connections-max", "2"];
        let server = Server::start_with(&[&one_worker[..], &["--echo", "127.0.0.1:0"]].concat());
        let (mut first, mut second, mut third) =
            (server.connect(0), server.connect(0), server.connect(0));
        echoed(&mut first, b"1");
        echoed(&mut second, b"2");
        third.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        third.write_all(b"3").unwrap();
        assert!(third.read(&mut [0]).is_err(), "served over the limit");
        drop(first);
        third.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = [0];
        third.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"3");
    }
}

#[test]
fn a_signal_drains_and_ends_cleanly() {
    for runtime in RUNTIMES {
        for signal in ["-TERM", "-INT"] {
            let server = Server::start(runtime, &["--echo", "127.0.0.1:0"]);
            let mut client = server.connect(0);
            echoed(&mut client, b"before");
            server.signal(signal);
            assert_closed(&mut client);
            assert_eq!(server.wait(), 0, "{runtime} {signal}");
        }
    }
}

#[test]
fn what_cannot_start_says_why_in_one_sentence() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let file = std::env::temp_dir().join(format!("owned-io-server-{}.toml", std::process::id()));
    std::fs::write(&file, "echo = \"127.0.0.1:0\"\nworker = 3\n").unwrap();
    let file = file.to_str().unwrap();
    let runtime = RUNTIMES[0];
    for (args, sentence) in [
        (vec!["--echo", "127.0.0.1:0", "--runtime", "fusion"], "there is no runtime fusion"),
        (vec!["--runtime", runtime], "nothing to serve"),
        (vec!["--echo", "127.0.0.1:0", "--frob"], "unexpected argument '--frob'"),
        (vec!["--echo", "nowhere"], "invalid value 'nowhere'"),
        (vec!["--config", file], "line 2: unknown field `worker`"),
        (vec!["--config", "/no/such/file"], "cannot read /no/such/file"),
        (vec!["--runtime", runtime, "--echo", &taken], "another socket has it"),
        (vec!["--runtime", runtime, "--echo", "192.0.2.1:0"], "cannot listen on 192.0.2.1:0"),
    ] {
        let Output { status, stderr, .. } = program(&args).output().unwrap();
        let stderr = String::from_utf8(stderr).unwrap();
        assert!(!status.success(), "{args:?}");
        assert!(stderr.contains(sentence), "{args:?}: {stderr}");
        assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    }
    std::fs::remove_file(file).unwrap();
}
