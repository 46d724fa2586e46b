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
//! | read | freed a turn later | lost if they arrive before the kernel cancels it, a turn later | usable, with that gap |
//! | pooled read | like a read; none was held if `Pool::take_to_wait` had none | as for a read; then none lost | as for a read |
//! | write | freed once the kernel lets go of it | any part may have been sent | only to be dropped |
//! | vectored write | freed at once | none sent | usable |
//! | accept | – | no client lost | usable |
//! | connect | – | – | attempt given up at once, socket closed a turn later |
//! | stream | – | – | shut down at once, closed a turn later; with bytes unread, reset a turn later |
//!
//! An operation that is forgotten (`mem::forget`) leaks its descriptor, its buffer and the ring; the
//! connection ends nevertheless when the stream is dropped.
//!
//! # Ring settings
//!
//! | setting | default | tuned | |
//! |---|---|---|---|
//! | `entries` | 1,024 | 4,096 | fewer than 256 are refused: monoio would take 256 |
//! | `coop_taskrun` | off | off | accepted |
//! | `single_issuer` | off | on | needed by the next |
//! | `defer_taskrun` | off | on | an echo of 64 bytes took 12.2 µs instead of 12.8 (Linux 6.18, 2 cores, both ends on one thread) |
//! | `sqpoll_idle` | off | off | refused: monoio panics when the submission queue is full, which it then cannot empty |
//!
//! # Platform notes
//!
//! A read is a `RECV` of the ring, a write a `SEND`. So is a pooled read while `Pool::take_to_wait`
//! has a buffer; else it waits by a `POLL_ADD`, then receives. A vectored write waits likewise, then
//! calls `sendmsg`, because monoio's own is a `WRITEV`, which raises SIGPIPE. Accept and connect wait
//! by `POLL_ADD` too. Closing is a `CLOSE` within the runtime, and close(2) outside of it. Each worker
//! has, beside its ring and its eventfd, a descriptor that is always readable: a sleep of zero waits
//! for it, which took 0.9 µs.
//!
//! Linux 5.6 has the operations; 5.19 has `coop_taskrun`, 6.0 `single_issuer`, 6.1 `defer_taskrun`.
//!
//! # Known limits
//!
//! - **A task that wakes itself while it is polled stops its worker** for as long as it does so, with
//!   all its tasks and its I/O: monoio puts it at the front of the queue (for 3 s no other task ran
//!   once). To yield, sleep for zero.
//! - Tasks that wake each other without a pause let no timer fire and no wake from another thread
//!   through; with `defer_taskrun` I/O stops too. Sleeping for zero avoids this as well.
//! - monoio panics where the kernel refuses a submission for another reason than that it is busy.
//!   Such a panic ends `block_on`, and the tasks that wait then are leaked.
//! - Each `block_on` leaks 24 bytes. Where the ring can be set up but no descriptor is left for its
//!   eventfd, `block_on` fails and leaks the ring's descriptor.
//! - A turn of the ring is what a dropped operation needs to end. `block_on` takes them before it
//!   returns; a stream that outlives it is closed when it is dropped.

#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

mod local;
#[expect(
    unsafe_code,
    reason = "monoio's buffer traits are unsafe, and its stream takes `&mut` to read and to write"
)]
mod op;
mod runtime;
mod socket;

pub use owned_io_os::uring::RingConfig;
pub use runtime::{Config, Monoio};
pub use socket::{MonoioListener, MonoioReadHalf, MonoioSocket, MonoioStream, MonoioWriteHalf};
