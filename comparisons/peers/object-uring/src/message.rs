//! What one send has (sendmsg(2)).

use std::mem::MaybeUninit;
use std::ptr;

/// How many answers leave in one send.
pub(crate) const SLICES_MAX: usize = 64;

/// Slices of answers, which live until the process ends, and the header that the kernel reads. Both stay where they are
/// while the message moves.
pub(crate) struct Message {
    slices: Vec<libc::iovec>,
    header: Box<libc::msghdr>,
    bytes: usize,
}

impl Message {
    /// An empty one.
    pub(crate) fn new() -> Self {
        let header = MaybeUninit::<libc::msghdr>::zeroed();
        // SAFETY: it consists of integers and pointers, for which zero is a value.
        let header = Box::new(unsafe { header.assume_init() });
        Self { slices: Vec::with_capacity(SLICES_MAX), header, bytes: 0 }
    }

    /// Replaces its slices by these, of which there are at most [`SLICES_MAX`]. It must not be in flight.
    pub(crate) fn replace(&mut self, answers: impl Iterator<Item = &'static [u8]>) {
        self.slices.clear();
        self.bytes = 0;
        for answer in answers.take(SLICES_MAX) {
            self.bytes += answer.len();
            let iov_base = ptr::from_ref(answer).cast_mut().cast(); // the kernel only reads it
            self.slices.push(libc::iovec { iov_base, iov_len: answer.len() });
        }
        self.header.msg_iov = self.slices.as_mut_ptr();
        self.header.msg_iovlen = self.slices.len();
    }

    /// How many bytes it has.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn header(&self) -> *const libc::msghdr {
        ptr::from_ref(&*self.header)
    }
}
