#![doc = include_str!("../README.md")]

#[cfg(not(unix))]
compile_error!("owned-io needs a Unix: vectored writes rely on the layout of `iovec`");

mod beside;
mod buf;
mod buffers;
pub mod coop;
mod forward;
mod memory;
mod net;
mod pool;
mod read;
mod result;
mod runtime;
mod slice;
mod stream;
mod task;
mod time;
mod vectored;
mod worker;
mod write;
mod writer;

#[cfg(feature = "conformance")]
pub mod conformance;

/// What only the author of a backend needs, or of a protocol over connections.
pub mod backend {
    pub use crate::net::Turn;
    pub use crate::stream::{Duplex, Endpoint, ShutdownTarget, TcpEndpoint};
    pub use crate::task::run_main;
    pub use crate::writer::{Broken, Desk, Half, Writer};
}

pub use beside::{Ready, beside};
pub use buf::{IoBuf, IoBufExt, IoBufMut, IoBufMutExt};
pub use buffers::Buffers;
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
pub use slice::{Slice, Spare};
pub use stream::{ByteStream, ShutdownHandle, TRANSFER_BYTES_MAX};
pub use task::{JoinError, JoinHandle, Panicked};
pub use time::{Fallible, timeout};
pub use vectored::{IOV_MAX, IoVec};
pub use worker::{StopSignal, Stopped, Worker, WorkersConfig};
pub use write::{OwnedWrite, OwnedWriteExt, copy};
