//! A server of two workers in the simulation, and what its clients do.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bytes::BytesMut;
use clap::Parser;
use iggy_binary_protocol::codes::*;
use iggy_binary_protocol::requests::messages::{RawMessage, SendMessagesEncoder};
use iggy_binary_protocol::{RequestFrame, WireIdentifier, WirePartitioning};
use owned_io::{
    ConnectOptions, Executor, MemoryBudget, OwnedReadExt, OwnedWriteExt, Pool, PoolConfig,
    StopSignal, Tcp,
};
use owned_io_server::config::{Flags, Service};
use owned_io_server::server::{self, Outcome};
use owned_io_sim::{Sim, SimStream, World};
use owned_io_websocket::handshake::{HandshakeError, Offer};
use owned_io_websocket::stream::{Buffers, Error, Message, WebSocket, connect};
use serde_json::Value;

pub(crate) const HTTP: &str = "10.0.0.1:80";
pub(crate) const ADMIN: &str = "10.0.0.1:81";
const TCP: &str = "10.0.0.1:82";

/// Runs a server with these options too, and `case` with clients of it. Then the server is stopped.
pub(crate) fn with_server<F: Future<Output = ()> + 'static>(
    options: &[&str],
    case: impl Fn(StopSignal) -> F + Send + Sync + 'static,
) -> Outcome {
    let password = PasswordFile::new();
    let listeners = ["server", "--workers", "2", "--http", HTTP, "--admin", ADMIN, "--tcp", TCP];
    let password = ["--iggy-password-file", password.0.to_str().unwrap()];
    let flags = Flags::parse_from([&listeners[..], &password, options].concat());
    let config = flags.into_config().unwrap();
    let (stop, is_done) = (StopSignal::new(), Arc::new(AtomicBool::new(false)));
    let (drain, done) = (stop.clone(), Arc::clone(&is_done));
    let outcome = server::run::<Sim>(&config, drain, move |listener| {
        if listener.service != Service::Admin {
            return;
        }
        let (case, end, done) = (case(stop.clone()), StopOnDrop(stop.clone()), Arc::clone(&done));
        drop(World::current().host("clients").spawn(async move {
            let _end = end; // also if the case panics
            case.await;
            done.store(true, Ordering::Release);
        }));
    });
    assert!(is_done.load(Ordering::Acquire), "the case has panicked");
    outcome.unwrap()
}

struct StopOnDrop(StopSignal);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

struct PasswordFile(PathBuf);

impl PasswordFile {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("owned-io-page-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, "secret\n").unwrap();
        Self(path)
    }
}

impl Drop for PasswordFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn dial(addr: &str) -> SimStream {
    Sim::connect(ConnectOptions::new(addr.parse().unwrap())).await.unwrap()
}

/// The head and the body of the answer to a request without a body.
pub(crate) async fn ask(addr: &str, request: &str) -> (String, String) {
    let mut stream = dial(addr).await;
    let request = format!("{request} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.into_bytes()).await.into_result().unwrap();
    let mut answer = Vec::new();
    // Each round reads a byte, or ends.
    while let Ok(((), byte)) = stream.read_exact(Vec::with_capacity(1), 1).await.into_result() {
        answer.extend(byte);
    }
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// A WebSocket that a page of this origin opens, or the status with which it is refused.
pub(crate) async fn open_from(
    origin: Option<&str>,
    addr: &str,
    path: &str,
) -> Result<WebSocket<SimStream>, u16> {
    let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(64 << 20));
    let headers: Vec<_> = origin.map(|origin| ("Origin", origin)).into_iter().collect();
    let offer = Offer { host: addr, path, headers: &headers, ..Offer::default() };
    let config = owned_io_websocket::Config::default();
    match connect::<Sim, _>(dial(addr).await, &buffers, config, &offer).await {
        Ok((socket, _)) => Ok(socket),
        Err(Error::NotUpgraded(HandshakeError::Rejected { status })) => Err(status),
        Err(error) => panic!("{error}"),
    }
}

pub(crate) async fn open(addr: &str, path: &str) -> WebSocket<SimStream> {
    open_from(None, addr, path).await.unwrap()
}

pub(crate) async fn next(socket: &mut WebSocket<SimStream>) -> Value {
    match socket.incoming.receive().await.unwrap() {
        Some(Message::Text(text)) => serde_json::from_str(text).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The code and the reason with which the server closes. Messages before are skipped.
pub(crate) async fn closed(socket: &mut WebSocket<SimStream>) -> (u16, String) {
    while socket.incoming.receive().await.unwrap().is_some() {}
    let frame = socket.incoming.peer_close().unwrap();
    (frame.code.unwrap().get(), frame.reason.to_owned())
}

/// A viewer without an engine: it sees the close frame before the stream ends.
pub(crate) struct Viewer(SimStream);

/// A close frame that is not answered yet.
pub(crate) struct Closing(SimStream, [u8; 2]);

impl Viewer {
    pub(crate) async fn open() -> Self {
        let mut stream = dial(ADMIN).await;
        let request = format!(
            "GET /live HTTP/1.1\r\nHost: {ADMIN}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(request.into_bytes()).await.into_result().unwrap();
        let mut viewer = Self(stream);
        let mut head = Vec::new();
        // A head is shorter than this.
        while !head.ends_with(b"\r\n\r\n") && head.len() < 1024 {
            head.extend(viewer.read(1).await);
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        viewer
    }

    async fn read(&mut self, bytes: usize) -> Vec<u8> {
        let buf = Vec::with_capacity(bytes);
        self.0.read_exact(buf, bytes).await.into_result().unwrap().1
    }

    /// Skips snapshots until the server closes.
    pub(crate) async fn closing(mut self) -> Closing {
        loop {
            let head = self.read(2).await;
            let bytes = match head[1] {
                126 => u16::from_be_bytes(self.read(2).await.try_into().unwrap()).into(),
                127 => u64::from_be_bytes(self.read(8).await.try_into().unwrap()),
                bytes => bytes.into(),
            };
            let payload = self.read(bytes as usize).await;
            if head[0] == 0x88 {
                return Closing(self.0, payload[..2].try_into().unwrap());
            }
        }
    }
}

impl Closing {
    pub(crate) fn code(&self) -> u16 {
        u16::from_be_bytes(self.1)
    }

    pub(crate) async fn answer(mut self) {
        let frame = [&[0x88, 0x82, 0, 0, 0, 0], &self.1[..]].concat();
        self.0.write_all(frame).await.into_result().unwrap();
    }
}

/// A client of Iggy's that has logged in, and has created stream `s` with topic `t` of one partition.
pub(crate) struct Producer(SimStream);

impl Producer {
    pub(crate) async fn new() -> Self {
        let mut producer = Self(dial(TCP).await);
        producer.ask(LOGIN_USER_CODE, b"\x04iggy\x06secret\0\0\0\0\0\0\0\0").await.unwrap();
        producer.ask(CREATE_STREAM_CODE, b"\x01s").await.unwrap();
        let topic = [&STREAM[..], &[1, 0, 0, 0, 1], &[255; 16], &[1, 1, b't']].concat();
        producer.ask(CREATE_TOPIC_CODE, &topic).await.unwrap();
        producer
    }

    async fn ask(&mut self, code: u32, payload: &[u8]) -> io::Result<()> {
        let mut frame = BytesMut::new();
        RequestFrame::encode(code, payload, &mut frame).unwrap();
        self.0.write_all(frame.to_vec()).await.into_result()?;
        let ((), head) = self.0.read_exact(Vec::with_capacity(8), 8).await.into_result()?;
        let field = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        assert_eq!(field(0), 0, "the status");
        let bytes = field(4) as usize;
        self.0.read_exact(Vec::with_capacity(bytes), bytes).await.into_result()?;
        Ok(())
    }

    /// Appends a batch.
    pub(crate) async fn send(&mut self, payloads: &[&[u8]]) {
        let message = |payload| RawMessage { id: 0, origin_timestamp: 0, headers: None, payload };
        let messages: Vec<_> = payloads.iter().map(|payload| message(*payload)).collect();
        let (zero, to) = (WireIdentifier::numeric(0), WirePartitioning::PartitionId(0));
        let mut request = BytesMut::new();
        SendMessagesEncoder::encode(&mut request, &zero, &zero, &to, &messages);
        self.ask(SEND_MESSAGES_CODE, &request).await.unwrap();
    }

    /// Appends a batch of messages whose payloads are these numbers.
    pub(crate) async fn send_numbers(&mut self, numbers: std::ops::Range<u64>) {
        let payloads: Vec<_> = numbers.map(|number| number.to_string()).collect();
        let payloads: Vec<_> = payloads.iter().map(String::as_bytes).collect();
        self.send(&payloads).await;
    }

    pub(crate) async fn purge(&mut self) {
        let topic = [1, 4, 0, 0, 0, 0, 1, 4, 0, 0, 0, 0];
        self.ask(PURGE_TOPIC_CODE, &topic).await.unwrap();
    }
}

/// The identifier of stream 0.
const STREAM: [u8; 6] = [1, 4, 0, 0, 0, 0];

/// Runs `client` at the same time.
pub(crate) fn meanwhile(client: impl Future<Output = ()> + 'static) {
    drop(Sim::spawn(client));
}
