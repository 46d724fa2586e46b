//! The io_uring: queues operations, submits them, and collects completions.

use std::collections::VecDeque;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use io_uring::types::{Fd, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use peers_common::ACCEPT_PAUSE;

use crate::buffers::{Buffers, GROUP};
use crate::message::Message;

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
    /// No operation, but the second completion of a send without a copy: the kernel has no use for its bytes any more.
    /// Its connection may have ended.
    Notification,
}

const KIND_BITS: u32 = 3;

/// `IORING_SEND_ZC_REPORT_USAGE` of `linux/io_uring.h`: notifications say whether the kernel copied.
const REPORT_USAGE: u16 = 1 << 3;

/// `IORING_NOTIF_USAGE_ZC_COPIED` of `linux/io_uring.h`.
const USAGE_COPIED: u32 = 1 << 31;

/// A completed operation, or one result of a multishot operation.
pub(crate) struct Completion {
    pub(crate) kind: Kind,
    pub(crate) index: usize,
    /// Of a notification: 1 if the kernel copied, otherwise 0.
    pub(crate) result: io::Result<u32>,
    /// The buffer that was received into.
    pub(crate) buffer: Option<u16>,
    /// Whether the multishot operation continues, or a notification follows.
    pub(crate) more: bool,
}

pub(crate) struct Ring {
    ring: IoUring,
    pub(crate) buffers: Buffers,
    waiting: VecDeque<squeue::Entry>,
    is_zero_copy: bool,
}

impl Ring {
    /// With `is_zero_copy`, the kernel is asked not to copy what is sent.
    pub(crate) fn new(is_zero_copy: bool) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        let ring = builder.setup_submit_all().setup_cqsize(COMPLETIONS).build(ENTRIES)?;
        let buffers = Buffers::register(&ring)?;
        Ok(Self { ring, buffers, waiting: VecDeque::new(), is_zero_copy })
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

    pub(crate) fn receive(&mut self, stream: &TcpStream, index: usize) {
        let receive = opcode::RecvMulti::new(Fd(stream.as_raw_fd()), GROUP);
        self.push(receive.build(), Kind::Receive, index);
    }

    pub(crate) fn cancel_receive(&mut self, index: usize) {
        let cancel = opcode::AsyncCancel::new(user_data(Kind::Receive, index));
        self.push(cancel.build(), Kind::Cancel, index);
    }

    /// Sends the whole message, unless the connection ends meanwhile. Until then the message must stay as it is.
    pub(crate) fn send(&mut self, stream: &TcpStream, message: &Message, index: usize) {
        let (fd, header) = (Fd(stream.as_raw_fd()), message.header());
        let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL).cast_unsigned();
        let send = match self.is_zero_copy {
            true => opcode::SendMsgZc::new(fd, header).ioprio(REPORT_USAGE).flags(flags).build(),
            false => opcode::SendMsg::new(fd, header).flags(flags).build(),
        };
        self.push(send, Kind::Send, index);
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
        // SAFETY: entries come from the functions above. The timeout's duration is a static. The
        // buffers are never freed. The server neither changes nor drops a message that is being
        // sent, and closes no descriptor while an operation on it is in flight. Until its notification
        // a send without a copy uses nothing but answers, which are never freed.
        unsafe { self.ring.submission().push(entry).is_ok() }
    }
}

impl Completion {
    fn new(entry: &cqueue::Entry) -> Self {
        let user_data = entry.user_data();
        let kinds = [Kind::Accept, Kind::Pause, Kind::Receive, Kind::Send, Kind::Cancel];
        let (result, is_notification) = (entry.result(), cqueue::notif(entry.flags()));
        Self {
            kind: match is_notification {
                true => Kind::Notification,
                false => kinds[(user_data & ((1 << KIND_BITS) - 1)) as usize],
            },
            index: (user_data >> KIND_BITS) as usize,
            result: match is_notification {
                true => Ok(u32::from(result.cast_unsigned() & USAGE_COPIED != 0)),
                false => u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result)),
            },
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
