//! `load produce`: sends batches of messages, and waits for the answer to each.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use clap::{ArgGroup, Args};
use iggy_binary_protocol::codes::SEND_MESSAGES_CODE;
use iggy_binary_protocol::message_layout::MSG_ID_OFFSET;
use iggy_binary_protocol::requests::messages::SendMessagesEncoder;
use iggy_binary_protocol::{RequestFrame, WireEncode, WireIdentifier, WirePartitioning};
use serde::{Deserialize, Serialize};

use super::super::bounds::{NonZeroSeconds, Seconds};
use super::super::exchange::{Exchange, Wire};
use super::super::histogram::Histogram;
use super::super::options::{self, PATIENCE, Target, WARM_UP};
use super::super::pace::ns;
use super::super::report::{Batches as BatchReport, Report};
use super::super::session::Session;
use super::super::window::{Window, WindowStats};
use super::super::windows::{self, Loop, Upkeep};
use super::access::Access;
use super::batch::{Batch, HEADER_BYTES, Identity};
use super::drive::{drive, open};
use super::template::Template;
use super::topic::Topic;
use super::{
    Batches, Clients, MessageBytes, Messages, TOPIC_BYTES_MAX, batch_bytes, check_batch,
    check_topic,
};
use crate::Failure;

/// With windows, the topic is created again after a window if so many bytes were appended to it. Any number of windows
/// then takes little of the disk, and what one server has not written yet does not slow down the next.
const RECREATE_BYTES: u64 = 64 << 20;

/// The options of `load produce`.
#[derive(Args, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[command(group(ArgGroup::new("end").required(true)))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// How many producers, each with a connection and a partition of its own.
    #[arg(long, value_name = "N")]
    producers: Clients,
    /// Messages of a batch.
    #[arg(long, value_name = "M")]
    messages: Messages,
    /// The length of a message, without its header.
    #[arg(long, value_name = "BYTES")]
    bytes: MessageBytes,
    /// How many batches each producer sends. All are measured.
    #[arg(long, value_name = "N", group = "end")]
    pub(crate) batches: Option<Batches>,
    /// Sends batches for so long.
    #[arg(long, value_name = "S", group = "end")]
    pub(crate) seconds: Option<NonZeroSeconds>,
    /// The time before that.
    #[arg(long, value_name = "S", default_value_t = WARM_UP)]
    #[serde(default = "options::warm_up")]
    pub(crate) warm_up: Seconds,
    /// How long to wait while no batch is answered, and for the answer to any other request.
    #[arg(long, value_name = "S", default_value_t = PATIENCE)]
    #[serde(default = "options::patience")]
    pub(crate) patience: NonZeroSeconds,
    #[command(flatten)]
    #[serde(skip)]
    access: Access,
}

impl Options {
    /// Runs it and prints the report.
    ///
    /// # Errors
    /// When there was no run, or the server did not say what it has at the end; what happens to connections in a run is in
    /// the report.
    pub fn run(&self, target: &Target) -> Result<Report, Failure> {
        self.check().map_err(Failure::new)?;
        let (producers, patience) = (self.producers.count(), self.patience.get());
        target.prepare(producers)?;
        let login = self.access.login()?;
        let topic = Topic::create(target, &login, patience, producers as u32)?;
        let batch = Batch::new(self.messages.count(), self.bytes.count());
        let produce = Produce::new(target.wire(), &login, &topic.id(), &batch);
        let mut appended = Appended::new(topic, self.messages, self.bytes);
        if target.windows {
            let in_flight = 1;
            let options =
                Loop { connections: producers, in_flight, patience, ramp: Duration::ZERO };
            return windows::run(&options, target, produce, &mut appended);
        }
        let mut session = open(target, produce, producers, patience)?;
        let (mut window, limit) = self.window(session.clock.now(), target);
        let latency = drive(&mut session, &mut window, limit, patience)?;
        let stats = window.finish(session.clock, &session.tally);
        session.linger()?;
        appended.at_end(&mut session)?;
        session.close_all("not answered");
        report(stats, &latency, &session, (self.messages, self.bytes)).finish(target)
    }

    /// Whether the options fit together.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.batches.is_some() == self.seconds.is_some() {
            return Err("produce ends after --batches or after --seconds: say one".to_owned());
        }
        check_batch(self.messages, self.bytes)?;
        let batches = self.batches.map_or(0, Batches::get) * self.producers.get();
        check_topic(batches, self.messages, self.bytes)
    }

    /// What is measured, and how many batches each producer sends at most.
    fn window(&self, now: u64, target: &Target) -> (Window, u64) {
        let Some(seconds) = self.seconds else {
            return (Window::new(now, u64::MAX, target), self.batches.map_or(1, Batches::get));
        };
        let start = now + ns(self.warm_up.get());
        let all = TOPIC_BYTES_MAX / batch_bytes(self.messages, self.bytes);
        let limit = (all / self.producers.get()).max(1);
        (Window::new(start, start + ns(seconds.get()), target), limit)
    }
}

/// The report of a run of batches.
pub(super) fn report<E: Exchange>(
    stats: WindowStats,
    latency: &Histogram,
    session: &Session<E>,
    (messages, bytes): (Messages, MessageBytes),
) -> Report {
    let mut report = Report::new(stats.seconds, session.connections() as u64, &session.tally);
    report.messages = Some(stats.messages(session, None));
    report.batches = Some(BatchReport {
        messages: messages.get(),
        bytes: bytes.get(),
        messages_per_s: stats.per_s(stats.received * messages.get()),
        payload_mib_per_s: stats.per_s(stats.received * messages.get() * bytes.get())
            / f64::from(1 << 20),
    });
    report.latency_us = latency.percentiles();
    report.curve = latency.curve();
    report.client = stats.client;
    report.server = stats.server;
    report
}

/// Requests to append a batch to the partition that has the connection's number.
#[derive(Debug)]
pub(super) struct Produce {
    login: Vec<u8>,
    request: Template,
    /// Places in the request.
    partition_at: usize,
    messages_at: usize,
    message_bytes: usize,
    messages: usize,
}

impl Produce {
    pub(super) fn new(wire: Wire, login: &Bytes, topic: &WireIdentifier, batch: &Batch) -> Self {
        let messages = batch.raw();
        let mut request = BytesMut::new();
        let partitioning = WirePartitioning::PartitionId(0);
        SendMessagesEncoder::encode(&mut request, topic, topic, &partitioning, &messages);
        let request = super::control::frame(SEND_MESSAGES_CODE, &request);
        // The length of the head, stream and topic; the kind and the length of the partitioning.
        let partition_at = RequestFrame::HEADER_SIZE + 4 + 2 * topic.encoded_size() + 2;
        Self {
            login: Template::new(wire, login).bytes().to_vec(),
            messages_at: request.len() - batch.bytes(),
            request: Template::new(wire, &request),
            partition_at,
            message_bytes: batch.message_bytes(),
            messages: batch.messages(),
        }
    }
}

impl Exchange for Produce {
    fn login(&self) -> Option<&[u8]> {
        Some(&self.login)
    }

    fn request_bytes(&self) -> u64 {
        self.request.bytes().len() as u64
    }

    fn answer_bytes(&self) -> u64 {
        APPENDED.len() as u64
    }

    fn fill(&self, connection: u32, message: u64, offset: u64, out: &mut [u8]) {
        let Self { request, partition_at, messages_at, message_bytes, messages, .. } = self;
        request.copy(offset, out);
        request.put(out, offset, *partition_at, connection.to_le_bytes());
        let (begin, end) = request.part(offset, out.len());
        let first = begin.saturating_sub(*messages_at) / message_bytes;
        let last = end.saturating_sub(*messages_at).div_ceil(*message_bytes);
        for index in first.min(*messages)..last.min(*messages) {
            let Identity { id, number } =
                Identity::of(connection, message * *messages as u64 + index as u64);
            let at = messages_at + index * message_bytes;
            request.put(out, offset, at + MSG_ID_OFFSET, id);
            request.put(out, offset, at + HEADER_BYTES, number);
        }
    }

    fn matches(&self, _connection: u32, _message: u64, offset: u64, got: &[u8]) -> bool {
        *got == APPENDED[offset as usize..][..got.len()]
    }
}

/// The answer to a batch: the status of success, and no payload.
const APPENDED: [u8; 8] = [0; 8];

/// What was appended to the topic.
struct Appended<'a> {
    topic: Topic<'a>,
    messages: Messages,
    batch_bytes: u64,
    /// How many batches of each producer were acknowledged before the topic was created for the last time.
    before: Vec<u64>,
}

impl<'a> Appended<'a> {
    fn new(topic: Topic<'a>, messages: Messages, bytes: MessageBytes) -> Self {
        let batch_bytes = batch_bytes(messages, bytes);
        Self { topic, messages, batch_bytes, before: Vec::new() }
    }

    /// The batches of each producer that were acknowledged and are in the topic. None of one whose connection is over: its
    /// last batch may have been appended or not.
    fn batches(&self, session: &Session<Produce>) -> Vec<Option<u64>> {
        let before = |index: usize| self.before.get(index).copied().unwrap_or(0);
        (0..session.connections()).map(|it| Some(session.answers(it)? - before(it))).collect()
    }

    /// Compares what the topic has with what was acknowledged.
    fn compare(&self, session: &mut Session<Produce>) -> Result<(), Failure> {
        let messages = |batches: u64| batches * self.messages.get();
        let batches = self.batches(session).into_iter();
        let acknowledged: Vec<_> = batches.map(|batches| batches.map(messages)).collect();
        let wrong = self.topic.find_wrong(&acknowledged)?;
        // It counts like a connection with a wrong answer.
        wrong.into_iter().for_each(|sentence| session.tally.wrong(sentence));
        Ok(())
    }
}

impl Upkeep<Produce> for Appended<'_> {
    fn after_window(&mut self, session: &mut Session<Produce>) -> Result<bool, Failure> {
        let appended: u64 = self.batches(session).into_iter().flatten().sum();
        if appended * self.batch_bytes < RECREATE_BYTES {
            return Ok(false);
        }
        self.compare(session)?;
        self.topic.recreate()?;
        let answers = |index| session.answers(index).unwrap_or(0);
        self.before = (0..session.connections()).map(answers).collect();
        Ok(true)
    }

    fn at_end(&mut self, session: &mut Session<Produce>) -> Result<(), Failure> {
        self.compare(session)?;
        self.topic.delete()
    }
}

#[cfg(test)]
mod tests {
    use iggy_binary_protocol::requests::messages::SendMessagesHeader;
    use iggy_binary_protocol::{WireDecode, WireMessageIterator};

    use super::super::super::frames::{self, FrameHeader};
    use super::*;

    fn filled(produce: &Produce, message: u64, cut: usize) -> Vec<u8> {
        let mut request = vec![0; produce.request_bytes() as usize];
        for (index, part) in request.chunks_mut(cut).enumerate() {
            produce.fill(2, message, (index * cut) as u64, part);
        }
        request
    }

    #[test]
    fn a_request_is_one_of_iggy_wherever_it_is_cut() {
        let topic = WireIdentifier::named("topic").unwrap();
        let batch = Batch::new(3, 20);
        for wire in [Wire::Tcp, Wire::WebSocket] {
            let produce = Produce::new(wire, &Bytes::from_static(b"me"), &topic, &batch);
            let whole = filled(&produce, 7, usize::MAX);
            for cut in 1..whole.len() {
                assert_eq!(filled(&produce, 7, cut), whole, "cut every {cut}");
            }
            let mut request = whole;
            if wire == Wire::WebSocket {
                let header = FrameHeader::of_client(request.len() as u64 - 8);
                assert!(request.starts_with(header.as_slice()));
                request.drain(..header.as_slice().len());
                frames::mask(&mut request);
            }
            let (frame, len) = RequestFrame::decode(&request).unwrap();
            assert_eq!((frame.code, len), (SEND_MESSAGES_CODE, request.len()));
            let (head, head_len) = SendMessagesHeader::decode(&frame.payload[4..]).unwrap();
            assert_eq!((&head.stream_id, &head.topic_id), (&topic, &topic));
            assert_eq!(head.partitioning, WirePartitioning::PartitionId(2));
            let messages = &frame.payload[4 + head_len + 3 * 16..];
            for (n, message) in (21..).zip(WireMessageIterator::new(messages, 3)) {
                let (message, Identity { id, number }) = (message.unwrap(), Identity::of(2, n));
                assert_eq!(message.id(), u128::from_le_bytes(id));
                assert_eq!(message.payload()[..8], number);
                assert_eq!(message.payload().len(), 20);
            }
        }
    }
}
