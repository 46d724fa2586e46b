//! [`ReceiveBuffer`]: the bytes that were received and not yet used.

use std::ops::Range;

use owned_io::{Buffers, IoBufMutExt, Pool, PoolBuf, PoolExhausted};

/// A buffer of the pool with the head of the current request, some of its body, and perhaps further requests.
#[derive(Debug)]
pub(super) struct ReceiveBuffer {
    /// `None` if it would be empty.
    buf: Option<PoolBuf>,
    /// Where the unread bytes begin. Invariant: at most the length of the buffer.
    at: usize,
    head: Head,
}

#[derive(Debug)]
enum Head {
    None,
    InBuf(Range<usize>),
    /// The buffer went back to the pool while more of the body was awaited.
    Copied(Vec<u8>),
}

impl ReceiveBuffer {
    pub(super) const fn new() -> Self {
        Self { buf: None, at: 0, head: Head::None }
    }

    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes()[self.at..]
    }

    /// Marks the first `len` unread bytes as the head of the current request.
    pub(super) fn take_head(&mut self, len: usize) {
        self.head = Head::InBuf(self.at..self.at + len);
        self.at += len;
    }

    /// The head of the current request; empty if there is none.
    pub(super) fn head(&self) -> &[u8] {
        match &self.head {
            Head::None => &[],
            Head::InBuf(range) => &self.bytes()[range.clone()],
            Head::Copied(head) => head,
        }
    }

    /// Marks the first `len` unread bytes as read. Returns where they begin, for [`slice`](Self::slice).
    pub(super) fn consume(&mut self, len: usize) -> usize {
        let at = self.at;
        self.at += len;
        at
    }

    /// Bytes that were read, until the next read.
    pub(super) fn slice(&self, range: Range<usize>) -> &[u8] {
        &self.bytes()[range]
    }

    /// Forgets the current request, and releases the buffer if nothing is unread.
    pub(super) fn forget_head(&mut self, buffers: &Buffers) {
        if let Head::Copied(head) = std::mem::replace(&mut self.head, Head::None) {
            buffers.give(head);
        }
        if self.unread().is_empty() {
            self.release();
        }
    }

    /// Discards the unread bytes and the head.
    pub(super) fn clear(&mut self, buffers: &Buffers) {
        self.at = self.bytes().len();
        self.forget_head(buffers);
    }

    /// Returns the buffer to append more of a head of at most `head_bytes_max` bytes to; `None` if nothing is unread.
    /// [`put`](Self::put) brings it back.
    pub(super) fn prepare_for_head(
        &mut self,
        head_bytes_max: usize,
        pool: &Pool,
    ) -> Result<Option<PoolBuf>, PoolExhausted> {
        if self.unread().is_empty() {
            self.release();
            return Ok(None);
        }
        if self.at + head_bytes_max > pool.buf_bytes() {
            let mut moved = pool.take()?;
            moved.buf_fill(self.unread());
            (self.buf, self.at) = (Some(moved), 0);
        }
        Ok(self.buf.take())
    }

    /// Prepares for a read of more of a body. All bytes must have been read. Returns the bytes of memory that the
    /// copy of the head has: as many as a head may have at most.
    pub(super) fn prepare_for_body(&mut self, head_bytes_max: usize, buffers: &Buffers) -> usize {
        debug_assert!(self.unread().is_empty(), "the decoder consumes all framing");
        if let Head::InBuf(range) = &self.head {
            let mut copy = buffers.take_fitting(range.len(), head_bytes_max);
            copy.reserve_exact(range.len());
            copy.extend_from_slice(&self.bytes()[range.clone()]);
            self.head = Head::Copied(copy);
        }
        self.release();
        match &self.head {
            Head::Copied(head) => head.capacity(),
            _ => 0,
        }
    }

    /// The buffer after a read: the one from [`prepare_for_head`](Self::prepare_for_head) and what was appended, or a
    /// new one.
    pub(super) fn put(&mut self, buf: PoolBuf) {
        self.buf = (!buf.is_empty()).then_some(buf);
    }

    /// A buffer that begins with the head, with the unread bytes behind it, and the length of the head. `None` if the
    /// head is not in the buffer: a body was read.
    pub(super) fn into_head_and_unread(
        self,
        pool: &Pool,
    ) -> Result<Option<(PoolBuf, usize)>, PoolExhausted> {
        let (Some(buf), Head::InBuf(range)) = (self.buf, self.head) else { return Ok(None) };
        if range.start == 0 {
            return Ok(Some((buf, range.end)));
        }
        let mut moved = pool.take()?;
        moved.buf_fill(&buf[range.start..]);
        Ok(Some((moved, range.len())))
    }

    fn bytes(&self) -> &[u8] {
        self.buf.as_deref().unwrap_or_default()
    }

    fn release(&mut self) {
        (self.buf, self.at) = (None, 0);
    }
}

#[cfg(test)]
mod tests {
    use owned_io::{IoBufMut, MemoryBudget, PoolConfig};

    use super::*;

    fn buffers() -> Buffers {
        let mut config = PoolConfig::default();
        (config.buf_bytes, config.leased_max) = (64, 4);
        Buffers::new(Pool::new(config), MemoryBudget::new(0))
    }

    fn filled(bytes: &[u8], buffers: &Buffers) -> ReceiveBuffer {
        let mut received = ReceiveBuffer::new();
        let mut buf = buffers.pool().take().unwrap();
        buf.buf_fill(bytes);
        received.put(buf);
        received
    }

    #[test]
    fn the_head_outlives_the_buffer_it_came_in() {
        let buffers = buffers();
        let mut received = filled(b"head1body", &buffers);
        received.take_head(5);
        let at = received.consume(4);
        assert_eq!((received.head(), received.slice(at..at + 4)), (&b"head1"[..], &b"body"[..]));
        buffers.give(Vec::with_capacity(1000));
        assert!((5..=64).contains(&received.prepare_for_body(64, &buffers)));
        assert_eq!((received.head(), buffers.pool().leased()), (&b"head1"[..], 0));
        received.forget_head(&buffers);
        assert_eq!(received.head(), b"");
    }

    #[test]
    fn there_is_room_for_a_head_behind_other_requests() {
        let buffers = buffers();
        let mut received = filled(&[b'a'; 60], &buffers);
        received.take_head(58);
        received.forget_head(&buffers);
        let buf = received.prepare_for_head(50, buffers.pool()).unwrap().unwrap();
        assert_eq!((&buf[..], buf.buf_capacity()), (&b"aa"[..], 64));
        received.put(buf);
        assert_eq!(received.unread(), b"aa");
        received.clear(&buffers);
        assert_eq!(buffers.pool().leased(), 0, "an empty buffer goes back");
        assert!(received.prepare_for_head(50, buffers.pool()).unwrap().is_none());
    }

    #[test]
    fn a_head_behind_others_is_moved_to_the_front() {
        let buffers = buffers();
        let mut received = filled(b"onetwothree", &buffers);
        received.take_head(3);
        received.forget_head(&buffers);
        received.take_head(3);
        let (buf, head_bytes) = received.into_head_and_unread(buffers.pool()).unwrap().unwrap();
        assert_eq!((&buf[..], head_bytes), (&b"twothree"[..], 3));
    }
}
