//! Sink: answers each message with its length, in eight bytes, little-endian.

use std::io;
use std::time::Instant;

use owned_io::{ByteStream, OwnedRead, OwnedWrite, OwnedWriteExt, Runtime, coop, shutdown_after};

use super::message::{UNRESERVED_BYTES, message_too_long, reset_on_timeout};
use crate::context::{Context, Resources};
use crate::watch::Activity;

/// Serves one connection until its peer ends it.
///
/// The messages of one read are answered by one write. The bytes of a message are counted as they arrive, and dropped
/// with the buffer of their read. Nothing is allocated for the announced length.
///
/// # Errors
/// Errors of the connection. [`InvalidData`](io::ErrorKind::InvalidData) for a message over the limit.
/// [`TimedOut`](io::ErrorKind::TimedOut) if a message does not arrive in time, if the peer does not read its answer in
/// time, or if the [watch](crate::watch) ended the connection. [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the
/// stream ends within a message.
pub async fn serve<R: Runtime>(stream: impl ByteStream, ctx: &Context) -> io::Result<()> {
    let activity = ctx.connection.watched();
    let served = answer_messages::<R>(stream, &ctx.worker, &activity).await;
    activity.outcome(served)
}

async fn answer_messages<R: Runtime>(
    stream: impl ByteStream,
    Resources { pool, limits, metrics, .. }: &Resources,
    activity: &Activity,
) -> io::Result<()> {
    let flow = &metrics.traffic.sink_tcp;
    let connection = stream.shutdown_handle();
    let (mut read, mut write) = stream.into_split();
    let mut decoder = Decoder::new(limits.message_bytes_max);
    let mut answers = Vec::new();
    let mut deadline: Option<Instant> = None;
    loop {
        let buf = match deadline {
            None => read.read_pooled(pool).await?,
            Some(deadline) => {
                let left = deadline.saturating_duration_since(R::now());
                shutdown_after::<R, _>(left, &connection, read.read_pooled(pool)).await?
            }
        };
        if buf.is_empty() {
            if decoder.is_within_message() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            activity.begin_answer();
            let _ = write.shutdown().await; // the FIN, over TLS behind a close_notify; an error: the peer is gone
            return Ok(());
        }
        activity.begin_wait();
        flow.receive_bytes(buf.len());
        let mut left = &buf[..];
        // Each iteration but the last fills `answers`, or uses up the budget of the poll.
        while !left.is_empty() {
            coop::yield_if_exhausted::<R>().await;
            let done = decoder.decode(&mut left, &mut answers)?;
            if !decoder.is_within_message() {
                deadline = None;
            } else if done || deadline.is_none() {
                deadline = Some(R::now() + limits.message_time_max);
            }
            if !answers.is_empty() {
                let messages = (answers.len() / ANSWER_BYTES) as u64;
                flow.receive(messages, 0);
                flow.send(messages, answers.len());
                let written = write.write_all(answers);
                let written =
                    shutdown_after::<R, _>(limits.message_time_max, &connection, written).await;
                ((), answers) = reset_on_timeout(written, &connection)?;
                answers.clear();
            }
        }
    }
}

/// The length of an answer.
const ANSWER_BYTES: usize = size_of::<u64>();

/// The most bytes of answers in one write. A peer that reads nothing can make the worker hold as many.
const ANSWERS_BYTES_MAX: usize = UNRESERVED_BYTES;

/// Decodes the messages in the bytes that arrive.
struct Decoder {
    bytes_max: usize,
    /// The length field, of which `header_len` bytes have arrived.
    header: [u8; 4],
    header_len: usize,
    /// The length of the present message, and how many of its bytes are missing. None until the length has arrived.
    message: Option<(usize, usize)>,
}

impl Decoder {
    const fn new(bytes_max: usize) -> Self {
        Self { bytes_max, header: [0; 4], header_len: 0, message: None }
    }

    const fn is_within_message(&self) -> bool {
        self.header_len > 0 || self.message.is_some()
    }

    /// Decodes `bytes` from the front, and adds an answer for each message that is complete. Returns whether one was
    /// complete. It stops early if there are [`ANSWERS_BYTES_MAX`] of answers, or if the budget of the poll is used up.
    fn decode(&mut self, bytes: &mut &[u8], answers: &mut Vec<u8>) -> io::Result<bool> {
        let before = answers.len();
        loop {
            let Some((len, missing)) = self.message else {
                if bytes.is_empty() || answers.len() >= ANSWERS_BYTES_MAX || !coop::has_budget() {
                    break;
                }
                coop::consume(coop::cost::sink_message());
                *bytes = self.decode_len(bytes)?;
                continue;
            };
            let n = missing.min(bytes.len());
            *bytes = &bytes[n..];
            if n < missing {
                self.message = Some((len, missing - n));
                break;
            }
            answers.extend_from_slice(&(len as u64).to_le_bytes());
            self.message = None;
        }
        Ok(answers.len() > before)
    }

    fn decode_len<'a>(&mut self, bytes: &'a [u8]) -> io::Result<&'a [u8]> {
        let n = bytes.len().min(4 - self.header_len);
        self.header[self.header_len..][..n].copy_from_slice(&bytes[..n]);
        self.header_len += n;
        if self.header_len == 4 {
            self.header_len = 0;
            let len = u32::from_le_bytes(self.header) as usize;
            if len > self.bytes_max {
                return Err(message_too_long());
            }
            self.message = Some((len, len));
        }
        Ok(&bytes[n..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_decoded_wherever_they_are_cut() {
        let mut stream = Vec::new();
        let lens = [0_u32, 1, 5, 0, 300, 4];
        for len in lens {
            stream.extend_from_slice(&len.to_le_bytes());
            stream.resize(stream.len() + len as usize, 7);
        }
        let expected: Vec<u8> = lens.iter().flat_map(|len| u64::from(*len).to_le_bytes()).collect();
        for cut in 1..stream.len() {
            let mut decoder = Decoder::new(300);
            let mut answers = Vec::new();
            for mut part in stream.chunks(cut) {
                while !part.is_empty() {
                    coop::refill();
                    decoder.decode(&mut part, &mut answers).unwrap();
                }
            }
            assert!(!decoder.is_within_message());
            assert_eq!(answers, expected, "cut every {cut} bytes");
        }
    }

    #[test]
    fn too_long_messages_are_refused_and_answers_are_bounded() {
        let mut answers = Vec::new();
        let error = Decoder::new(80).decode(&mut &[81, 0, 0, 0][..], &mut answers).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        coop::refill();
        let empty = vec![0; 64 * 1024];
        let mut left = &empty[..];
        Decoder::new(80).decode(&mut left, &mut answers).unwrap();
        assert_eq!((answers.len(), left.len()), (ANSWERS_BYTES_MAX, (64 - 2) * 1024));
    }
}
