//! A client of Iggy's protocol over TCP, and one of HTTP, which name streams and topics.

use std::io::{Read, Write};
use std::net::TcpStream;

use bytes::BytesMut;
use iggy_binary_protocol::codes::*;
use iggy_binary_protocol::requests::messages::{
    PollMessagesRequest, RawMessage, SendMessagesEncoder,
};
use iggy_binary_protocol::requests::topics::GetTopicsRequest;
use iggy_binary_protocol::responses::messages::PollMessagesResponse;
use iggy_binary_protocol::responses::streams::GetStreamsResponse;
use iggy_binary_protocol::responses::topics::GetTopicsResponse;
use iggy_binary_protocol::{
    RequestFrame, WireConsumer, WireDecode, WireEncode, WireIdentifier, WirePartitioning,
    WirePollingStrategy,
};

use super::server::Server;

/// The user and the password of the tests.
pub(crate) const BASIC: &str = "Basic aWdneTpvcGVuIHNlc2FtZQ==";
const LOGIN: &[u8] = b"\x04iggy\x0bopen sesame\0\0\0\0\0\0\0\0";

/// The services of a server: `--tcp`, `--http`.
const TCP: usize = 0;
const HTTP: usize = 1;

pub(crate) struct Client(TcpStream);

/// A message: its offset, its payload, its user headers, and its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Polled {
    pub(crate) offset: u64,
    pub(crate) payload: Vec<u8>,
    pub(crate) user_headers: Vec<u8>,
    pub(crate) id: u128,
}

impl Client {
    pub(crate) fn login(server: &Server) -> Self {
        let mut client = Self(server.connect(TCP));
        assert_eq!(client.ask(LOGIN_USER_CODE, LOGIN).0, 0);
        client
    }

    pub(crate) fn ask(&mut self, code: u32, payload: &[u8]) -> (u32, Vec<u8>) {
        let mut request = BytesMut::new();
        RequestFrame::encode(code, payload, &mut request).unwrap();
        self.0.write_all(&request).unwrap();
        let mut header = [0; 8];
        self.0.read_exact(&mut header).unwrap();
        let len = u32::from_le_bytes(header[4..].try_into().unwrap());
        let mut payload = vec![0; len as usize];
        self.0.read_exact(&mut payload).unwrap();
        (u32::from_le_bytes(header[..4].try_into().unwrap()), payload)
    }

    /// Sends messages to topic `t` of stream `s`. Each has these user headers. Returns the status.
    pub(crate) fn send(
        &mut self,
        partition: u32,
        payloads: &[Vec<u8>],
        headers: Option<&[u8]>,
    ) -> u32 {
        let message = |payload| RawMessage { id: 0, origin_timestamp: 7, headers, payload };
        let messages: Vec<_> = payloads.iter().map(|payload| message(payload)).collect();
        let to = WirePartitioning::PartitionId(partition);
        let mut request = BytesMut::new();
        SendMessagesEncoder::encode(&mut request, &id("s"), &id("t"), &to, &messages);
        self.ask(SEND_MESSAGES_CODE, &request).0
    }

    /// Messages of topic `t` of stream `s`.
    pub(crate) fn poll(
        &mut self,
        partition: u32,
        strategy: WirePollingStrategy,
        count: u32,
    ) -> Result<Vec<Polled>, u32> {
        let poll = PollMessagesRequest {
            consumer: WireConsumer::consumer(WireIdentifier::numeric(1)),
            stream_id: id("s"),
            topic_id: id("t"),
            partition_id: Some(partition),
            strategy,
            count,
            auto_commit: false,
        };
        let (status, answer) = self.ask(POLL_MESSAGES_CODE, &poll.to_bytes());
        if status != 0 {
            return Err(status);
        }
        let answer = PollMessagesResponse::decode(&answer).unwrap();
        let messages = answer.messages.map(|message| message.unwrap());
        Ok(messages
            .map(|message| Polled {
                offset: message.offset(),
                payload: message.payload().to_vec(),
                user_headers: message.user_headers().to_vec(),
                id: message.id(),
            })
            .collect())
    }

    /// All messages of a partition, by polls of at most `count`.
    pub(crate) fn poll_all(&mut self, partition: u32, count: u32) -> Vec<Polled> {
        let mut all: Vec<Polled> = Vec::new();
        // Each round brings a message, or ends.
        loop {
            let next = all.last().map_or(0, |last| last.offset + 1);
            let more = self.poll(partition, WirePollingStrategy::offset(next), count).unwrap();
            if more.is_empty() {
                return all;
            }
            all.extend(more);
        }
    }

    /// The names and numbers of all streams.
    pub(crate) fn streams(&mut self) -> Vec<(String, u32)> {
        let (status, answer) = self.ask(GET_STREAMS_CODE, &[]);
        assert_eq!(status, 0);
        let streams = GetStreamsResponse::decode_from(&answer).unwrap().streams;
        streams.iter().map(|stream| (stream.name.to_string(), stream.id)).collect()
    }

    /// The names, numbers, and numbers of partitions of the topics of a stream.
    pub(crate) fn topics(&mut self, stream: &str) -> Vec<(String, u32, u32)> {
        let request = GetTopicsRequest { stream_id: id(stream) };
        let (status, answer) = self.ask(GET_TOPICS_CODE, &request.to_bytes());
        assert_eq!(status, 0);
        if answer.is_empty() {
            return Vec::new();
        }
        let topics = GetTopicsResponse::decode_from(&answer).unwrap().topics;
        let topic = topics.iter();
        topic.map(|topic| (topic.name.to_string(), topic.id, topic.partitions_count)).collect()
    }
}

/// Appends events to a topic. Returns the whole answer.
pub(crate) fn events(server: &Server, path: &str, headers: &str, body: &[u8]) -> String {
    let mut stream = server.connect(HTTP);
    let head = format!(
        "POST /events/{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
         Authorization: {BASIC}\r\n{headers}Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The status of an answer.
pub(crate) fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

fn id(name: &str) -> WireIdentifier {
    WireIdentifier::named(name).unwrap()
}
