//! Iggy's protocol by raw bytes, on each runtime and each engine. `server/iggy/run` runs Iggy's own client.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;

use bytes::BytesMut;
use iggy_binary_protocol::codes::*;
use iggy_binary_protocol::requests::messages::{
    PollMessagesRequest, RawMessage, SendMessagesEncoder,
};
use iggy_binary_protocol::responses::messages::PollMessagesResponse;
use iggy_binary_protocol::{
    RequestFrame, ResponseFrame, WireConsumer, WireEncode, WireIdentifier, WirePartitioning,
    WirePollingStrategy,
};
use tungstenite::{Message, WebSocket};

use super::server::{ENGINES, RUNTIMES, Server, assert_closed};

/// Several workers, so that some connections are not at the worker with the broker.
#[test]
fn messages_are_sent_and_polled() {
    let password = password_file("program");
    let always = ["--iggy-password-file", password.0.to_str().unwrap()];
    for (runtime, engine) in
        RUNTIMES.iter().flat_map(|runtime| ENGINES.iter().map(move |engine| (runtime, engine)))
    {
        println!("{runtime}, {engine:?}"); // shown when it fails
        let services = ["--tcp", "127.0.0.1:0", "--http", "127.0.0.1:0"];
        let server = Server::start(runtime, &[&always[..], &services, engine].concat());
        let mut payloads = Vec::new();
        let mut clients: Vec<Client> = (0..6).map(|_| Client::Tcp(server.connect(0))).collect();
        clients.extend((0..6).map(|_| Client::WebSocket(server.upgrade(1, "/").into())));
        assert_eq!(clients[0].ask(GET_STREAMS_CODE, &[]), (40, vec![]), "without a login");
        for client in &mut clients {
            assert_eq!(client.ask(LOGIN_USER_CODE, LOGIN), (0, vec![0; 4]));
        }
        assert_eq!(clients[5].ask(CREATE_STREAM_CODE, b"\x01s").0, 0);
        let topic = [&[1, 4, 0, 0, 0, 0, 1, 0, 0, 0, 1][..], &[255; 16], &[1, 1, b't']].concat();
        assert_eq!(clients[11].ask(CREATE_TOPIC_CODE, &topic).0, 0);
        for (n, client) in clients.iter_mut().enumerate() {
            let payload = vec![n as u8; 100 + n * 50_000];
            assert_eq!(client.ask(SEND_MESSAGES_CODE, &batch(&payload)), (0, vec![]), "{engine:?}");
            payloads.push(payload);
        }
        for client in &mut clients {
            let mut polled = Vec::new();
            while polled.len() < payloads.len() {
                let (status, answer) = client.ask(POLL_MESSAGES_CODE, &poll(polled.len() as u64));
                let answer = PollMessagesResponse::decode(&answer).unwrap();
                assert_eq!((status, answer.header.current_offset), (0, 11));
                polled.extend(answer.messages.map(|view| view.unwrap().payload().to_vec()));
            }
            assert!(polled == payloads, "{runtime}, {engine:?}");
        }
        let mut too_long = server.connect(0);
        too_long.write_all(&[255; 8]).unwrap();
        let mut answer = [0; 8];
        too_long.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [40, 0, 0, 0, 0, 0, 0, 0]);
        assert_closed(&mut too_long);
        assert_eq!(clients[0].ask(PING_CODE, &[]), (0, vec![]));
        drop(clients);
        server.signal("-TERM");
        assert_eq!(server.wait(), 0, "{runtime}, {engine:?}");
    }
}

#[test]
fn there_is_no_iggy_without_a_password() {
    let server = Server::start(RUNTIMES[0], &["--http", "127.0.0.1:0"]);
    let request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert!(server.ask(0, request).starts_with("HTTP/1.1 404 "));
}

enum Client {
    Tcp(TcpStream),
    WebSocket(Box<WebSocket<TcpStream>>),
}

impl Client {
    fn ask(&mut self, code: u32, payload: &[u8]) -> (u32, Vec<u8>) {
        let mut request = BytesMut::new();
        RequestFrame::encode(code, payload, &mut request).unwrap();
        match self {
            Self::Tcp(stream) => {
                stream.write_all(&request).unwrap();
                let mut header = [0; 8];
                stream.read_exact(&mut header).unwrap();
                let len = u32::from_le_bytes(header[4..].try_into().unwrap());
                let mut payload = vec![0; len as usize];
                stream.read_exact(&mut payload).unwrap();
                (u32::from_le_bytes(header[..4].try_into().unwrap()), payload)
            }
            Self::WebSocket(socket) => {
                socket.send(Message::binary(request.freeze())).unwrap();
                let answer = socket.read().unwrap().into_data();
                let (answer, len) = ResponseFrame::decode(&answer).unwrap();
                assert_eq!(len, 8 + answer.payload.len());
                (answer.status, answer.payload.to_vec())
            }
        }
    }
}

const LOGIN: &[u8] = b"\x04iggy\x0bopen sesame\0\0\0\0\0\0\0\0";

fn batch(payload: &[u8]) -> BytesMut {
    let (zero, to) = (WireIdentifier::numeric(0), WirePartitioning::Balanced);
    let message = RawMessage { id: 0, origin_timestamp: 0, headers: None, payload };
    let mut request = BytesMut::new();
    SendMessagesEncoder::encode(&mut request, &zero, &zero, &to, &[message]);
    request
}

fn poll(offset: u64) -> BytesMut {
    let poll = PollMessagesRequest {
        consumer: WireConsumer::consumer(WireIdentifier::numeric(1)),
        stream_id: WireIdentifier::numeric(0),
        topic_id: WireIdentifier::numeric(0),
        partition_id: Some(0),
        strategy: WirePollingStrategy::offset(offset),
        count: 100,
        auto_commit: true,
    };
    let mut request = BytesMut::new();
    poll.encode(&mut request);
    request
}

/// A file that is removed when this is dropped.
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn password_file(name: &str) -> File {
    let file = format!("owned-io-server-{}-{name}.password", std::process::id());
    let file = std::env::temp_dir().join(file);
    std::fs::write(&file, "open sesame\n").unwrap();
    File(file)
}
