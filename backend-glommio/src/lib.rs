//! [`owned_io`] on [glommio]: io_uring for readiness, one executor for each worker.
//!
//! ```
//! use owned_io::{ConnectOptions, Executor, ListenOptions, OwnedReadExt, OwnedWriteExt, Tcp};
//! use owned_io::TcpListener;
//! use owned_io_glommio::{Config, Glommio};
//!
//! # fn main() -> std::io::Result<()> {
//! Glommio::block_on(Config::default(), async {
//!     let bound = Glommio::bind(ListenOptions::new(([127, 0, 0, 1], 0).into()))?;
//!     let mut listener = Glommio::listen(&bound)?;
//!     let mut client = Glommio::connect(ConnectOptions::new(bound.local_addr())).await?;
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
//! | stream | – | – | shut down at once, closed one loop iteration later |
//!
//! A stream that is dropped with unread bytes is not shut down. Closing it, one loop iteration later, resets
//! the connection.
//!
//! # Ring settings
//!
//! glommio sets up three rings for each executor. Their flags cannot be chosen.
//!
//! | | default | tuned |
//! |---|---|---|
//! | entries of each ring | 128 | 128 |
//! | memory registered for direct I/O on files | 10 MiB | 64 KiB, the least it takes |
//! | preemption timer | 100 ms | 100 ms |
//!
//! # Platform notes
//!
//! glommio's TCP is not completion I/O: it submits `POLL_ADD`, and then calls `recv` and `send` itself. So a
//! read here does that too. A write is `send`, a vectored write is `sendmsg`. If it has to wait, it waits by
//! glommio's write of the same bytes, or of the first piece. That tries once more, without `MSG_NOSIGNAL`, so
//! SIGPIPE is blocked on the thread meanwhile. A pending pooled read holds no buffer. The first read of a connection, and
//! one after a read that has filled its buffer, tries `recv` before glommio has polled the ring.
//!
//! Operations of files are system calls on the pool for blocking closures. A read first takes what is in the page cache
//! (`preadv2` with `RWF_NOWAIT`), on the thread of the runtime. glommio's own do not give a buffer back (`write_at`), or
//! need one of glommio's for direct I/O.
//!
//! An operation that need not wait does not yield. Once a task has used up its budget
//! ([`owned_io::coop`]), it yields until glommio has polled the ring.
//!
//! # Known limits
//!
//! - A task that is always ready keeps timers and I/O waiting for as long as the preemption timer
//!   runs. A shorter one does not help.
//! - The executor sometimes goes to sleep with operations that it has not submitted, until
//!   something else wakes it. glommio itself does that, in a hand-written server too. It was seen with a
//!   preemption timer of 1 ms (5 of 74 runs on a busy machine) and once with 4,096 ring entries (1 of
//!   113), never with glommio's own settings (0 of 271). So the tuned settings do not change them.
//! - Each executor that ends leaves an eventfd open. Start one for each worker, not for each job.
//! - glommio asks the kernel for its operations once in a process. Where they are missing, it panics or ends
//!   the process. `block_on` asks first, and its error names what is missing.
//! - At least 512 KiB of locked memory must be allowed.

#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

mod file;
mod listener;
#[expect(unsafe_code, reason = "glommio takes raw descriptors and initialised slices")]
mod op;
mod runtime;
mod socket;

pub use file::GlommioFile;
pub use listener::{GlommioListenSocket, GlommioListener};
pub use runtime::{Config, Glommio};
pub use socket::{GlommioReadHalf, GlommioSocket, GlommioStream, GlommioWriteHalf};
