//! [`owned_io`] on [tokio-uring](::tokio_uring): io_uring, one current-thread runtime for each
//! worker.
//!
//! ```
//! use owned_io::{ConnectOptions, Executor, ListenOptions, OwnedReadExt, OwnedWriteExt, Tcp};
//! use owned_io::TcpListener;
//! use owned_io_tokio_uring::{Config, TokioUring};
//!
//! # fn main() -> std::io::Result<()> {
//! TokioUring::block_on(Config::default(), async {
//!     let bound = TokioUring::bind(ListenOptions::new(([127, 0, 0, 1], 0).into()))?;
//!     let mut listener = TokioUring::listen(&bound)?;
//!     let mut client = TokioUring::connect(ConnectOptions::new(bound.local_addr())).await?;
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
//! | read | freed when it completes | the next ones are lost | only to be dropped |
//! | pooled read | as for a read; none if `Pool::take_for_waiting_read` returned none | as for a read; none lost if it held no buffer | as for a read |
//! | write, vectored write | freed when it completes | sent all the same, or some of them | only to be dropped |
//! | read of a file | freed once the kernel is done with it | – | usable |
//! | write of a file | freed once the kernel is done with it | any part may be written, even later | usable |
//! | accept | – | no client lost | usable |
//! | connect | – | – | attempt given up, socket closed |
//! | stream | as above | – | closed at once: shut down if an operation still holds the descriptor |
//!
//! # Ring settings
//!
//! | setting | default | tuned | |
//! |---|---|---|---|
//! | `entries` | 256 | 4,096 | |
//! | `completion_entries` | 512 | 16,384 | The completions of 16,000 connections fit into the queue at once. A limit on locked memory of 8 MiB has room for 15 such rings (Linux 6.18, not root) |
//! | `coop_taskrun` | off | on | Linux 5.19 |
//! | `single_issuer` | off | on | Linux 6.0 |
//! | `defer_taskrun` | off | off | Refused: tokio-uring waits in epoll and never asks the ring for its completions, so nothing would complete |
//! | `sqpoll_idle` | off | off | Can be used; rounded up to a millisecond |
//!
//! # Platform notes
//!
//! | call | is |
//! |---|---|
//! | first read of a connection, and one after a read that has filled its buffer | `recv` without waiting, while the task has budget; if nothing has arrived, as the next ones |
//! | read | RECV |
//! | pooled read | RECV while `Pool::take_for_waiting_read` has a buffer, else POLL_ADD and then `recv` without waiting |
//! | write, vectored write | SEND, SENDMSG; the first four of a connection, and all of 8 KiB or more, are tried by `send` and `sendmsg` before that, while the task has budget |
//! | accept | `accept4` without waiting, epoll when the queue is empty |
//! | connect | `connect` without waiting, then epoll |
//! | read, write, vectored write, sync of a file | READ, WRITE, WRITEV, FSYNC of the data |
//! | everything else about files | a system call on the pool for blocking closures |
//! | sleep | epoll's timeout; NOP for a sleep of zero |
//!
//! The operations need Linux 5.6. The check before the runtime is built requires 5.11, as on every backend with
//! io_uring. tokio-uring's own sockets are not used: they send READ and WRITE, which raise SIGPIPE, and allocate for
//! each vectored write. Its ring is one of the descriptors that tokio waits for in epoll, so tokio's timers and its
//! listener still work.
//!
//! # Known limits
//!
//! Facts about tokio-uring 0.5.0 on tokio 1.54.1, found on Linux 6.18.
//!
//! - **A task that wakes itself again and again stops all reads and writes.** The ring is entered
//!   only when the thread parks, which it never does then. Of 1,000 echoes offered in 2 s next to
//!   such a task none completed. Timers, accepting and connecting go on. With a kernel thread that
//!   submits (`sqpoll_idle` of 2 s) all 1,000 completed.
//! - Each operation takes an iteration of the event loop, even one that completes when it is submitted. The server's part
//!   of an echo takes two iterations: one for the read, one for the write.
//! - A runtime that cannot be set up, although io_uring is available, leaks three descriptors. Too little
//!   locked memory for the ring is an example.
//! - The end of `block_on` waits for reads and writes of files that were dropped.
//! - The `Drop` of a buffer must not start an operation. It may run while the ring is in use, and would panic
//!   then.

#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

mod file;
mod listener;
#[expect(unsafe_code, reason = "the kernel is handed pointers into what an operation holds")]
mod op;
mod runtime;
mod socket;

pub use file::{TokioUringFile, TokioUringFileIo};
pub use listener::{TokioUringListenSocket, TokioUringListener};
pub use owned_io_os::uring::RingConfig;
pub use runtime::{Config, TokioUring};
pub use socket::{TokioUringReadHalf, TokioUringSocket, TokioUringStream, TokioUringWriteHalf};
