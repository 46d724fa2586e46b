//! [`owned_io`] on [tokio]: epoll, one current-thread runtime for each worker.
//!
//! ```
//! use owned_io::{ConnectOptions, Executor, ListenOptions, OwnedReadExt, OwnedWriteExt, Tcp};
//! use owned_io::TcpListener;
//! use owned_io_tokio::{Config, Tokio};
//!
//! # fn main() -> std::io::Result<()> {
//! Tokio::block_on(Config::default(), async {
//!     let bound = Tokio::bind(ListenOptions::new(([127, 0, 0, 1], 0).into()))?;
//!     let mut listener = Tokio::listen(&bound)?;
//!     let mut client = Tokio::connect(ConnectOptions::new(bound.local_addr())).await?;
//!     let (mut server, _) = listener.accept().await?;
//!
//!     client.write_all("hello").await.into_result()?;
//!     let ((), hello) = server.read_exact(Vec::with_capacity(5), 5).await.into_result()?;
//!     assert_eq!(hello, b"hello");
//!     Ok(())
//! })?
//! # }
//! ```
//!
//! # What a drop does
//!
//! | dropped while pending | buffer | bytes | stream afterwards |
//! |---|---|---|---|
//! | read, pooled read | freed at once | none lost | usable |
//! | write, vectored write | freed at once | none sent | usable |
//! | read of a file | freed when a later operation of a file begins on the thread | – | usable |
//! | write of a file | likewise | any part may be written, if the blocking thread has begun | usable |
//! | accept | – | no client lost | usable |
//! | connect | – | – | attempt given up, socket closed |
//! | stream | – | – | closed at once |
//!
//! # Platform notes
//!
//! A read is `recv` once epoll reports that it need not wait. A write is `send` or `sendmsg`. It is tried at once,
//! unless the last one filled the kernel's buffer; then it waits for epoll. Accept is `accept4` without waiting,
//! then epoll. A pending pooled read holds no buffer. There is no ring to set up, so the tuned settings are the
//! runtime's own. Operations of files are system calls on the pool for blocking closures. A read first
//! takes what is in the page cache (`preadv2` with `RWF_NOWAIT`), on the thread of the runtime.

#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod file;
mod runtime;
mod socket;

pub use file::TokioFile;
pub use runtime::{Config, Tokio};
pub use socket::{TokioListener, TokioReadHalf, TokioSocket, TokioStream, TokioWriteHalf};

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod the_root_readme_compiles {}
