//! [`owned_io`] on [compio](::compio_runtime): io_uring, one runtime for each worker.
//!
//! ```
//! use owned_io::{ConnectOptions, Executor, ListenOptions, OwnedReadExt, OwnedWriteExt, Tcp};
//! use owned_io::TcpListener;
//! use owned_io_compio::{Compio, Config};
//!
//! # fn main() -> std::io::Result<()> {
//! Compio::block_on(Config::default(), async {
//!     let bound = Compio::bind(ListenOptions::new(([127, 0, 0, 1], 0).into()))?;
//!     let mut listener = Compio::listen(&bound)?;
//!     let mut client = Compio::connect(ConnectOptions::new(bound.local_addr())).await?;
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
//! | read | freed once it is cancelled, one loop iteration later | lost, if they arrive before that | usable, with that gap |
//! | pooled read | as for a read; none if `Pool::take_for_waiting_read` returned none | as for a read; none lost if it held no buffer | as for a read |
//! | write, vectored write | freed once it is cancelled, one loop iteration later | any part may be sent | only to be dropped |
//! | read of a file | freed once the kernel is done with it | – | usable |
//! | write of a file | freed once the kernel is done with it | any part may be written, even later | usable |
//! | accept | – | no client lost | usable |
//! | connect | – | – | attempt given up, socket closed |
//! | stream | – | – | closed at once; with a pending operation, shut down at once and closed one loop iteration later |
//!
//! # Ring settings
//!
//! | setting | default | tuned | |
//! |---|---|---|---|
//! | `entries` | 1,024 | 4,096 | counts against the limit on locked memory, see below |
//! | `completion_entries` | 2,048 | 16,384 | the completions of 16,000 connections fit into the queue at once |
//! | `coop_taskrun` | off | off | can be used |
//! | `single_issuer` | off | on | |
//! | `defer_taskrun` | off | on | |
//! | `sqpoll_idle` | off | off | can be used; rounded up to whole milliseconds |
//!
//! The default is compio's own. Only settings that no kernel takes are refused.
//!
//! `IORING_SETUP_TASKRUN_FLAG` is set along with `coop_taskrun` and `defer_taskrun`. Without it, a task that yields
//! again and again keeps deferred completions away: compio only submits then, and does not ask the kernel for
//! completions. Of 1,000 echoes next to such a task none completed in two seconds. With the flag all did, in 32 ms
//! (Linux 6.18).
//!
//! Without `CAP_IPC_LOCK`, all rings of a user count against the user's limit on locked memory. On Linux 6.18 a
//! limit of 8 MiB had room for 15 tuned rings, or 78 of the default. A limit of 512 KiB had room for none or four.
//!
//! # Platform notes
//!
//! | call | is |
//! |---|---|
//! | first read of a connection, and one after a read that has filled its buffer | `recv` without waiting, while the task has budget; if nothing has arrived, as the next ones |
//! | read | `RECV` |
//! | pooled read | `RECV` while `Pool::take_for_waiting_read` has a buffer, else `POLL_ADD` and then `recv` without waiting |
//! | write, vectored write | `SEND`, `SENDMSG`; the first four of a connection, and all of 8 KiB or more, are tried by `send` and `sendmsg` before that, while the task has budget |
//! | accept | `accept4` without waiting, `POLL_ADD` when the queue is empty |
//! | connect | `connect` without waiting, then `POLL_ADD` |
//! | read, write, vectored write, sync of a file | `READ`, `WRITE`, `WRITEV`, `FSYNC` of the data |
//! | everything else about files | a system call on the pool for blocking closures |
//! | sleep | a time-out of the ring's wait; `NOP` for a sleep of zero |
//!
//! compio allocates once for each operation on the ring. The time-outs need Linux 5.11, `coop_taskrun` 5.19, and
//! `defer_taskrun` 6.1. Blocking closures run on the pool that all backends share. compio's own makes the worker spin
//! when it is full.
//!
//! # Known limits
//!
//! - A task that wakes itself without end does not stop I/O and timers: compio enters the ring
//!   after every 61 polls of tasks.
//! - Wakes from other threads go through a queue of 16,384 tasks. When it is full, the waking thread
//!   spins until the worker empties it. So a worker must never block on that thread.
//! - A cancellation that finds the submission queue full is not sent. When more operations than
//!   `entries` are dropped within one loop iteration, the rest keep their buffers until the peer acts or
//!   the connection is shut down. Those whose stream is dropped too end at once.
//! - The driver may drop a buffer. A buffer whose `Drop` starts or drops an operation panics then.
//!   Returning to a pool, or waking a task, is fine.
//! - A pending operation whose future is leaked ([`std::mem::forget`]) keeps the ring open.
//! - All operations are cancelled when `block_on` ends, also those of a future that outlives it. Linux
//!   before 5.19 cannot do that. The ring is leaked then, with the buffers of such a future.
//! - The kernel cannot cancel a read or a write of a file that it has begun. When one is still running a few
//!   milliseconds after the tasks were dropped, the ring is leaked, with its buffer.
//! - The waker of the main future holds a descriptor, the runtime's eventfd. A thread that still
//!   holds such a waker when `block_on` returns closes the descriptor soon after: at the end of a blocking
//!   closure, for example.
//! - With the default ring a completion can interrupt a blocking system call of the worker's thread
//!   (`EINTR`; seen with reads that have a time-out).
//! - An error of `io_uring_enter` that compio does not expect panics the worker.
//! - This crate does not compile where any crate turns on the feature `polling` of `compio-driver`. That
//!   feature would add an epoll driver to fall back to.

#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

mod file;
#[expect(unsafe_code, reason = "the kernel is handed pointers into buffers that the ring owns")]
mod op;
mod runtime;
mod socket;

pub use file::{CompioFile, CompioFileIo};
pub use owned_io_os::uring::RingConfig;
pub use runtime::{Compio, Config};
pub use socket::{CompioListener, CompioReadHalf, CompioSocket, CompioStream, CompioWriteHalf};
