//! Source: sends as many messages as it is asked for.
//!
//! A request is three `u32`, little-endian: how many messages, of how many bytes, how many to a
//! batch. Byte `i` of message `n` is `n + i`, modulo 256. Requests follow each other on a
//! connection.

use std::io;

use owned_io::{
    ByteStream, IoBufMut, OwnedRead, OwnedReadExt, OwnedWriteExt, Runtime, ShutdownHandle, Spare,
    timeout,
};

use super::message::too_long;
use crate::config::Limits;

/// The most bytes that are written at once, so that a batch of any size needs no more memory: what
/// a socket takes without waiting is of this order.
const WRITE_BYTES_MAX: usize = 256 * 1024;

/// Serves one connection until its peer ends it.
///
/// # Errors
/// The connection's; [`InvalidData`](io::ErrorKind::InvalidData) for messages over the limit, or a
/// batch of none; [`TimedOut`](io::ErrorKind::TimedOut) when the peer does not take them, or does not
/// end a request that it has begun.
pub async fn serve<R: Runtime>(stream: impl ByteStream, limits: Limits) -> io::Result<()> {
    let connection = stream.shutdown_handle();
    let (mut read, mut write) = stream.into_split();
    let mut request = Vec::with_capacity(Request::BYTES);
    let mut out = Vec::new();
    loop {
        request.clear();
        let begun =
            read.read(request.spare().limit(Request::BYTES)).await.map_buf(Spare::into_inner);
        let n;
        (n, request) = begun.into_result()?;
        if n == 0 {
            return Ok(());
        }
        let rest = read.read_exact(request.spare(), Request::BYTES - n);
        let rest = timeout::<R, _>(limits.message_time_max, &connection, rest).await;
        ((), request) = rest.map_buf(Spare::into_inner).into_result()?;
        let request = Request::parse(&request, limits.message_bytes_max)?;
        let mut cursor = Cursor::new(request);
        while cursor.fill(&mut out) {
            out = write_all::<R>(&mut write, out, &connection, limits).await?;
        }
    }
}

async fn write_all<R: Runtime>(
    write: &mut impl OwnedWriteExt,
    out: Vec<u8>,
    connection: &ShutdownHandle,
    limits: Limits,
) -> io::Result<Vec<u8>> {
    let written = timeout::<R, _>(limits.message_time_max, connection, write.write_all(out)).await;
    let ((), mut out) = written.into_result()?;
    out.clear();
    Ok(out)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    messages: u32,
    bytes: u32,
    batch: u32,
}

impl Request {
    const BYTES: usize = 12;

    fn parse(request: &[u8], bytes_max: usize) -> io::Result<Self> {
        let number = |at: usize| {
            let bytes = request[at..at + 4].try_into().expect("four bytes");
            u32::from_le_bytes(bytes)
        };
        let request = Self { messages: number(0), bytes: number(4), batch: number(8) };
        if request.bytes as usize > bytes_max {
            return Err(too_long());
        }
        if request.batch == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a batch of no messages"));
        }
        Ok(request)
    }
}

/// Where in the answer to a request the next write begins.
struct Cursor {
    request: Request,
    message: u32,
    /// Within the message, its length included.
    offset: usize,
}

impl Cursor {
    const fn new(request: Request) -> Self {
        Self { request, message: 0, offset: 0 }
    }

    /// Fills `out`, which is empty, up to the end of the batch, or as far as one write may go; false
    /// when there is nothing left.
    fn fill(&mut self, out: &mut Vec<u8>) -> bool {
        let Request { messages, bytes, batch } = self.request;
        let batch_end = (self.message - self.message % batch).saturating_add(batch).min(messages);
        while self.message < batch_end && out.len() < WRITE_BYTES_MAX {
            let len = 4 + bytes as usize;
            if self.offset == 0 {
                out.extend_from_slice(&bytes.to_le_bytes());
                self.offset = 4;
            }
            // Whole runs of the pattern, never past what one write may have.
            let n = (len - self.offset).min(WRITE_BYTES_MAX);
            extend_pattern(out, self.message as usize + self.offset - 4, n);
            self.offset += n;
            if self.offset == len {
                self.offset = 0;
                self.message += 1;
            }
        }
        !out.is_empty()
    }
}

/// `n` bytes that count up from `first`, modulo 256.
fn extend_pattern(out: &mut Vec<u8>, first: usize, mut n: usize) {
    const RUN: usize = 4096;
    const PATTERN: [u8; 256 + RUN] = {
        let mut pattern = [0; 256 + RUN];
        let mut i = 0;
        while i < pattern.len() {
            pattern[i] = i as u8;
            i += 1;
        }
        pattern
    };
    let from = &PATTERN[first % 256..][..RUN]; // RUN is a multiple of 256, so each run begins alike
    while n > 0 {
        let taken = n.min(RUN);
        out.extend_from_slice(&from[..taken]);
        n -= taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(request: Request) -> (Vec<u8>, usize) {
        let (mut all, mut writes, mut out) = (Vec::new(), 0, Vec::new());
        let mut cursor = Cursor::new(request);
        while cursor.fill(&mut out) {
            assert!(out.len() <= 2 * WRITE_BYTES_MAX + 4);
            all.append(&mut out);
            writes += 1;
        }
        (all, writes)
    }

    #[test]
    fn messages_count_up_and_batches_are_writes() {
        let (all, writes) = answer(Request { messages: 5, bytes: 3, batch: 2 });
        assert_eq!(writes, 3);
        assert_eq!(&all[..14], [3, 0, 0, 0, 0, 1, 2, 3, 0, 0, 0, 1, 2, 3]);
        assert_eq!(all.len(), 35);
    }

    #[test]
    fn a_large_message_leaves_in_several_writes_and_is_whole() {
        let bytes = 1_000_003;
        let (all, writes) = answer(Request { messages: 2, bytes, batch: 2 });
        assert!(writes >= 4);
        let second = &all[4 + bytes as usize..];
        assert_eq!(second[..4], bytes.to_le_bytes());
        assert!(second[4..].iter().enumerate().all(|(i, byte)| *byte == (1 + i) as u8));
    }

    #[test]
    fn nothing_is_sent_for_nothing_and_nonsense_is_refused() {
        assert_eq!(answer(Request { messages: 0, bytes: 3, batch: 1 }).1, 0);
        let nonsense = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        assert!(Request::parse(&nonsense, 10).is_err());
        let long = [1, 0, 0, 0, 11, 0, 0, 0, 1, 0, 0, 0];
        assert!(Request::parse(&long, 10).is_err());
    }
}
