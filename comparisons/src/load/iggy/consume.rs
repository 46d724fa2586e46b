//! `load consume`: polls batches of messages from the first offset on, and checks them.

use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use iggy_binary_protocol::codes::POLL_MESSAGES_CODE;
use iggy_binary_protocol::requests::messages::PollMessagesRequest;
use iggy_binary_protocol::{
    RequestFrame, ResponseFrame, STATUS_OK, WireConsumer, WireEncode, WireIdentifier,
    WirePollingStrategy,
};
use serde::{Deserialize, Serialize};

use super::super::bounds::{NonZeroSeconds, Seconds};
use super::super::exchange::{Exchange, Wire};
use super::super::options::{self, PATIENCE, Target, WARM_UP};
use super::super::pace::ns;
use super::super::report::Report;
use super::super::session::Session;
use super::super::window::Window;
use super::super::windows::{self, Loop, Upkeep};
use super::access::Access;
use super::batch::{Batch, same};
use super::drive::{drive, open};
use super::produce::{Produce, report};
use super::template::Template;
use super::topic::Topic;
use super::{Batches, Clients, MessageBytes, Messages, check_batch, check_topic};
use crate::Failure;

/// The options of `load consume`.
#[derive(Args, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// How many consumers, each with a connection and a partition of its own.
    #[arg(long, value_name = "N")]
    consumers: Clients,
    /// Messages of a batch: so many are appended at once before the run, and polled at once.
    #[arg(long, value_name = "M")]
    messages: Messages,
    /// The length of a message, without its header.
    #[arg(long, value_name = "BYTES")]
    bytes: MessageBytes,
    /// How many batches each partition has. Each consumer reads all of them, once; all are measured.
    #[arg(long, value_name = "N")]
    batches: Batches,
    /// Reads them again and again for so long.
    #[arg(long, value_name = "S")]
    pub(crate) seconds: Option<NonZeroSeconds>,
    /// The time before that.
    #[arg(long, value_name = "S", default_value_t = WARM_UP)]
    #[serde(default = "options::warm_up")]
    pub(crate) warm_up: Seconds,
    /// How long to wait while no poll is answered, and for the answer to any other request.
    #[arg(long, value_name = "S", default_value_t = PATIENCE)]
    #[serde(default = "options::patience")]
    pub(crate) patience: NonZeroSeconds,
    #[command(flatten)]
    #[serde(skip)]
    access: Access,
}

impl Options {
    /// Appends what is to be read, reads it and prints the report.
    ///
    /// # Errors
    /// When there was no run, or not all could be appended; what happens to connections in a run is in the report.
    pub fn run(&self, target: &Target) -> Result<Report, Failure> {
        self.check().map_err(Failure::new)?;
        let (consumers, patience) = (self.consumers.count(), self.patience.get());
        target.prepare(consumers)?;
        let login = self.access.login()?;
        let mut topic = Topic::create(target, &login, patience, consumers as u32)?;
        let batch = Batch::new(self.messages.count(), self.bytes.count());
        self.append(target, &topic, Produce::new(target.wire(), &login, &topic.id(), &batch))?;
        let consume = Consume::new(target.wire(), &login, &topic.id(), batch, self.batches);
        if target.windows {
            let in_flight = 1;
            let options =
                Loop { connections: consumers, in_flight, patience, ramp: Duration::ZERO };
            return windows::run(&options, target, consume, &mut topic);
        }
        let mut session = open(target, consume, consumers, patience)?;
        let now = session.clock.now();
        let (mut window, limit) = match self.seconds {
            None => (Window::new(now, u64::MAX, target), self.batches.get()),
            Some(seconds) => {
                let start = now + ns(self.warm_up.get());
                (Window::new(start, start + ns(seconds.get()), target), u64::MAX)
            }
        };
        let latency = drive(&mut session, &mut window, limit, patience)?;
        let stats = window.finish(session.clock, &session.tally);
        session.linger()?;
        topic.at_end(&mut session)?;
        session.close_all("not answered");
        report(stats, &latency, &session, (self.messages, self.bytes)).finish(target)
    }

    /// Whether the options fit together.
    pub(crate) fn check(&self) -> Result<(), String> {
        check_batch(self.messages, self.bytes)?;
        check_topic(self.batches.get() * self.consumers.get(), self.messages, self.bytes)
    }

    /// Appends all batches, and checks that they are there.
    fn append(&self, target: &Target, topic: &Topic<'_>, produce: Produce) -> Result<(), Failure> {
        let (consumers, patience) = (self.consumers.count(), self.patience.get());
        let mut session = open(target, produce, consumers, patience)?;
        let mut all = Window::new(u64::MAX, u64::MAX, target);
        drive(&mut session, &mut all, self.batches.get(), patience)?;
        let messages = self.batches.get() * self.messages.get();
        if let Some(wrong) = &session.tally.wrong_answer {
            return Err(Failure::new(format!("cannot append what is to be read: {wrong}")));
        }
        if let Some((kind, _)) = session.tally.errors.first_key_value() {
            return Err(Failure::new(format!("cannot append what is to be read: {kind}")));
        }
        match topic.find_wrong(&vec![Some(messages); consumers])? {
            None => Ok(()),
            Some(wrong) => Err(Failure::new(format!("cannot append what is to be read: {wrong}"))),
        }
    }
}

impl Upkeep<Consume> for Topic<'_> {
    fn at_end(&mut self, _session: &mut Session<Consume>) -> Result<(), Failure> {
        self.delete()
    }
}

/// The bytes of an answer before the messages: status and length, then partition, last offset and number of messages.
const HEAD_BYTES: usize = ResponseFrame::HEADER_SIZE + 16;

/// Polls of the partition that has the connection's number, from its first batch to its last, and again.
#[derive(Debug)]
struct Consume {
    login: Vec<u8>,
    request: Template,
    /// Places in the request.
    partition_at: usize,
    offset_at: usize,
    batch: Batch,
    /// Batches of a partition.
    batches: u64,
}

impl Consume {
    fn new(
        wire: Wire,
        login: &Bytes,
        topic: &WireIdentifier,
        batch: Batch,
        batches: Batches,
    ) -> Self {
        let consumer = WireConsumer::consumer(WireIdentifier::numeric(1));
        let consumer_bytes = consumer.encoded_size();
        let request = PollMessagesRequest {
            consumer,
            stream_id: topic.clone(),
            topic_id: topic.clone(),
            partition_id: Some(0),
            strategy: WirePollingStrategy::offset(0),
            count: batch.messages() as u32,
            auto_commit: false,
        };
        let request = super::control::frame(POLL_MESSAGES_CODE, &request.to_bytes());
        // Whether there is a partition, a byte, comes before it; the kind of strategy, a byte, between it and the offset.
        let partition_at =
            RequestFrame::HEADER_SIZE + consumer_bytes + 2 * topic.encoded_size() + 1;
        Self {
            login: Template::new(wire, login).bytes().to_vec(),
            request: Template::new(wire, &request),
            partition_at,
            offset_at: partition_at + 4 + 1,
            batch,
            batches: batches.get(),
        }
    }

    /// The offset of the first message of a poll.
    fn first(&self, message: u64) -> u64 {
        message % self.batches * self.batch.messages() as u64
    }

    /// The answer to any poll of a partition, before the messages.
    fn head(&self, partition: u32) -> [u8; HEAD_BYTES] {
        let messages = self.batch.messages() as u64;
        let last_offset = self.batches * messages - 1;
        let len = (HEAD_BYTES - ResponseFrame::HEADER_SIZE + self.batch.bytes()) as u32;
        let mut bytes = [0; HEAD_BYTES];
        bytes[..4].copy_from_slice(&STATUS_OK.to_le_bytes());
        bytes[4..8].copy_from_slice(&len.to_le_bytes());
        bytes[8..12].copy_from_slice(&partition.to_le_bytes());
        bytes[12..20].copy_from_slice(&last_offset.to_le_bytes());
        bytes[20..].copy_from_slice(&(messages as u32).to_le_bytes());
        bytes
    }
}

impl Exchange for Consume {
    fn login(&self) -> Option<&[u8]> {
        Some(&self.login)
    }

    fn request_bytes(&self) -> u64 {
        self.request.bytes().len() as u64
    }

    fn answer_bytes(&self) -> u64 {
        (HEAD_BYTES + self.batch.bytes()) as u64
    }

    fn fill(&self, connection: u32, message: u64, offset: u64, out: &mut [u8]) {
        self.request.copy(offset, out);
        self.request.put(out, offset, self.partition_at, connection.to_le_bytes());
        self.request.put(out, offset, self.offset_at, self.first(message).to_le_bytes());
    }

    fn matches(&self, connection: u32, message: u64, offset: u64, got: &[u8]) -> bool {
        let place = offset as usize;
        let in_head = HEAD_BYTES.saturating_sub(place).min(got.len());
        let (head, messages) = got.split_at(in_head);
        let at = place.saturating_sub(HEAD_BYTES);
        (head.is_empty() || same(head, place, 0, &self.head(connection)))
            && self.batch.matches(connection, self.first(message), at, messages)
    }
}

#[cfg(test)]
mod tests {
    use iggy_binary_protocol::WireDecode;
    use iggy_binary_protocol::responses::messages::PollMessagesResponseHeader;

    use super::*;

    fn consume(wire: Wire) -> Consume {
        let topic = WireIdentifier::named("topic").unwrap();
        let login = Bytes::from_static(b"me");
        Consume::new(wire, &login, &topic, Batch::new(3, 20), Batches::of::<4>())
    }

    #[test]
    fn polls_are_those_of_iggy_and_begin_again_behind_the_last() {
        let consume = consume(Wire::Tcp);
        for (message, first) in [(0, 0), (3, 9), (4, 0), (6, 6)] {
            let mut request = vec![0; consume.request_bytes() as usize];
            consume.fill(2, message, 0, &mut request);
            let (frame, _) = RequestFrame::decode(&request).unwrap();
            assert_eq!(frame.code, POLL_MESSAGES_CODE);
            let poll = PollMessagesRequest::decode_from(frame.payload).unwrap();
            assert_eq!(poll.strategy, WirePollingStrategy::offset(first));
            assert_eq!((poll.partition_id, poll.count, poll.auto_commit), (Some(2), 3, false));
        }
    }

    #[test]
    fn the_head_of_an_answer_is_that_of_iggy_and_every_byte_is_checked() {
        let consume = consume(Wire::WebSocket);
        let head = consume.head(2);
        let decoded = PollMessagesResponseHeader::decode_from(&head[8..]).unwrap();
        let expected =
            PollMessagesResponseHeader { partition_id: 2, current_offset: 11, messages_count: 3 };
        assert_eq!(decoded, expected);
        let len = u32::from_le_bytes(*head[4..].first_chunk().unwrap());
        assert_eq!(consume.answer_bytes(), 8 + u64::from(len));
        for cut in 0..HEAD_BYTES {
            assert!(consume.matches(2, 5, 0, &head[..cut]));
            let mut wrong = head[cut..].to_vec();
            assert!(consume.matches(2, 5, cut as u64, &wrong));
            wrong[0] ^= 1;
            assert!(!consume.matches(2, 5, cut as u64, &wrong), "byte {cut}");
        }
    }
}
