//! The io_uring: queues operations, submits them, and collects completions.

use std::collections::VecDeque;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::{io, mem};

use io_uring::types::{Fd, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use peers_common::ACCEPT_PAUSE;

use crate::buffers::{Buffers, GROUP};

/// Entries of the submission queue. Operations that do not fit wait in [`Ring::waiting`].
const ENTRIES: u32 = 4096;

/// Entries of the completion queue, enough for many connections that complete at once.
const COMPLETIONS: u32 = 16_384;

/// The kind of an operation. It is in the low bits of the user data, below the connection's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Accept,
    Pause,
    Receive,
    Send,
    Cancel,
    /// Of bytes that the ring owns meanwhile.
    SendBytes,
    Tick,
}

const KIND_BITS: u32 = 3;

/// The part of a buffer that is still to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub(crate) buffer: u16,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// A completed operation, or one result of a multishot operation.
pub(crate) struct Completion {
    pub(crate) kind: Kind,
    pub(crate) index: usize,
    pub(crate) result: io::Result<u32>,
    /// The buffer that was received into.
    pub(crate) buffer: Option<u16>,
    /// Whether the multishot operation continues.
    pub(crate) more: bool,
}

pub(crate) struct Ring {
    ring: IoUring,
    pub(crate) buffers: Buffers,
    /// The bytes that are being sent, by the index of the connection.
    sending: Vec<Vec<u8>>,
    waiting: VecDeque<squeue::Entry>,
}

impl Ring {
    /// A ring with this many buffers to receive into, a power of two.
    pub(crate) fn new(buffers: u16) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        let ring = builder.setup_submit_all().setup_cqsize(COMPLETIONS).build(ENTRIES)?;
        let buffers = Buffers::register(&ring, buffers)?;
        Ok(Self { ring, buffers, sending: Vec::new(), waiting: VecDeque::new() })
    }

    pub(crate) fn accept(&mut self, listener: &TcpListener) {
        let accept = opcode::AcceptMulti::new(Fd(listener.as_raw_fd())).flags(libc::SOCK_CLOEXEC);
        self.push(accept.build(), Kind::Accept, 0);
    }

    /// Completes after [`ACCEPT_PAUSE`], with an error.
    pub(crate) fn pause(&mut self) {
        static PAUSE: Timespec =
            Timespec::new().nsec(ACCEPT_PAUSE.subsec_nanos()).sec(ACCEPT_PAUSE.as_secs());
        self.push(opcode::Timeout::new(&PAUSE).build(), Kind::Pause, 0);
    }

    /// Completes after a second, with an error.
    pub(crate) fn tick(&mut self) {
        static SECOND: Timespec = Timespec::new().sec(1);
        self.push(opcode::Timeout::new(&SECOND).build(), Kind::Tick, 0);
    }

    pub(crate) fn receive(&mut self, stream: &TcpStream, index: usize) {
        let receive = opcode::RecvMulti::new(Fd(stream.as_raw_fd()), GROUP);
        self.push(receive.build(), Kind::Receive, index);
    }

    pub(crate) fn cancel_receive(&mut self, index: usize) {
        let cancel = opcode::AsyncCancel::new(user_data(Kind::Receive, index));
        self.push(cancel.build(), Kind::Cancel, index);
    }

    /// Sends the whole chunk, unless the connection ends meanwhile.
    pub(crate) fn send(&mut self, stream: &TcpStream, chunk: Chunk, index: usize) {
        let address = self.buffers.address(chunk.buffer).wrapping_add(chunk.start as usize);
        let send = opcode::Send::new(Fd(stream.as_raw_fd()), address, chunk.end - chunk.start);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        self.push(send.flags(flags).build(), Kind::Send, index);
    }

    /// Sends all of `bytes`, unless the connection ends meanwhile. [`Self::sent_bytes`] hands them back.
    ///
    /// # Panics
    /// If other bytes of the connection are being sent.
    pub(crate) fn send_bytes(&mut self, stream: &TcpStream, bytes: Vec<u8>, index: usize) {
        if self.sending.len() <= index {
            self.sending.resize_with(index + 1, Vec::new);
        }
        let slot = &mut self.sending[index];
        assert!(slot.is_empty(), "connection {index} is sending");
        *slot = bytes;
        let send = opcode::Send::new(Fd(stream.as_raw_fd()), slot.as_ptr(), slot.len() as u32);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        self.push(send.flags(flags).build(), Kind::SendBytes, index);
    }

    /// The bytes of a send that has completed. If not all were sent, the connection has ended.
    pub(crate) fn sent_bytes(&mut self, completion: Completion) -> (Vec<u8>, io::Result<u32>) {
        assert_eq!(completion.kind, Kind::SendBytes);
        (mem::take(&mut self.sending[completion.index]), completion.result)
    }

    /// Submits all queued operations, waits for at least one completion, and collects all completions.
    pub(crate) fn submit_and_wait(&mut self, completed: &mut Vec<Completion>) -> io::Result<()> {
        // Operations wait because the queue was full. They are queued below, so this call must not wait.
        let want = usize::from(self.waiting.is_empty());
        match self.ring.submit_and_wait(want) {
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY)) => {}
            Err(error) => return Err(error),
        }
        while let Some(entry) = self.waiting.pop_front() {
            if !self.queue(&entry) {
                self.waiting.push_front(entry);
                break;
            }
        }
        completed.extend(self.ring.completion().map(|entry| Completion::new(&entry)));
        Ok(())
    }

    fn push(&mut self, entry: squeue::Entry, kind: Kind, index: usize) {
        let entry = entry.user_data(user_data(kind, index));
        if !self.waiting.is_empty() || !self.queue(&entry) {
            self.waiting.push_back(entry);
        }
    }

    /// Returns false if the queue is full.
    fn queue(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: entries come from the functions above. The timeouts' durations are statics. The
        // buffers are never freed, and a buffer that is being sent is not provided to the kernel.
        // `sending` keeps bytes until their send has completed, and is leaked with the ring. The
        // server closes no descriptor while an operation on it is in flight.
        unsafe { self.ring.submission().push(entry).is_ok() }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        mem::forget(mem::take(&mut self.sending)); // the kernel may still read these bytes
    }
}

impl Completion {
    fn new(entry: &cqueue::Entry) -> Self {
        let user_data = entry.user_data();
        let kinds = [
            Kind::Accept,
            Kind::Pause,
            Kind::Receive,
            Kind::Send,
            Kind::Cancel,
            Kind::SendBytes,
            Kind::Tick,
        ];
        let result = entry.result();
        Self {
            kind: kinds[(user_data & ((1 << KIND_BITS) - 1)) as usize],
            index: (user_data >> KIND_BITS) as usize,
            result: u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result)),
            buffer: cqueue::buffer_select(entry.flags()),
            more: cqueue::more(entry.flags()),
        }
    }

    /// The stream of a completed accept.
    pub(crate) fn into_stream(self) -> io::Result<TcpStream> {
        assert_eq!(self.kind, Kind::Accept);
        let descriptor = self.result?;
        // SAFETY: the kernel has just created the descriptor for this completion, which is consumed.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor as i32) };
        Ok(descriptor.into())
    }
}

fn user_data(kind: Kind, index: usize) -> u64 {
    (index as u64) << KIND_BITS | kind as u64
}
