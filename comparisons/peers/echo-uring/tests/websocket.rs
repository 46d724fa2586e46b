//! The program with `--websocket`, from outside.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use owned_io_websocket::engine::Engine;
use owned_io_websocket::frame::{Header, Opcode};
use owned_io_websocket::handshake::{Key, Offer, Response};
use owned_io_websocket::{Config, Fragment, MessageKind};

/// How long anything may take. The machine may be busy with other work.
const LIMIT: Duration = Duration::from_secs(60);

/// A running server. Dropping this ends it.
struct Server {
    process: Child,
    addr: SocketAddr,
}

impl Server {
    fn start() -> Self {
        let mut server = Command::new(env!("CARGO_BIN_EXE_echo-uring"));
        server.args(["127.0.0.1:0", "--websocket"]);
        let mut process = server.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let addr = line.strip_prefix("listening echo ").map(|addr| addr.trim().parse());
        Self { process, addr: addr.unwrap().unwrap() }
    }

    fn connect(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.addr).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        let (mut request, key) = (Vec::new(), Key::new([7; 16]));
        let offer = Offer { host: "localhost", path: "/echo", ..Offer::default() };
        offer.encode(&key, &mut request).unwrap();
        stream.write_all(&request).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        let (response, _) = Response::decode(&head, 8192).unwrap().unwrap();
        response.check(&offer, &key).unwrap();
        stream
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// `count` messages of `len` bytes: as a client sends them, and the echoes of a server.
fn messages(count: usize, len: usize) -> (Vec<u8>, Vec<u8>) {
    let mut client = Engine::client(unlimited(), Instant::now(), |key| key.fill(9));
    let (mut sent, mut echoed) = (Vec::new(), Vec::new());
    for number in 0..count {
        let payload: Vec<u8> = (0..len).map(|at| (at ^ number) as u8).collect();
        let fragment = Fragment::Whole(MessageKind::Binary);
        client.sender.encode(&client.control, fragment, &payload, &mut sent).unwrap();
        let header = Header {
            fin: true,
            compressed: false,
            opcode: Opcode::Binary,
            key: None,
            payload_bytes: len as u64,
        };
        echoed.extend_from_slice(&header.encode());
        echoed.extend_from_slice(&payload);
    }
    (sent, echoed)
}

fn unlimited() -> Config {
    let mut config = Config::default();
    config.engine.queue_bytes_max = usize::MAX;
    config
}

/// The client sends more than the sockets and the server's backlog hold, and reads late: what the socket did not take
/// is sent by the ring, and receiving pauses and continues.
#[test]
fn a_client_that_reads_late_gets_every_echo() {
    let server = Server::start();
    for (count, len) in [(1, 200), (16, 200), (5_000, 200), (2_000, 16_384), (3, 5_000_000)] {
        let mut stream = server.connect();
        let (sent, expected) = messages(count, len);
        let mut writer = stream.try_clone().unwrap();
        let writing = thread::spawn(move || writer.write_all(&sent));
        if count * len > 1 << 20 {
            thread::sleep(Duration::from_millis(300));
        }
        let mut echoed = vec![0; expected.len()];
        stream.read_exact(&mut echoed).unwrap();
        writing.join().unwrap().unwrap();
        assert!(echoed == expected, "{count} messages of {len} bytes");
    }
}

#[test]
fn a_close_frame_is_answered_and_the_stream_ends() {
    let server = Server::start();
    for _ in 0..100 {
        let mut stream = server.connect();
        stream.write_all(b"\x88\x82\0\0\0\0\x03\xE8").unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"\x88\x02\x03\xE8");
    }
}

#[test]
fn clients_that_vanish_do_not_disturb_others() {
    let server = Server::start();
    let mut steady = server.connect();
    let (sent, expected) = messages(100, 16_384);
    for _ in 0..50 {
        let mut vanishing = server.connect();
        vanishing.write_all(&sent).unwrap(); // the answers are not read, so its end is a reset
        drop(vanishing);
        drop(TcpStream::connect(server.addr).unwrap());
    }
    let mut writer = steady.try_clone().unwrap();
    let writing = thread::spawn(move || writer.write_all(&sent));
    let mut echoed = vec![0; expected.len()];
    steady.read_exact(&mut echoed).unwrap();
    writing.join().unwrap().unwrap();
    assert!(echoed == expected);
}
