//! Sink: each message is answered by its length, eight bytes, little-endian.

use std::io;
use std::time::Instant;

use owned_io::{ByteStream, OwnedRead, OwnedWrite, OwnedWriteExt, Runtime, coop, timeout};

use super::message::{or_abort, too_long};
use crate::context::{Context, Resources};
use crate::watch::Activity;

/// Serves one connection until its peer ends it.
///
/// What is in one read is answered by one write. The bytes of a message are counted as they arrive,
/// and kept no longer than the read that brought them: nothing is allocated for what is announced.
///
/// # Errors
/// The connection's; [`InvalidData`](io::ErrorKind::InvalidData) for a message over the limit;
/// [`TimedOut`](io::ErrorKind::TimedOut) when it does not arrive in time, or its answer is not taken, or the
/// [watch](crate::watch) ended the connection;
/// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) when the stream ends within it.
pub async fn serve<R: Runtime>(stream: impl ByteStream, ctx: &Context) -> io::Result<()> {
    let activity = ctx.connection.watched();
    let served = answer_each::<R>(stream, &ctx.worker, &activity).await;
    activity.outcome(served)
}

async fn answer_each<R: Runtime>(
    stream: impl ByteStream,
    Resources { pool, limits, .. }: &Resources,
    activity: &Activity,
) -> io::Result<()> {
    let connection = stream.shutdown_handle();
    let (mut read, mut write) = stream.into_split();
    let mut receiver = Receiver::new(limits.message_bytes_max);
    let mut answers = Vec::new();
    let mut deadline: Option<Instant> = None;
    loop {
        let buf = match deadline {
            None => read.read_pooled(pool).await?,
            Some(deadline) => {
                let left = deadline.saturating_duration_since(R::now());
                timeout::<R, _>(left, &connection, read.read_pooled(pool)).await?
            }
        };
        if buf.is_empty() {
            if receiver.is_within_message() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let _ = write.shutdown().await; // as after an echo
            return Ok(());
        }
        activity.read();
        let mut left = &buf[..];
        // Each round but the last fills the answers, or takes what a turn may take.
        while !left.is_empty() {
            coop::yield_if_exhausted::<R>().await;
            let done = receiver.receive(&mut left, &mut answers)?;
            if !receiver.is_within_message() {
                deadline = None;
            } else if done || deadline.is_none() {
                deadline = Some(R::now() + limits.message_time_max);
            }
            if !answers.is_empty() {
                let written = write.write_all(answers);
                let written = timeout::<R, _>(limits.message_time_max, &connection, written).await;
                ((), answers) = or_abort(written, &connection)?;
                answers.clear();
            }
        }
    }
}

/// The most bytes of answers that one write takes, and that a peer can leave unread here.
const ANSWERS_BYTES_MAX: usize = 8 * 1024;

/// Finds the messages in what arrives.
struct Receiver {
    bytes_max: usize,
    /// The length's bytes that are there.
    header: [u8; 4],
    header_len: usize,
    /// Of the message whose length is there: its length, and what is missing of it.
    message: Option<(usize, usize)>,
}

impl Receiver {
    const fn new(bytes_max: usize) -> Self {
        Self { bytes_max, header: [0; 4], header_len: 0, message: None }
    }

    const fn is_within_message(&self) -> bool {
        self.header_len > 0 || self.message.is_some()
    }

    /// Takes the first of `bytes`, adds an answer for each message that they complete, and says whether
    /// there was one. It takes all of them, unless there are [`ANSWERS_BYTES_MAX`] of answers or the turn is
    /// over.
    fn receive(&mut self, bytes: &mut &[u8], answers: &mut Vec<u8>) -> io::Result<bool> {
        let before = answers.len();
        loop {
            let Some((len, missing)) = self.message else {
                if bytes.is_empty() || answers.len() >= ANSWERS_BYTES_MAX || !coop::has_budget() {
                    break;
                }
                coop::consume(coop::cost::sink_message());
                *bytes = self.receive_header(bytes)?;
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

    fn receive_header<'a>(&mut self, bytes: &'a [u8]) -> io::Result<&'a [u8]> {
        let n = bytes.len().min(4 - self.header_len);
        self.header[self.header_len..][..n].copy_from_slice(&bytes[..n]);
        self.header_len += n;
        if self.header_len == 4 {
            self.header_len = 0;
            let len = u32::from_le_bytes(self.header) as usize;
            if len > self.bytes_max {
                return Err(too_long());
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
    fn messages_are_found_wherever_they_are_cut() {
        let mut stream = Vec::new();
        let lens = [0_u32, 1, 5, 0, 300, 4];
        for len in lens {
            stream.extend_from_slice(&len.to_le_bytes());
            stream.resize(stream.len() + len as usize, 7);
        }
        let expected: Vec<u8> = lens.iter().flat_map(|len| u64::from(*len).to_le_bytes()).collect();
        for cut in 1..stream.len() {
            let mut receiver = Receiver::new(300);
            let mut answers = Vec::new();
            for mut part in stream.chunks(cut) {
                while !part.is_empty() {
                    coop::refill();
                    receiver.receive(&mut part, &mut answers).unwrap();
                }
            }
            assert!(!receiver.is_within_message());
            assert_eq!(answers, expected, "cut every {cut} bytes");
        }
    }

    #[test]
    fn what_is_too_long_is_refused_and_answers_are_bounded() {
        let mut answers = Vec::new();
        let error = Receiver::new(80).receive(&mut &[81, 0, 0, 0][..], &mut answers).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        coop::refill();
        let empty = vec![0; 64 * 1024];
        let mut left = &empty[..];
        Receiver::new(80).receive(&mut left, &mut answers).unwrap();
        assert_eq!((answers.len(), left.len()), (ANSWERS_BYTES_MAX, (64 - 4) * 1024));
    }
}
