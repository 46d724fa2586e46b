#![doc = include_str!("../README.md")]

#[cfg(not(unix))]
compile_error!("owned-io needs a Unix: vectored writes rely on the layout of `iovec`");

mod buf;
mod buffers;
mod channel;
pub mod coop;
mod deadline;
mod file;
mod files;
mod forward;
mod hand_over;
mod memory;
mod net;
mod pool;
mod read;
mod result;
mod runtime;
mod select;
mod shutdown_after;
mod slice;
mod stream;
mod task;
mod vectored;
mod worker;
mod write;
mod write_driver;

#[cfg(feature = "conformance")]
pub mod conformance;

/// Items for authors of backends, and of protocols over connections.
pub mod backend {
    pub use crate::net::AcceptBudget;
    pub use crate::stream::{Duplex, Endpoint, ShutdownTarget, TcpEndpoint};
    pub use crate::task::run_main;
    pub use crate::write_driver::{Direction, JobSlot, StickyError, WriteDriver};
}

pub use buf::{IoBuf, IoBufExt, IoBufMut, IoBufMutExt};
pub use buffers::Buffers;
pub use channel::{Receiver, SendError, Sender, channel};
pub use deadline::Deadline;
pub use file::{
    FILE_OFFSET_MAX, FILE_TRANSFER_BYTES_MAX, File, OwnedReadAt, OwnedReadAtExt, OwnedWriteAt,
    OwnedWriteAtExt,
};
pub use files::{DirEntry, Files, OpenMode};
pub use hand_over::HandOver;
pub use memory::{
    MemoryAccount, MemoryBudget, MemoryExhausted, MemoryReleased, MemoryWait, Reservation,
};
pub use net::{
    ACCEPT_BATCH_MAX, AddrError, BoundAddr, ConnectOptions, Keepalive, ListenOptions, TcpListener,
    TcpStream, is_exhaustion,
};
pub use pool::{Pool, PoolBuf, PoolConfig, PoolExhausted};
pub use read::{OwnedRead, OwnedReadExt};
pub use result::BufResult;
pub use runtime::{Clock, Executor, Random, Runtime, Tcp};
pub use select::{Selected, select};
pub use shutdown_after::{WithError, shutdown_after};
pub use slice::{Slice, Spare};
pub use stream::{ByteStream, LONE_WRITE_BYTES_MAX, ShutdownHandle, TRANSFER_BYTES_MAX};
pub use task::{JoinError, JoinHandle, Panicked};
pub use vectored::{IOV_MAX, IoVec};
pub use worker::{StopSignal, Stopped, Worker, WorkerError, WorkersConfig};
pub use write::{OwnedWrite, OwnedWriteExt, copy};
