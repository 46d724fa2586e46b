//! Sink: each message is answered by its length, eight bytes, little-endian.

use std::io;
use std::time::Instant;

use owned_io::{ByteStream, OwnedRead, OwnedWrite, OwnedWriteExt, Pool, Runtime, timeout};

use super::message::{Announced, Budget, or_abort, too_long};
use crate::config::Limits;
use crate::watch::Activity;

/// Serves one connection until its peer ends it.
///
/// What is in one read is answered by one write. The bytes of a message are counted as they arrive,
/// and kept no longer than the read that brought them: nothing is allocated for what is announced.
///
/// # Errors
/// The connection's; [`InvalidData`](io::ErrorKind::InvalidData) for a message over the limit;
/// [`QuotaExceeded`](io::ErrorKind::QuotaExceeded) when `budget` does not allow it;
/// [`TimedOut`](io::ErrorKind::TimedOut) when it does not arrive in time, or its answer is not taken, or the
/// connection was ended by who watches `activity`;
/// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) when the stream ends within it.
pub async fn serve<R: Runtime>(
    stream: impl ByteStream,
    pool: Pool,
    limits: Limits,
    budget: Budget,
    activity: &Activity,
) -> io::Result<()> {
    let served = answer_each::<R>(stream, pool, limits, budget, activity).await;
    activity.outcome(served)
}

async fn answer_each<R: Runtime>(
    stream: impl ByteStream,
    pool: Pool,
    limits: Limits,
    budget: Budget,
    activity: &Activity,
) -> io::Result<()> {
    let connection = stream.shutdown_handle();
    let (mut read, mut write) = stream.into_split();
    let mut receiver = Receiver::new(limits.message_bytes_max, budget);
    let mut answers = Vec::new();
    let mut deadline: Option<Instant> = None;
    loop {
        let buf = match deadline {
            None => read.read_pooled(&pool).await?,
            Some(deadline) => {
                let left = deadline.saturating_duration_since(R::now());
                timeout::<R, _>(left, &connection, read.read_pooled(&pool)).await?
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
        let done = receiver.receive(&buf, &mut answers)?;
        drop(buf);
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

/// Finds the messages in what arrives.
struct Receiver {
    bytes_max: usize,
    budget: Budget,
    /// The length's bytes that are there.
    header: [u8; 4],
    header_len: usize,
    /// Of the message whose length is there: its length, and what is missing of it.
    message: Option<(usize, usize)>,
    /// What is committed to it.
    announced: Option<Announced>,
}

impl Receiver {
    const fn new(bytes_max: usize, budget: Budget) -> Self {
        Self { bytes_max, budget, header: [0; 4], header_len: 0, message: None, announced: None }
    }

    const fn is_within_message(&self) -> bool {
        self.header_len > 0 || self.message.is_some()
    }

    /// Takes `bytes`, adds an answer for each message that they complete, and says whether there
    /// was one.
    fn receive(&mut self, mut bytes: &[u8], answers: &mut Vec<u8>) -> io::Result<bool> {
        let before = answers.len();
        while !bytes.is_empty() || self.message.is_some_and(|(_, missing)| missing == 0) {
            let Some((len, missing)) = self.message else {
                bytes = self.receive_header(bytes)?;
                continue;
            };
            let n = missing.min(bytes.len());
            bytes = &bytes[n..];
            if n < missing {
                self.message = Some((len, missing - n));
                // Only now: what is here whole was never a promise.
                if self.announced.is_none() {
                    self.announced = Some(self.budget.commit(len)?);
                }
                break;
            }
            answers.extend_from_slice(&(len as u64).to_le_bytes());
            self.message = None;
            self.announced = None;
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
            let budget = Budget::new(300);
            let mut receiver = Receiver::new(300, budget.clone());
            let mut answers = Vec::new();
            for part in stream.chunks(cut) {
                receiver.receive(part, &mut answers).unwrap();
            }
            assert!(!receiver.is_within_message());
            assert_eq!(answers, expected, "cut every {cut} bytes");
            budget.commit(300).expect("everything is given back");
        }
    }

    #[test]
    fn what_is_announced_counts_and_what_is_too_long_is_refused() {
        let budget = Budget::new(100);
        let mut first = Receiver::new(80, budget.clone());
        let mut answers = Vec::new();
        assert!(!first.receive(&[60, 0, 0, 0, 1, 2], &mut answers).unwrap());
        let mut second = Receiver::new(80, budget.clone());
        let error = second.receive(&[60, 0, 0, 0, 1], &mut answers).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        let error = Receiver::new(80, budget).receive(&[81, 0, 0, 0], &mut answers).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
