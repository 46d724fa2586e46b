//! [`Fetch`]: what the task that asks the origin puts into the cache. [`Failure`]: why there is no object.

use std::fmt;
use std::hash::Hasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use twox_hash::XxHash3_64;

use super::ledger::BLOCK_OVERHEAD_BYTES;
use super::response::ResponseError;
use super::{CacheControl, End, Head, Lifetime, Objects, Stored, Transfer};

/// How long an object counts as missing that the origin does not have. Long enough that a burst of requests for it is
/// one for the origin; short enough that nobody waits long for an object that has just been created.
pub const MISSING_TIME: Duration = Duration::from_secs(5);

/// How long a stale object is used without another attempt after one has failed.
pub const RETRY_TIME: Duration = Duration::from_secs(1);

/// The most pieces of a block that is arriving. Then they are copied into one.
pub(super) const TAIL_PIECES_MAX: usize = 256;

/// What a stored object takes beyond its blocks and its headers.
const STORED_BYTES: usize = 512;

/// Why an object cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nothing answers at the origin.
    Unreachable,
    /// The origin took too long.
    TimedOut,
    /// The origin has closed the connection without an answer.
    NoAnswer,
    /// The origin's answer is not HTTP, or ambiguous.
    Malformed(ResponseError),
    /// The origin has answered with this status.
    Status(u16),
    /// The file of the object cannot be read.
    Unreadable,
    /// The object ended before its length.
    Truncated,
    /// It is longer than the limit.
    TooLong,
    /// There is no memory for it.
    NoMemory,
    /// Too many other objects are being fetched.
    Busy,
    /// The task that fetched it has ended: the server ends, or it has a defect.
    Ended,
}

/// An object that is being fetched. Dropped before its end, it has failed.
///
/// The order of calls: [`begin`](Self::begin), [`append`](Self::append), [`complete`](Self::complete); or
/// [`missing`](Self::missing), or [`fail`](Self::fail). After each, [wake](Transfer::wake) the readers.
pub struct Fetch {
    objects: Arc<Objects>,
    name: Arc<str>,
    transfer: Arc<Transfer>,
    head: Arc<Head>,
    lifetime: Option<Lifetime>,
    /// The pieces of the block that is arriving, which readers see already.
    tail: Vec<Bytes>,
    tail_bytes: usize,
    bytes: u64,
    hasher: XxHash3_64,
}

impl Fetch {
    pub(super) fn new(objects: Arc<Objects>, name: Arc<str>, transfer: Arc<Transfer>) -> Self {
        Self {
            objects,
            name,
            transfer,
            head: Arc::default(),
            lifetime: None,
            tail: Vec::new(),
            tail_bytes: 0,
            bytes: 0,
            hasher: XxHash3_64::new(),
        }
    }

    /// The name of the object.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The cache that it belongs to.
    pub const fn objects(&self) -> &Arc<Objects> {
        &self.objects
    }

    /// What its readers see.
    pub const fn transfer(&self) -> &Arc<Transfer> {
        &self.transfer
    }

    /// The origin has the object, and says this about it.
    ///
    /// # Errors
    /// It is too long, or can never have room. Nobody has seen anything of it.
    pub fn begin(&mut self, head: Head, control: &CacheControl) -> Result<(), Failure> {
        let config = self.objects.config();
        if head.length.is_some_and(|length| length > config.object_bytes_max) {
            return Err(Failure::TooLong);
        }
        if head.length.is_some_and(|length| length > config.memory_max as u64) {
            return Err(Failure::NoMemory);
        }
        self.lifetime = Lifetime::of(control, head.age, config.lifetime);
        self.head = Arc::new(head);
        self.transfer.begin(Arc::clone(&self.head));
        Ok(())
    }

    /// Adds bytes of the object, which are copied once.
    ///
    /// # Errors
    /// It is too long, or there is no memory for it.
    pub fn append(&mut self, content: &[u8]) -> Result<(), Failure> {
        let bytes = self.bytes + content.len() as u64;
        let longest =
            self.head.length.unwrap_or(u64::MAX).min(self.objects.config().object_bytes_max);
        if bytes > longest {
            return Err(Failure::TooLong);
        }
        self.bytes = bytes;
        self.hasher.write(content);
        let mut rest = content;
        while !rest.is_empty() {
            let block_left = self.objects.block_bytes() - self.tail_bytes;
            let (part, after) = rest.split_at(rest.len().min(block_left));
            rest = after;
            if part.len() == block_left {
                let block = self.join(part)?;
                self.transfer.add_block(block);
                (self.tail, self.tail_bytes) = (Vec::new(), 0);
                continue;
            }
            if self.tail.len() == TAIL_PIECES_MAX {
                self.join_tail()?;
            }
            let piece = self.objects.block(&[part])?;
            self.tail.push(piece.clone());
            self.tail_bytes += part.len();
            self.transfer.add_piece(piece);
        }
        Ok(())
    }

    /// All of the object has arrived.
    ///
    /// # Errors
    /// It is shorter than its head says, or there is no memory for it.
    pub fn complete(&mut self, now: Instant) -> Result<(), Failure> {
        if self.head.length.is_some_and(|length| length != self.bytes) {
            return Err(Failure::Truncated);
        }
        if self.tail.len() > 1 {
            self.join_tail()?;
        }
        let stored = self.lifetime.and_then(|lifetime| self.stored(now, lifetime));
        self.objects.store(&self.name, &self.transfer, stored.map(Arc::new));
        self.transfer.end(End::Complete);
        Ok(())
    }

    /// The origin does not have the object. `status` is 404 or 410.
    pub fn missing(&mut self, status: u16, control: &CacheControl, now: Instant) {
        let time = control.missing_time(MISSING_TIME);
        self.objects.store_missing(&self.name, &self.transfer, status, now + time);
        self.transfer.end(End::Missing(status));
    }

    /// The object cannot be had. A stale one stays in use.
    pub fn fail(&mut self, failure: Failure, now: Instant) {
        self.objects.give_up(&self.name, &self.transfer, Some(now + RETRY_TIME));
        self.transfer.end(End::Failed(failure));
    }

    /// `None`: there is no memory for its entry.
    fn stored(&self, now: Instant, lifetime: Lifetime) -> Option<Stored> {
        let headers = self.head.headers.iter().map(|(_, value)| value.len() + 32).sum::<usize>();
        let blocks = self.transfer.blocks();
        let charge = self.objects.charge(STORED_BYTES + self.name.len() + headers)?;
        let etag = self.head.etag.clone().unwrap_or_else(|| self.derived_etag());
        let block_bytes = self.objects.block_bytes();
        let head = Arc::clone(&self.head);
        Some(Stored::new(head, etag, self.bytes, blocks, block_bytes, now, lifetime, charge))
    }

    /// An entity tag of the bytes.
    fn derived_etag(&self) -> Box<str> {
        format!("\"{:016x}-{:x}\"", self.hasher.finish(), self.bytes).into()
    }

    fn join_tail(&mut self) -> Result<(), Failure> {
        let piece = self.join(&[])?;
        self.transfer.join_pieces(piece.clone());
        self.tail = vec![piece];
        Ok(())
    }

    /// The tail and `part` in one block.
    fn join(&self, part: &[u8]) -> Result<Bytes, Failure> {
        let mut parts: Vec<&[u8]> = self.tail.iter().map(|piece| &piece[..]).collect();
        parts.push(part);
        self.objects.block(&parts)
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        if !self.transfer.has_ended() {
            self.objects.give_up(&self.name, &self.transfer, None);
            self.transfer.end(End::Failed(Failure::Ended));
        }
        self.objects.end_fetch();
        self.transfer.wake_all();
    }
}

impl fmt::Debug for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetch").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Objects {
    /// Copies parts into a block. Objects that nobody reads make room for it.
    fn block(&self, parts: &[&[u8]]) -> Result<Bytes, Failure> {
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        let charge = self.charge(bytes + BLOCK_OVERHEAD_BYTES).ok_or(Failure::NoMemory)?;
        charge.block(parts).map_err(|_| Failure::NoMemory)
    }
}

impl Failure {
    /// The status that clients get.
    pub const fn status(self) -> u16 {
        match self {
            Self::Unreachable
            | Self::NoAnswer
            | Self::Malformed(_)
            | Self::Status(_)
            | Self::Unreadable
            | Self::Truncated
            | Self::TooLong => 502,
            Self::NoMemory | Self::Busy | Self::Ended => 503,
            Self::TimedOut => 504,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable => f.write_str("the origin cannot be reached"),
            Self::TimedOut => f.write_str("the origin took too long"),
            Self::NoAnswer => f.write_str("the origin has closed the connection without an answer"),
            Self::Malformed(error) => write!(f, "the answer of the origin is malformed: {error}"),
            Self::Status(status) => write!(f, "the origin has answered {status}"),
            Self::Unreadable => f.write_str("the object cannot be read"),
            Self::Truncated => f.write_str("the object ended before its length"),
            Self::TooLong => f.write_str("the object is longer than object-bytes-max"),
            Self::NoMemory => f.write_str("there is no memory for the object: try again later"),
            Self::Busy => f.write_str("too many objects are being fetched: try again later"),
            Self::Ended => f.write_str("the server has stopped fetching the object"),
        }
    }
}

impl std::error::Error for Failure {}
