//! What the kernel backends of [`owned_io`] share: sockets that are set up from the contract's options, system
//! calls that never block, streams and listeners, and the probe that says whether io_uring is available.
//!
//! This crate names no runtime. Its futures never block their thread, and a function that would have to wait
//! returns [`WouldBlock`](std::io::ErrorKind::WouldBlock). Two functions for the start of a server may block for
//! some milliseconds: [`listen::bind`] and [`reserve_descriptors`].
//!
//! A backend implements one of these for its socket, and the futures of this crate wait by it:
//!
//! - [`Readiness`](readiness::Readiness), where the runtime reports that a descriptor is ready (epoll);
//! - [`Completion`](completion::Completion), where reads and writes are operations of a ring;
//! - [`Socket`] and [`ListenSocket`] themselves, where neither fits. `Readiness` and `Completion` implement these
//!   two.
//!
//! For that a backend gets a [`Stream`] with both halves, a [`Listener`], and [`connect`](fn@connect::connect).

#![cfg(target_os = "linux")]

mod blocking;
pub mod completion;
pub mod connect;
mod cpus;
mod descriptors;
pub mod file;
pub mod listen;
mod listener;
mod memory;
mod proc;
mod random;
pub mod readiness;
mod runtime;
mod signals;
mod stream;
mod transfer;
#[cfg(feature = "uring")]
pub mod uring;

pub use blocking::spawn_blocking;
pub use cpus::{allowed_cpus, pin_to_cpu};
pub use descriptors::reserve_descriptors;
pub use listener::{ListenSocket, Listener};
pub use memory::memory_bytes;
pub use proc::proc_field;
pub use random::fill_random;
pub use signals::unblock_signals;
pub use stream::{ReadHalf, Socket, Stream, WriteHalf, adopt};
pub use transfer::{
    abort, check_written, end, shutdown, try_peek, try_read, try_read_pooled, try_write,
    try_write_vectored,
};
