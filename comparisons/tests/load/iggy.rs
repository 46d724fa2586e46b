//! `produce` and `consume`, against a server in memory that speaks Iggy's protocol, rightly or not.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;
use std::time::Duration;

use iggy_binary_protocol::codes::*;
use iggy_binary_protocol::requests::messages::{PollMessagesRequest, SendMessagesHeader};
use iggy_binary_protocol::requests::topics::CreateTopicRequest;
use iggy_binary_protocol::requests::users::LoginUserRequest;
use iggy_binary_protocol::responses::messages::PollMessagesResponseHeader;
use iggy_binary_protocol::responses::streams::TopicHeader;
use iggy_binary_protocol::responses::topics::{GetTopicResponse, PartitionResponse};
use iggy_binary_protocol::{
    RequestFrame, WireDecode, WireEncode, WireMessageIterator, WireName, WirePartitioning,
};

use super::websocket::{BINARY, frame, receive, websocket};
use super::windows::Windows;
use super::{Run, load, server};

const PRODUCE: &str = "--producers 3 --messages 10 --bytes 200";
const CONSUME: &str = "--consumers 3 --messages 10 --bytes 200 --batches 20";

/// The status of a login that is refused, and of a command that needs one.
const REFUSED: u32 = 42;

/// One stream with one topic: for each partition its messages, as they are stored.
#[derive(Default)]
pub(super) struct Topic {
    partitions: Vec<Vec<Vec<u8>>>,
    created: usize,
    deleted: usize,
}

impl Topic {
    /// How often a stream or topic was deleted.
    pub(super) const fn deleted(&self) -> usize {
        self.deleted
    }

    /// The payload of the answer to a request, or the status of an error.
    fn answer(&mut self, code: u32, payload: &[u8]) -> Result<Vec<u8>, u32> {
        match code {
            CREATE_STREAM_CODE => Ok(Vec::new()),
            DELETE_STREAM_CODE | DELETE_TOPIC_CODE => {
                self.deleted += 1;
                self.partitions.clear();
                Ok(Vec::new())
            }
            CREATE_TOPIC_CODE => {
                let request = CreateTopicRequest::decode_from(payload).expect("a request");
                self.created += 1;
                self.partitions = vec![Vec::new(); request.partitions_count as usize];
                Ok(Vec::new())
            }
            GET_TOPIC_CODE => Ok(self.described()),
            SEND_MESSAGES_CODE => {
                self.append(payload);
                Ok(Vec::new())
            }
            POLL_MESSAGES_CODE => Ok(self.poll(payload)),
            _ => Err(3),
        }
    }

    fn append(&mut self, payload: &[u8]) {
        let (head, len) = SendMessagesHeader::decode(&payload[4..]).expect("a head");
        let WirePartitioning::PartitionId(partition) = head.partitioning else {
            panic!("it names no partition");
        };
        let partition = &mut self.partitions[partition as usize];
        let messages = &payload[4 + len + 16 * head.messages_count as usize..];
        for message in WireMessageIterator::new(messages, head.messages_count) {
            let mut message = message.expect("a message").as_bytes().to_vec();
            message[24..32].copy_from_slice(&(partition.len() as u64).to_le_bytes());
            // A checksum and a timestamp, which the client does not know.
            message[0] = 7;
            message[32] = 8;
            partition.push(message);
        }
    }

    fn poll(&self, payload: &[u8]) -> Vec<u8> {
        let poll = PollMessagesRequest::decode_from(payload).expect("a poll");
        let partition_id = poll.partition_id.expect("a partition");
        let partition = &self.partitions[partition_id as usize];
        let from = (poll.strategy.value as usize).min(partition.len());
        let to = (from + poll.count as usize).min(partition.len());
        let head = PollMessagesResponseHeader {
            partition_id,
            current_offset: partition.len() as u64 - 1,
            messages_count: (to - from) as u32,
        };
        [&head.to_bytes()[..], &partition[from..to].concat()].concat()
    }

    fn described(&self) -> Vec<u8> {
        let topic = TopicHeader {
            id: 0,
            created_at: 0,
            partitions_count: self.partitions.len() as u32,
            message_expiry: u64::MAX,
            compression_algorithm: 1,
            max_topic_size: u64::MAX,
            replication_factor: 1,
            size_bytes: 0,
            messages_count: 0,
            name: WireName::new("topic").expect("a name"),
        };
        let partition = |(id, messages): (usize, &Vec<Vec<u8>>)| PartitionResponse {
            id: id as u32,
            created_at: 0,
            segments_count: 1,
            current_offset: (messages.len() as u64).saturating_sub(1),
            size_bytes: 0,
            messages_count: messages.len() as u64,
        };
        let partitions = self.partitions.iter().enumerate().map(partition).collect();
        GetTopicResponse { topic, partitions }.to_bytes().to_vec()
    }
}

/// Answers a request. `change` may alter the answer, and gets the code of the request.
pub(super) fn answer(
    topic: &Mutex<Topic>,
    is_logged_in: &mut bool,
    request: &[u8],
    change: impl FnOnce(u32, &mut Vec<u8>),
) -> Vec<u8> {
    let (RequestFrame { code, payload }, _) = RequestFrame::decode(request).expect("a request");
    let answer = if code == LOGIN_USER_CODE {
        let login = LoginUserRequest::decode_from(payload).expect("a login");
        *is_logged_in = (login.username.as_str(), &*login.password) == ("iggy", "open sesame");
        if *is_logged_in { Ok(9_u32.to_le_bytes().to_vec()) } else { Err(REFUSED) }
    } else if *is_logged_in {
        topic.lock().expect("no panic").answer(code, payload)
    } else {
        Err(REFUSED)
    };
    let (status, payload) = answer.map_or_else(|status| (status, Vec::new()), |it| (0, it));
    let mut answer = [status, payload.len() as u32].map(u32::to_le_bytes).concat();
    answer.extend(payload);
    change(code, &mut answer);
    answer
}

/// A server over TCP. `change` may alter each answer before it is sent, and gets the code of the request and how many
/// requests of that code the connection has sent before.
fn over_tcp(
    topic: &Arc<Mutex<Topic>>,
    change: impl Fn(u32, usize, &mut Vec<u8>) + Send + Sync + 'static,
) -> SocketAddr {
    let topic = Arc::clone(topic);
    server(move |_, mut stream| {
        let (mut is_logged_in, mut counts) = (false, [0; 1000]);
        loop {
            let mut len = [0; 4];
            stream.read_exact(&mut len)?;
            let mut request = len.to_vec();
            request.resize(4 + u32::from_le_bytes(len) as usize, 0);
            stream.read_exact(&mut request[4..])?;
            let answer = answer(&topic, &mut is_logged_in, &request, |code, answer| {
                change(code, count(&mut counts, code), answer);
            });
            stream.write_all(&answer)?;
        }
    })
}

/// The same over WebSocket.
fn over_websocket(
    topic: &Arc<Mutex<Topic>>,
    change: impl Fn(u32, usize, &mut Vec<u8>) + Send + Sync + 'static,
) -> SocketAddr {
    let topic = Arc::clone(topic);
    websocket(move |_, path, stream: &mut TcpStream| -> io::Result<()> {
        assert_eq!(path, "/");
        let (mut is_logged_in, mut counts) = (false, [0; 1000]);
        loop {
            let (first, request) = receive(stream)?;
            assert_eq!(first, BINARY);
            let answer = answer(&topic, &mut is_logged_in, &request, |code, answer| {
                change(code, count(&mut counts, code), answer);
            });
            stream.write_all(&frame(BINARY, &answer))?;
        }
    })
}

/// How many requests of this code came before.
fn count(counts: &mut [usize; 1000], code: u32) -> usize {
    counts[code as usize] += 1;
    counts[code as usize] - 1
}

/// The file with the password. It is written once: tests at the same time may read it.
pub(super) fn password() -> &'static Path {
    static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
        let file = std::env::temp_dir().join(format!("load-test-password-{}", std::process::id()));
        std::fs::write(&file, "open sesame\n").expect("a file");
        file
    });
    &FILE
}

/// Runs `load` over TCP and over WebSocket, each with a server of its own.
fn runs(
    command: &str,
    options: &str,
    change: impl Fn(u32, usize, &mut Vec<u8>) + Clone + Send + Sync + 'static,
) -> [(Run, Topic); 2] {
    let password = password();
    let run = |over: &dyn Fn(&Arc<Mutex<Topic>>) -> SocketAddr, websocket: &str| {
        let topic: Arc<Mutex<Topic>> = Arc::default();
        let addr = over(&topic);
        let access = format!("--iggy-password-file {}", password.display());
        let run = load(command, addr, &format!("{options} {access} {websocket}"));
        (run, std::mem::take(&mut *topic.lock().expect("no panic")))
    };
    let (tcp, websocket) = (change.clone(), change);
    [
        run(&move |topic| over_tcp(topic, tcp.clone()), ""),
        run(&move |topic| over_websocket(topic, websocket.clone()), "--websocket /"),
    ]
}

#[test]
fn batches_are_appended_and_the_stream_is_deleted() {
    for (run, topic) in runs("produce", &format!("{PRODUCE} --batches 20"), |_, _, _| ()) {
        run.is_clean();
        assert_eq!(run.number("/messages/received"), 60.0, "{}", run.stdout);
        assert_eq!(run.number("/latency_us/count"), 60.0, "{}", run.stdout);
        assert_eq!((run.number("/batches/messages"), run.number("/batches/bytes")), (10.0, 200.0));
        assert!(run.number("/batches/messages_per_s") > 0.0);
        assert!(run.number("/latency_us/mean") > 0.0);
        assert!(run.stdout.contains("of 10 messages of 200 B"), "{}", run.stdout);
        assert_eq!((topic.created, topic.deleted), (1, 1));
    }
}

#[test]
fn batches_are_appended_for_a_time() {
    for (run, _) in runs("produce", &format!("{PRODUCE} --seconds 0.3 --warm-up 0.1"), |_, _, _| ())
    {
        run.is_clean();
        assert!((run.number("/seconds") - 0.3).abs() < 0.1, "{}", run.stdout);
        assert!(run.number("/messages/received") > 0.0, "{}", run.stdout);
        assert_eq!(run.number("/messages/unanswered"), 0.0, "{}", run.stdout);
    }
}

#[test]
fn all_batches_are_read_and_the_stream_is_deleted() {
    for (run, topic) in runs("consume", CONSUME, |_, _, _| ()) {
        run.is_clean();
        assert_eq!(run.number("/messages/received"), 60.0, "{}", run.stdout);
        assert_eq!(run.number("/latency_us/count"), 60.0, "{}", run.stdout);
        assert_eq!((topic.created, topic.deleted), (1, 1));
    }
    for (run, _) in runs("consume", &format!("{CONSUME} --seconds 0.3 --warm-up 0.1"), |_, _, _| ())
    {
        run.is_clean();
        assert!(run.number("/messages/received") > 60.0, "{}", run.stdout);
    }
}

#[test]
fn long_batches_go_through_short_buffers() {
    let options = "--consumers 2 --messages 1000 --bytes 1000 --batches 3";
    for (run, _) in runs("consume", options, |_, _, _| ()) {
        run.is_clean();
        assert_eq!(run.number("/messages/received"), 6.0, "{}", run.stdout);
    }
}

#[test]
fn a_batch_that_is_refused_or_answered_with_more_is_wrong() {
    let refused = |code, count, answer: &mut Vec<u8>| {
        if (code, count) == (SEND_MESSAGES_CODE, 7) {
            answer[0] = 5;
        }
    };
    let more = |code, count, answer: &mut Vec<u8>| {
        if (code, count) == (SEND_MESSAGES_CODE, 7) {
            answer.push(0);
        }
    };
    for (run, topic) in runs("produce", &format!("{PRODUCE} --batches 20"), refused) {
        run.is_wrong("the answer to message 7 is wrong");
        assert_eq!(topic.deleted, 1);
    }
    let options = format!("{PRODUCE} --batches 20");
    for (run, _) in runs("produce", &options, more) {
        assert_eq!(run.code, Some(2), "{}{}", run.stdout, run.stderr);
    }
}

#[test]
fn a_batch_that_is_acknowledged_and_not_there_is_wrong() {
    // The topic says that it has one message fewer than it has.
    let lost = |code, _, answer: &mut Vec<u8>| {
        if code == GET_TOPIC_CODE {
            let at = answer.len() - 8;
            answer[at] -= 1;
        }
    };
    for (run, topic) in runs("produce", &format!("{PRODUCE} --batches 20"), lost) {
        run.is_wrong("partition 2 has 199 messages, the last at offset 199: 200 were acknowledged");
        assert_eq!(topic.deleted, 1);
    }
    for (run, topic) in runs("consume", CONSUME, lost) {
        run.is_refused("cannot append what is to be read: partition 2 has 199 messages");
        assert_eq!(topic.deleted, 1);
    }
}

#[test]
fn every_part_of_an_answer_to_a_poll_is_checked() {
    // Status, length, partition, last offset, count; of the last message id, offset, length, number and payload.
    let last = 24 + 9 * 264;
    for at in [0, 4, 8, 12, 20, last + 8, last + 24, last + 52, last + 64, last + 263] {
        let wrong = move |code, count, answer: &mut Vec<u8>| {
            if (code, count) == (POLL_MESSAGES_CODE, 7) {
                answer[at] ^= 1;
            }
        };
        for (run, topic) in runs("consume", CONSUME, wrong) {
            run.is_wrong("the answer to message 7 is wrong");
            assert_eq!(topic.deleted, 1);
        }
    }
}

#[test]
fn messages_in_another_order_or_fewer_are_wrong() {
    let swapped = |code, count, answer: &mut Vec<u8>| {
        if (code, count) == (POLL_MESSAGES_CODE, 3) {
            answer[24..].rotate_left(264);
        }
    };
    let fewer = |code, count, answer: &mut Vec<u8>| {
        if (code, count) == (POLL_MESSAGES_CODE, 3) {
            answer.truncate(24 + 9 * 264);
            let len = answer.len() as u32 - 8;
            answer[4..8].copy_from_slice(&len.to_le_bytes());
            answer[20] = 9;
        }
    };
    for (run, _) in runs("consume", CONSUME, swapped) {
        run.is_wrong("the answer to message 3 is wrong");
    }
    for (run, _) in runs("consume", CONSUME, fewer) {
        run.is_wrong("the answer to message 3 is wrong");
    }
}

#[test]
fn late_and_cut_answers_are_errors() {
    let late = |code, count, _answer: &mut Vec<u8>| {
        if (code, count) == (SEND_MESSAGES_CODE, 3) {
            thread::sleep(Duration::from_millis(1500));
        }
    };
    let options = format!("{PRODUCE} --batches 5 --patience 0.5");
    for (run, _) in runs("produce", &options, late) {
        assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
        assert_eq!(run.json["connections"]["errors"]["not answered within 0.5 s"], 3);
        assert_eq!(run.number("/messages/unanswered"), 3.0);
    }
    let cut = |code, count, answer: &mut Vec<u8>| {
        if (code, count) == (POLL_MESSAGES_CODE, 3) {
            answer.truncate(1000);
        }
    };
    let [(over_tcp, _), (over_websocket, _)] =
        runs("consume", &format!("{CONSUME} --patience 0.5"), cut);
    // A message of a WebSocket has an end.
    over_websocket.is_wrong("the answer to message 3 is wrong");
    assert_eq!(over_tcp.code, Some(0), "{}{}", over_tcp.stdout, over_tcp.stderr);
    assert_eq!(over_tcp.json["connections"]["errors"]["not answered within 0.5 s"], 3);
}

#[test]
fn windows_are_measured_when_they_are_asked_for() {
    let access = format!("--iggy-password-file {}", password().display());
    for (command, options) in [
        ("produce", format!("{PRODUCE} --seconds 1")),
        ("consume", format!("{CONSUME} --seconds 1")),
    ] {
        let topic: Arc<Mutex<Topic>> = Arc::default();
        let addr = over_tcp(&topic, |_, _, _| ());
        let mut load = Windows::start(command, addr, &format!("{options} {access}"));
        load.ask("warm-up 10");
        let report = load.ask("window 30")["report"].take();
        assert_eq!(report["messages"]["sent"], report["messages"]["received"], "{report}");
        assert!(report["messages"]["received"].as_u64().unwrap() > 0, "{report}");
        let report = load.ask("end");
        assert_eq!(report["connections"]["errors"], serde_json::json!({}), "{report}");
        assert_eq!(load.finish(), (Some(0), String::new()));
        assert_eq!(topic.lock().expect("no panic").deleted, 1);
    }
}

#[test]
fn a_run_without_a_login_is_refused() {
    let topic = Arc::default();
    let options = format!("{PRODUCE} --batches 1");
    let addr = over_tcp(&topic, |_, _, _| ());
    load("produce", addr, &options).is_refused("--iggy-password-file");
    let access = format!("--iggy-password-file {}", password().display());
    let other = format!("{options} {access} --iggy-user nobody");
    load("produce", addr, &other).is_refused("cannot create a stream: status 42");
    let missing = format!("{options} --iggy-password-file /nowhere");
    load("produce", addr, &missing).is_refused("cannot use /nowhere");
    // The connections of the run are refused, after the topic was created by another.
    let refused = |code, _, answer: &mut Vec<u8>| {
        if code == SEND_MESSAGES_CODE {
            answer[0] = REFUSED as u8;
        }
    };
    let addr = over_tcp(&topic, refused);
    load("produce", addr, &format!("{options} {access}")).is_wrong("message 0 is wrong");
    let both = format!("{options} {access} --seconds 1");
    load("produce", addr, &both).is_refused("--batches");
}
