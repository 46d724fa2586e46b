//! One WebSocket without I/O: bytes that arrive, and the answers to them.

use std::mem;
use std::time::{Duration, Instant};

use owned_io_websocket::engine::{Engine, Event, State};
use owned_io_websocket::handshake::{Origins, Refusal, Request};
use owned_io_websocket::{Config, Fragment, MessageKind};
use peers_common::BUF_BYTES;

/// The longest head of a request.
const HEAD_BYTES_MAX: usize = 8 * 1024;

/// How long a head may take to arrive.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest message. Twice as much may be queued to be sent.
const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// The longest payload that is decoded where it was received, if it is received at once: that of a buffer, without a
/// header.
const WHOLE_FRAME_BYTES_MAX: usize = BUF_BYTES - 14;

pub(crate) struct Session {
    phase: Phase,
    /// What was received and is not decoded yet, without memory if there is nothing: less than a head, or than a frame of [`WHOLE_FRAME_BYTES_MAX`].
    partial: Vec<u8>,
}

/// The connection is to be ended at once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broken;

enum Phase {
    /// The request has not arrived completely.
    Head {
        since: Instant,
    },
    Open(Box<Open>),
    /// The answer was no upgrade.
    Refused,
}

struct Open {
    engine: Engine,
    /// The pieces of a message so far.
    message: Vec<u8>,
    /// The bytes of the handshake that are not written yet. They are ahead of those that the engine counts.
    handshake_bytes: usize,
}

impl Session {
    pub(crate) fn new(now: Instant) -> Self {
        Self { phase: Phase::Head { since: now }, partial: Vec::new() }
    }

    /// Appends the answers to what was received to `out`. Changes `received`, which is unmasked in place.
    pub(crate) fn receive(
        &mut self,
        received: &mut [u8],
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Result<(), Broken> {
        if self.partial.is_empty() {
            let consumed = self.decode(received, now, out)?;
            self.partial.extend_from_slice(&received[consumed..]);
            return Ok(());
        }
        let mut partial = mem::take(&mut self.partial);
        partial.extend_from_slice(received);
        let consumed = self.decode(&mut partial, now, out)?;
        if consumed < partial.len() {
            drop(partial.drain(..consumed));
            self.partial = partial;
        }
        Ok(())
    }

    /// The next receive begins after a pause.
    pub(crate) fn resume(&self, now: Instant) {
        if let Phase::Open(open) = &self.phase {
            open.engine.control.handle_read_start(now);
        }
    }

    /// So many bytes of the answers were sent.
    pub(crate) fn sent(&mut self, bytes: usize, now: Instant) {
        if let Phase::Open(open) = &mut self.phase {
            let of_handshake = bytes.min(open.handshake_bytes);
            open.handshake_bytes -= of_handshake;
            let Engine { sender, control, .. } = &mut open.engine;
            sender.handle_written(control, bytes - of_handshake, now);
        }
    }

    /// The peer does not take all answers at present.
    pub(crate) fn blocked(&self, now: Instant) {
        if let Phase::Open(open) = &self.phase {
            open.engine.control.handle_write_blocked(now);
        }
    }

    /// Handles what is due: pings, and timeouts.
    pub(crate) fn tick(&mut self, now: Instant, out: &mut Vec<u8>) -> Result<(), Broken> {
        match &mut self.phase {
            Phase::Head { since } if now.saturating_duration_since(*since) < HEAD_TIMEOUT => {}
            Phase::Head { .. } => {
                Refusal::Late.encode(out);
                self.phase = Phase::Refused;
            }
            Phase::Open(open) => {
                let Engine { sender, control, .. } = &mut open.engine;
                if control.poll_timeout().is_some_and(|at| at <= now) {
                    let in_time = control.handle_timeout(now);
                    let has_frames = sender.poll_control(control, out);
                    if in_time.is_err() && !has_frames {
                        return Err(Broken);
                    }
                }
            }
            Phase::Refused => {}
        }
        Ok(())
    }

    /// Whether the stream is to be shut down once all answers are sent.
    pub(crate) fn is_over(&self) -> bool {
        match &self.phase {
            Phase::Head { .. } => false,
            Phase::Open(open) => open.engine.control.state() == State::Closed,
            Phase::Refused => true,
        }
    }

    /// The bytes of memory for what has arrived in part.
    pub(crate) fn held_bytes(&self) -> usize {
        let message = match &self.phase {
            Phase::Open(open) => open.message.capacity(),
            _ => 0,
        };
        self.partial.capacity() + message
    }

    /// Answers what is complete. Returns the length of it.
    fn decode(
        &mut self,
        bytes: &mut [u8],
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Result<usize, Broken> {
        let mut head_bytes = 0;
        if let Phase::Head { .. } = self.phase {
            let before = out.len();
            match upgrade(bytes, out) {
                Ok(None) => return Ok(0),
                Ok(Some(bytes)) => {
                    head_bytes = bytes;
                    self.phase = Phase::Open(Box::new(Open::new(now, out.len() - before)));
                }
                Err(refusal) => {
                    refusal.encode(out);
                    self.phase = Phase::Refused;
                }
            }
        }
        match &mut self.phase {
            Phase::Open(open) => Ok(head_bytes + open.echo(&mut bytes[head_bytes..], now, out)?),
            _ => Ok(bytes.len()),
        }
    }
}

impl Open {
    fn new(now: Instant, handshake_bytes: usize) -> Self {
        let mut config = Config::default();
        config.engine.message_bytes_max = MESSAGE_BYTES_MAX;
        config.engine.queue_bytes_max = 2 * MESSAGE_BYTES_MAX;
        let mut engine = Engine::server(config, now);
        engine.receiver.set_whole_frame_bytes_max(WHOLE_FRAME_BYTES_MAX);
        Self { engine, message: Vec::new(), handshake_bytes }
    }

    /// Answers each frame that is complete. Returns the length of them.
    fn echo(&mut self, bytes: &mut [u8], now: Instant, out: &mut Vec<u8>) -> Result<usize, Broken> {
        let Engine { receiver, sender, control } = &mut self.engine;
        control.handle_received(now);
        let mut at = 0;
        // An error queues the close frame. Later bytes are discarded.
        while let Ok(decoded) = receiver.decode(control, &mut bytes[at..]) {
            at += decoded.consumed;
            let (kind, payload) = match decoded.event {
                None => break,
                Some(Event::Text(text)) => (MessageKind::Text, text.as_bytes()),
                Some(Event::Binary(payload)) => (MessageKind::Binary, &*payload),
                Some(Event::Piece(piece)) => {
                    self.message.extend_from_slice(piece.payload);
                    if !piece.last {
                        continue;
                    }
                    (piece.kind, &*self.message)
                }
                Some(Event::Ping(_)) => {
                    sender.poll_control(control, out); // ahead of later messages
                    continue;
                }
                Some(Event::Pong(_) | Event::Close(_)) => continue,
            };
            // It fails if the queue is full, for a peer that does not read.
            sender.encode(control, Fragment::Whole(kind), payload, out).map_err(|_| Broken)?;
            if !self.message.is_empty() {
                self.message = Vec::new();
            }
        }
        sender.poll_control(control, out);
        control.handle_read_start(now); // the receive continues
        Ok(if control.failure().is_some() { bytes.len() } else { at })
    }
}

/// Answers the request if it has arrived completely. Returns the length of its head.
fn upgrade(bytes: &[u8], out: &mut Vec<u8>) -> Result<Option<usize>, Refusal> {
    let Some((request, head_bytes)) = Request::decode(bytes, HEAD_BYTES_MAX)? else {
        return Ok(None);
    };
    let accepted = request.upgrade(Origins::Any)?.accept(None, &[], out);
    debug_assert_eq!(accepted, Ok(()), "there are no further headers");
    Ok(Some(head_bytes))
}

#[cfg(test)]
mod tests {
    use owned_io_websocket::handshake::{Key, Offer};

    use super::*;

    const SWITCHING: &[u8] = b"HTTP/1.1 101 ";

    fn request() -> Vec<u8> {
        let mut request = Vec::new();
        let offer = Offer { host: "localhost", path: "/echo", ..Offer::default() };
        offer.encode(&Key::new([7; 16]), &mut request).unwrap();
        request
    }

    fn client() -> Engine {
        Engine::client(Config::default(), Instant::now(), |key| key.fill(9))
    }

    /// A session after the handshake.
    fn open() -> Session {
        let mut session = Session::new(Instant::now());
        assert!(answers(&mut session, &request()).starts_with(SWITCHING));
        session
    }

    /// The answers, all of which are sent at once.
    fn answers(session: &mut Session, received: &[u8]) -> Vec<u8> {
        let (now, mut out) = (Instant::now(), Vec::new());
        session.receive(&mut received.to_vec(), now, &mut out).unwrap();
        session.sent(out.len(), now);
        out
    }

    #[test]
    fn what_arrives_byte_by_byte_has_the_same_answers_as_at_once() {
        let mut client = client();
        let mut wire = request();
        let whole = [Fragment::Whole(MessageKind::Text), Fragment::Whole(MessageKind::Binary)];
        let parts = [Fragment::First(MessageKind::Text), Fragment::Middle, Fragment::Last];
        for (len, fragment) in [5, 200, 126, 0, 3].into_iter().zip(whole.into_iter().chain(parts)) {
            client.sender.encode(&client.control, fragment, &vec![b'x'; len], &mut wire).unwrap();
        }
        client.control.ping(b"there?").unwrap();
        client.sender.poll_control(&client.control, &mut wire);

        let at_once = answers(&mut Session::new(Instant::now()), &wire);
        let head = at_once.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
        let expected = [
            &b"\x81\x05xxxxx"[..],
            b"\x82\x7E\x00\xC8",
            &[b'x'; 200],
            b"\x81\x7E\x00\x81", // the parts in one frame
            &[b'x'; 129],
            b"\x8A\x06there?",
        ];
        assert_eq!(&at_once[head..], expected.concat());
        let mut session = Session::new(Instant::now());
        let one_by_one = wire.iter().flat_map(|byte| answers(&mut session, &[*byte]));
        assert_eq!(one_by_one.collect::<Vec<_>>(), at_once);
        assert!(!session.is_over());
    }

    #[test]
    fn a_frame_longer_than_a_buffer_is_put_together() {
        let (mut client, mut session) = (client(), open());
        let payload: Vec<u8> = (0..300_000_u32).map(|at| at as u8).collect();
        let (mut wire, fragment) = (Vec::new(), Fragment::Whole(MessageKind::Binary));
        client.sender.encode(&client.control, fragment, &payload, &mut wire).unwrap();
        let answers: Vec<u8> =
            wire.chunks(BUF_BYTES).flat_map(|chunk| answers(&mut session, chunk)).collect();
        assert_eq!(answers[..10], [0x82, 127, 0, 0, 0, 0, 0, 4, 0x93, 0xE0]);
        assert_eq!(answers[10..], payload);
        assert_eq!(session.held_bytes(), 0);
    }

    #[test]
    fn a_close_frame_and_a_violation_are_answered_and_end_the_session() {
        for (received, answer) in [
            (&b"\x88\x82\0\0\0\0\x03\xE8"[..], b"\x88\x02\x03\xE8"), // 1000: 1000
            (b"\x81\x01x more of it", b"\x88\x02\x03\xEA"),          // not masked: 1002
        ] {
            let mut session = open();
            assert_eq!(answers(&mut session, received), answer);
            assert!(session.is_over());
            assert_eq!(answers(&mut session, b"later bytes"), b"");
        }
    }

    #[test]
    fn no_upgrade_is_refused_and_so_is_a_head_that_is_long_or_late() {
        let mut long = b"GET / HTTP/1.1\r\nHost: ".to_vec();
        long.resize(2 * HEAD_BYTES_MAX, b'a');
        for (head, status) in [(&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], "426"), (&long, "431")] {
            let mut session = Session::new(Instant::now());
            let answer = String::from_utf8(answers(&mut session, head)).unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
            assert!(session.is_over());
        }
        let (began, mut out) = (Instant::now(), Vec::new());
        let mut session = Session::new(began);
        session.tick(began + HEAD_TIMEOUT / 2, &mut out).unwrap();
        assert_eq!((out.len(), session.is_over()), (0, false));
        session.tick(began + HEAD_TIMEOUT, &mut out).unwrap();
        assert!(out.starts_with(b"HTTP/1.1 408 ") && session.is_over());
    }

    #[test]
    fn a_peer_that_reads_nothing_is_ended() {
        let (mut client, mut session) = (client(), open());
        let (mut wire, fragment) = (Vec::new(), Fragment::Whole(MessageKind::Binary));
        client.sender.encode(&client.control, fragment, &[0; 1 << 20], &mut wire).unwrap();
        let (now, mut out) = (Instant::now(), Vec::new());
        let mut echoes = 0;
        while session.receive(&mut wire.clone(), now, &mut out).is_ok() {
            echoes += 1;
            assert!(echoes < 16, "only 16 MiB are queued");
        }
        assert_eq!(echoes, 15);
        session = open();
        session.receive(&mut wire, now, &mut out).unwrap();
        session.blocked(now);
        let is_broken = |seconds: &u64| {
            session.tick(now + Duration::from_secs(*seconds), &mut Vec::new()).is_err()
        };
        // Without a pong it is sooner than the 60 s that a write may take.
        assert!((0..=60).find(is_broken).is_some_and(|seconds| seconds > 30));
    }
}
