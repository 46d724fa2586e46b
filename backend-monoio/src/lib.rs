//! [`owned_io`] on [monoio]: io_uring, one runtime for each worker.
//!
//! ```
//! use owned_io::{ConnectOptions, Executor, ListenOptions, OwnedReadExt, OwnedWriteExt, Tcp};
//! use owned_io::TcpListener;
//! use owned_io_monoio::{Config, Monoio};
//!
//! # fn main() -> std::io::Result<()> {
//! Monoio::block_on(Config::default(), async {
//!     let bound = Monoio::bind(ListenOptions::new(([127, 0, 0, 1], 0).into()))?;
//!     let mut listener = Monoio::listen(&bound)?;
//!     let mut client = Monoio::connect(ConnectOptions::new(bound.local_addr())).await?;
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
//! | read | freed when an operation or a sleep begins on the thread, one loop iteration later or more | lost if they arrive before the kernel cancels it, one loop iteration later | usable, with that gap |
//! | pooled read | as for a read; none if `Pool::take_for_waiting_read` returned none | as for a read; none lost if it held no buffer | as for a read |
//! | write | as for a read, once the kernel is done with it | any part may have been sent | only to be dropped |
//! | vectored write | freed at once | none sent | usable |
//! | read of a file | as for a read, once the kernel is done with it | – | usable |
//! | write of a file | as for a read, once the kernel is done with it | any part may be written, even later | usable |
//! | vectored write of a file | freed when a later one begins on the thread | any part may be written, even later | usable |
//! | accept | – | no client lost | usable |
//! | connect | – | – | attempt given up at once, socket closed one loop iteration later |
//! | stream | – | – | shut down at once, closed one loop iteration later; with unread bytes, reset one loop iteration later, unless an operation of it was ever dropped: then shut down |
//!
//! An operation that is forgotten (`mem::forget`) leaks its descriptor, its buffer and the ring. The
//! connection still ends when the stream is dropped.
//!
//! # Ring settings
//!
//! | setting | default | tuned | |
//! |---|---|---|---|
//! | `entries` | 1,024 | 4,096 | fewer than 256 are refused: monoio would take 256 |
//! | `completion_entries` | 2,048 | 16,384 | the completions of 16,000 connections fit into the queue at once |
//! | `coop_taskrun` | off | on | without it, completions interrupt the thread: an echo of 200 bytes takes 12 to 31 % more CPU |
//! | `single_issuer` | off | on | |
//! | `defer_taskrun` | off | off | 1 to 2 % less CPU than `coop_taskrun`, and some connections wait for seconds: see the limits. Needs `single_issuer` |
//! | `sqpoll_idle` | off | off | refused: monoio panics when the submission queue is full, which it then cannot empty |
//!
//! # Platform notes
//!
//! A read is a `RECV` of the ring. A pooled read is a `RECV` while `Pool::take_for_waiting_read` has a buffer. Otherwise it
//! waits by `POLL_ADD`, then receives. The first read of a connection, and one after a read that has filled its buffer,
//! tries `recv` before that, while the task has budget.
//!
//! A write is a `SEND`. A vectored write waits by `POLL_ADD`, then calls `sendmsg`, because monoio's own is a `WRITEV`, which
//! raises SIGPIPE. The first four writes of a connection, and all of 8 KiB or more, try `send` and `sendmsg`
//! before that, while the task has budget.
//!
//! Accept tries `accept4` first, and connect begins without waiting; both then wait by `POLL_ADD`. Closing is a `CLOSE`
//! within the runtime, and close(2) outside of it. Each worker has a descriptor that is always readable, next to its ring and its
//! eventfd. A sleep of zero waits for it, which took 0.9 µs. Another one is the placeholder for files, see below. Longer
//! sleeps are in a tree, and a task waits for the first of them with one timer of monoio, which would take a kilobyte for
//! each.
//!
//! A read, a write and a sync of a file are `READ`, `WRITE` and `FSYNC`. A vectored write is a system call on the pool for
//! blocking closures, because monoio's own has no position. So is everything else about files. An open file has two
//! descriptors: monoio closes its own through the ring. The kernel does not execute such a close if it has to wait, because
//! monoio cancels it at once. So a placeholder takes the place of the file before.
//!
//! The operations need Linux 5.6. The check before the runtime is built requires 5.11, as on every backend with
//! io_uring. `coop_taskrun` needs 5.19, `single_issuer` 6.0 and `defer_taskrun` 6.1.
//!
//! # Known limits
//!
//! - **A task that wakes itself while it is polled stops its worker** for as long as it does so, with
//!   all its tasks and its I/O: monoio puts it at the front of the queue. Next to such a task, no
//!   other task ran once in 3 s. To yield, sleep for zero.
//! - Tasks that wake each other without a pause keep timers from firing, and wakes from other threads from
//!   arriving. With `defer_taskrun` I/O stops too. A sleep of zero avoids this as well.
//! - With `defer_taskrun` the kernel processes completions only when monoio has no ready task. Beside 4,000 busy connections
//!   579 of 1,000 new ones waited over 1 s for their first echo, and some of the busy ones up to 2.1 s. With `coop_taskrun`
//!   nobody waited for 0.2 s (WebSocket, Linux 6.18).
//! - A waker must begin no operation when it is woken or dropped. monoio does both while it uses the ring, and does not
//!   check it. The wakers of tasks, and those of this workspace, begin none.
//! - monoio panics where the kernel refuses a submission for another reason than that it is busy.
//!   Such a panic ends `block_on`, and leaks the tasks that wait then.
//! - `block_on` waits at its end for the reads and writes of files that were dropped, for at most two seconds. If some are
//!   left, it leaks the ring and their buffers.
//! - Each `block_on` leaks 24 bytes. Where the ring can be set up but no descriptor is left for its
//!   eventfd, `block_on` fails and leaks the ring's descriptor.
//! - A dropped operation ends one loop iteration later. `block_on` runs two iterations before it
//!   returns. A stream that outlives it is closed when it is dropped.

#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

mod file;
mod local;
#[expect(
    unsafe_code,
    reason = "monoio's buffer traits are unsafe, and its stream takes `&mut` to read and to write"
)]
mod op;
mod runtime;
mod socket;
mod timers;

pub use file::{MonoioFile, MonoioFileIo};
pub use owned_io_os::uring::RingConfig;
pub use runtime::{Config, Monoio};
pub use socket::{MonoioListener, MonoioReadHalf, MonoioSocket, MonoioStream, MonoioWriteHalf};
