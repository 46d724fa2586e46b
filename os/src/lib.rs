//! What the kernel backends of [`owned_io`] would otherwise each repeat, free of any runtime:
//! sockets set up from the contract's options, system calls that never block, and the probe that
//! says whether io_uring is to be had.
//!
//! Everything here returns at once. Where the kernel would have to wait, the answer is
//! [`WouldBlock`](std::io::ErrorKind::WouldBlock), and waiting is the backend's business:
//!
//! ```
//! use std::io;
//! use std::os::fd::{AsFd, OwnedFd};
//! use owned_io::{BufResult, IoBufMut};
//! use owned_io_os as os;
//!
//! /// A read on a runtime that can only tell when a descriptor is readable.
//! async fn read<B: IoBufMut>(
//!     fd: &OwnedFd,
//!     mut buf: B,
//!     mut readable: impl AsyncFnMut() -> io::Result<()>,
//! ) -> BufResult<usize, B> {
//!     if buf.buf_capacity() == 0 {
//!         return BufResult(Ok(0), buf);
//!     }
//!     loop {
//!         match os::try_read(fd.as_fd(), &mut buf) {
//!             Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
//!             result => return BufResult(result, buf),
//!         }
//!         if let Err(error) = readable().await {
//!             return BufResult(Err(error), buf);
//!         }
//!     }
//! }
//! ```

#![cfg(target_os = "linux")]

mod blocking;
pub mod connect;
mod descriptors;
pub mod listen;
mod memory;
mod random;
mod runtime;
mod transfer;
#[cfg(feature = "uring")]
pub mod uring;

pub use blocking::spawn_blocking;
pub use descriptors::reserve_descriptors;
pub use memory::memory_bytes;
pub use random::fill_random;
pub use transfer::{
    abort, check_written, end, shutdown, try_peek, try_read, try_read_pooled, try_write,
    try_write_vectored,
};
