//! Clients that send events over HTTP, and one that polls them.

use iggy_binary_protocol::codes::POLL_MESSAGES_CODE;
use iggy_binary_protocol::requests::messages::PollMessagesRequest;
use iggy_binary_protocol::responses::messages::PollMessagesResponse;
use iggy_binary_protocol::{WireConsumer, WireEncode, WireIdentifier, WirePollingStrategy};
use owned_io::{ByteStream, Executor, JoinHandle, OwnedRead, OwnedWriteExt};
use owned_io_sim::{Sim, SimReadHalf, SimWriteHalf};
use serde_json::Value;

use super::server::{AUTHORIZATION, Producer, Worker};

pub(crate) const NDJSON: &str = "Content-Type: application/x-ndjson\r\n";

/// A connection that stays.
pub(crate) struct Client {
    read: SimReadHalf,
    /// `None`: a part of a request is being written.
    write: Option<SimWriteHalf>,
    serving: JoinHandle<()>,
    unread: Vec<u8>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// The number, the partition and the first offset of events that were appended.
    pub(crate) fn appended(&self) -> (u64, u64, u64) {
        assert_eq!(self.status, 200, "{self:?}");
        assert!(self.head.contains("Content-Type: application/json\r\n"), "{self:?}");
        let json: Value = serde_json::from_str(&self.body).unwrap();
        let field = |name: &str| json[name].as_u64().unwrap();
        (field("events"), field("partition"), field("offset"))
    }
}

/// The head of a request to append events, with the password.
pub(crate) fn head(path: &str, headers: &str) -> String {
    let (name, value) = AUTHORIZATION;
    format!("POST /events/{path} HTTP/1.1\r\nHost: a\r\n{name}: {value}\r\n{headers}\r\n")
}

/// A request to append events.
pub(crate) fn request(path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let headers = format!("Content-Length: {}\r\n{headers}", body.len());
    [head(path, &headers).as_bytes(), body].concat()
}

/// The same, in chunks of up to `chunk` bytes.
pub(crate) fn chunked(path: &str, headers: &str, body: &[u8], chunk: usize) -> Vec<u8> {
    let headers = format!("Transfer-Encoding: chunked\r\n{headers}");
    let mut request = head(path, &headers).into_bytes();
    for chunk in body.chunks(chunk) {
        request.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        request.extend_from_slice(chunk);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\n\r\n");
    request
}

impl Client {
    pub(crate) fn new(worker: &Worker) -> Self {
        let (stream, serving) = worker.serve();
        let (read, write) = stream.into_split();
        Self { read, write: Some(write), serving, unread: Vec::new() }
    }

    pub(crate) async fn write(&mut self, bytes: impl Into<Vec<u8>>) {
        let write = self.write.as_mut().expect("nothing else is being written");
        write.write_all(bytes.into()).await.into_result().unwrap();
    }

    /// Writes as far as the server takes it.
    pub(crate) async fn try_write(&mut self, bytes: Vec<u8>) {
        let write = self.write.as_mut().expect("nothing else is being written");
        let _ = write.write_all(bytes).await;
    }

    /// Sends a request, and reads the answer meanwhile: the server may answer before it has read all.
    pub(crate) async fn ask(&mut self, request: Vec<u8>) -> Answer {
        let mut write = self.write.take().expect("nothing else is being written");
        let writing = Sim::spawn(async move {
            let _ = write.write_all(request).await; // an error: it was refused
            write
        });
        let answer = self.answer().await;
        self.write = Some(writing.await.unwrap());
        answer
    }

    /// The next answer.
    pub(crate) async fn answer(&mut self) -> Answer {
        let head_bytes = loop {
            let end = self.unread.windows(4).position(|four| four == b"\r\n\r\n");
            match end {
                Some(end) => break end + 4,
                None => assert!(self.read_more().await, "the end of the stream"),
            }
        };
        let head = String::from_utf8(self.unread.drain(..head_bytes).collect()).unwrap();
        let status = head["HTTP/1.1 ".len()..][..3].parse().unwrap();
        let length = head.split("Content-Length: ").nth(1).and_then(|rest| rest.split('\r').next());
        let length = length.map_or(0, |length| length.parse().unwrap());
        while self.unread.len() < length {
            assert!(self.read_more().await, "the end of the stream in a body");
        }
        let body = String::from_utf8(self.unread.drain(..length).collect()).unwrap();
        Answer { status, head, body }
    }

    /// Nothing more comes but the end of the stream, or a reset.
    pub(crate) async fn expect_end(&mut self) {
        assert!(!self.read_more().await && self.unread.is_empty(), "{:?}", self.unread);
    }

    /// Ends the connection, and waits until the server has noticed.
    pub(crate) async fn end(self) {
        let Self { read, write, serving, .. } = self;
        drop((read, write));
        serving.await.unwrap();
    }

    async fn read_more(&mut self) -> bool {
        match self.read.read(Vec::with_capacity(4096)).await.into_result() {
            Ok((0, _)) | Err(_) => false,
            Ok((_, bytes)) => {
                self.unread.extend_from_slice(&bytes);
                true
            }
        }
    }
}

/// The offsets and payloads of all messages of a partition of topic 0.
pub(crate) async fn poll_all(producer: &mut Producer, partition: u32) -> Vec<(u64, Vec<u8>)> {
    let mut all: Vec<(u64, Vec<u8>)> = Vec::new();
    // Each round brings a message, or ends.
    loop {
        let next = all.last().map_or(0, |(offset, _)| offset + 1);
        let poll = PollMessagesRequest {
            consumer: WireConsumer::consumer(WireIdentifier::numeric(1)),
            stream_id: WireIdentifier::numeric(0),
            topic_id: WireIdentifier::numeric(0),
            partition_id: Some(partition),
            strategy: WirePollingStrategy::offset(next),
            count: 1_000_000,
            auto_commit: false,
        };
        let polled = producer.ask(POLL_MESSAGES_CODE, &poll.to_bytes()).await;
        let polled = PollMessagesResponse::decode(&polled).unwrap();
        let messages = polled.messages.map(|message| message.unwrap());
        let before = all.len();
        for message in messages {
            assert!(message.id() != 0 && message.user_headers().is_empty());
            let ages = (message.origin_timestamp(), message.timestamp());
            assert!(0 < ages.0 && ages.0 <= ages.1, "{ages:?}");
            all.push((message.offset(), message.payload().to_vec()));
        }
        if all.len() == before {
            return all;
        }
    }
}
