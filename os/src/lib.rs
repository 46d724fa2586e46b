//! What the kernel backends of [`owned_io`] would otherwise each repeat, free of any runtime:
//! sockets set up from the contract's options, system calls that never block, and the probe that
//! says whether io_uring is to be had.
//!
//! Everything here returns at once. Where the kernel would have to wait, the answer is
//! [`WouldBlock`](std::io::ErrorKind::WouldBlock), and waiting is the backend's business.

#![cfg(target_os = "linux")]

mod blocking;
pub mod connect;
pub mod listen;
mod random;
mod transfer;
#[cfg(feature = "uring")]
pub mod uring;

pub use blocking::spawn_blocking;
pub use random::fill_random;
pub use transfer::{check_written, shutdown, try_read, try_write, try_write_vectored};
