//! [`owned_io`] in a simulated world: any service written on it, through years of bad luck in minutes, and
//! any failure again from its seed.
//!
//! One thread runs everything, the clock jumps from one event to the next, and every choice comes from one
//! seed: which task has its turn, how short a read is, how long a segment is under way, what a fault
//! destroys. So a run repeats exactly, and code that works by luck fails here under some seed.
//!
//! # How to test a service of one's own
//!
//! Write it for any [`Runtime`](owned_io::Runtime), add this crate to its `[dev-dependencies]`, and in a
//! `#[test]` run it as [`Sim`]: start it on a host, be its client on another, let things go wrong, and say
//! what has to be true nevertheless.
//!
//! ```
//! use std::io;
//! use std::time::Duration;
//! use owned_io::{ByteStream, Clock, ConnectOptions, ListenOptions, OwnedReadExt, OwnedWriteExt};
//! use owned_io::{Pool, PoolConfig, Runtime, Tcp, TcpListener, copy};
//! use owned_io_sim::{Kind, Plan, Random, Sim};
//!
//! /// The service: echoes on every connection, on whatever runtime.
//! async fn serve<R: Runtime>(port: u16) -> io::Result<()> {
//!     let bound = R::bind(ListenOptions::new(([0, 0, 0, 0], port).into()))?;
//!     let mut listener = R::listen(&bound)?;
//!     let pool = Pool::new(PoolConfig::default());
//!     loop {
//!         let Ok((stream, _peer)) = listener.accept().await else {
//!             R::sleep(Duration::from_millis(50)).await; // out of descriptors, say
//!             continue;
//!         };
//!         let pool = pool.clone();
//!         drop(R::spawn(async move {
//!             let (mut read, mut write) = stream.into_split();
//!             copy(&mut read, &mut write, &pool).await
//!         }));
//!     }
//! }
//!
//! // In a `#[test]`:
//! owned_io_sim::run(owned_io_sim::seeds(10), async |world| {
//!     let (server, client) = (world.host("server"), world.host("client"));
//!     server.start(|| serve::<Sim>(7)); // and again, should it go down
//!     let faults = Random { kinds: &Kind::HARMLESS, ..Random::default() };
//!     world.inject(Plan::random(&[server.clone(), client.clone()], faults));
//!
//!     let asking = client.spawn(async move {
//!         let mut stream = loop {
//!             match Sim::connect(ConnectOptions::new(server.at(7))).await {
//!                 Ok(stream) => break stream,
//!                 Err(_) => Sim::sleep(Duration::from_secs(1)).await,
//!             }
//!         };
//!         stream.write_all("anybody there?").await.into_result()?;
//!         stream.read_exact(Vec::with_capacity(14), 14).await.into_result()
//!     });
//!     let ((), answer) = asking.await.expect("no panic")?;
//!     assert_eq!(answer, b"anybody there?");
//!     Ok(())
//! });
//! ```
//!
//! When an assertion of the scenario fails, when it returns an error, or when it waits for what never
//! comes, [`run`](fn@run) panics with the seed, the faults and the last events. This is some of what it says
//! of `examples/lost_bytes.rs`, a small service that drops a read, and works by luck on some runtimes:
//!
//! ```text
//! the simulation has failed under seed 0: panicked: a digit was not answered: Panicked("no answer to 1")
//!
//! the last of 56 events (their hash is 606327a12b1e823c):
//!       0.265051 s  client     task 3 has its turn
//!       0.265052 s  client     #1 takes 1 bytes to send
//!       0.265498 s  server     #1 receives 1 bytes
//!       0.265498 s  server     #1: a dropped operation takes 1 bytes
//!       0.352742 s  server     task 4 has its turn
//!
//! this seed alone, with more of the trace: SIM_SEED=0
//! ```
//!
//! Run with `SIM_SEED=0` in the environment, the same comes again, with more of the trace;
//! [`World::note`] adds lines of one's own to it. `SIM_SEEDS=1000` has more seeds tried than the test asks
//! for: a few for each change, many at night.
//!
//! What makes such a test worth its while:
//!
//! - **Ask for what was promised.** After a [`Kind::HARMLESS`] fault a connection goes on, and every byte has
//!   to come. After a crash a client has to connect again, and an answer that it never got may or may not
//!   have been worked out.
//! - **Let all be well in the end.** Faults pass; a client that tries on until they have must be served
//!   then. `server/tests/faults.rs` of this repository does it so, and is a pattern for more than echoes.
//! - **Bound what may wait for ever.** TCP tells nobody of a peer without power: a read that no
//!   [`timeout`](owned_io::timeout) ends is a deadlock under some seed, here as in production.
//! - **Wait for every task that asserts something.** The panic of a task whose handle was dropped ends that
//!   task, and nothing else, as on every runtime. Await the handles, or have the task say what it did.
//!
//! For a small test without hosts there is [`Sim::block_on`](owned_io::Executor::block_on), and [`pipe`] for
//! a connection that nobody had to listen for.
//!
//! # What is simulated
//!
//! - **Hosts** with an address, a limit of descriptors (`EMFILE`) and of ports to connect from
//!   (`EADDRNOTAVAIL`; who ends first keeps its port for a minute), a time of day of their own, and
//!   services that start again after the host was down. The main future runs on a host too; it has every
//!   address that nobody else has.
//! - **TCP** between them: latency, jitter and bandwidth by [`Link`], finite buffers that slow readers fill,
//!   half-close, `FIN` and `RST` as Linux sends and tells them, accept queues that overflow (the SYN is
//!   dropped, and sent again after 1, 2, 4 ... seconds), segments that are lost and sent again after
//!   200 ms and more, and given up after 15 minutes.
//! - **Completions**: short reads and writes wherever the contract allows them, completions in any order.
//!   A buffer is watched while an operation has it: one that is changed meanwhile, or whose bytes move,
//!   against the rules of [`IoBuf`](owned_io::IoBuf), has the operation panic. In [`run`](fn@run), an operation
//!   that is dropped while it is pending may have happened nevertheless, as on a kernel that completes: a
//!   read takes its bytes with it.
//! - **Faults** by a [`Plan`]: see [`Fault`].
//! - **Tasks, time, chance**: any ready task may be next, each turn takes a microsecond, and timers,
//!   random bytes and the time of day come from the clock and the seed.
//!
//! # What is not
//!
//! - Files: the contract has none yet. UDP and Unix sockets: it has none.
//! - Packets: what one write sends is one segment, in order, and an acknowledgement takes no time of its
//!   own except where a writer waits for one. No congestion control, no Nagle, no `ECN`, no keep-alive. A
//!   connection's send and receive buffer are one in each direction. A client whose SYN was answered has its
//!   place in the accept queue; Linux may still drop the last segment of the handshake.
//! - Links: a fault is between two hosts, and nothing routes around it. Tasks of one host reach each other
//!   at once, whatever happens. Only the ports that the system chooses are kept apart, not those asked for by
//!   [`local_addr`](owned_io::ConnectOptions::local_addr).
//! - Cores: all hosts share one, a microsecond for each turn of a task, whatever it computes. Data races
//!   between threads are not found here: use `loom` for those.
//! - What does not go through [`Runtime`](owned_io::Runtime): `std::time`, `std::net`, other random
//!   numbers, the order of a `HashMap`. [`run`](fn@run) finds out when it makes a difference, not where.
//!
//! # How it repeats
//!
//! All that happens is planned in one queue, by its time and then by the order in which it was planned;
//! all chance is one generator; nothing looks at addresses, hash order, clocks or threads. Each event goes
//! into a hash ([`World::trace_hash`], [`Summary`]): two runs with the same seed have the same, in one
//! process or in two.
//!
//! # What a drop does
//!
//! | dropped while pending | buffer | bytes | stream afterwards |
//! |---|---|---|---|
//! | read, pooled read | freed at once | none lost; in [`run`](fn@run) the next ones may be | usable |
//! | write, vectored write | freed at once | none sent; in [`run`](fn@run) some may be | usable |
//! | accept | – | no client lost | usable |
//! | connect | – | – | attempt given up |
//! | stream | – | unread bytes reset the connection, as on Linux | closed |
//!
//! # Deviations
//!
//! `spawn_blocking` runs its closure, and `run_workers` its workers, on the simulation's own thread:
//! another thread's progress could not be repeated. Within a simulation, a service of several workers is
//! started by [`run_workers`](fn@run_workers).

#![forbid(unsafe_code)]

mod connect;
mod connection;
mod core;
mod delivery;
mod dice;
mod errno;
mod executor;
mod fault;
mod held;
mod host;
mod link;
mod listener;
mod plan;
mod ports;
mod queue;
mod ready;
mod run;
mod runtime;
mod slab;
mod stream;
mod timer;
mod trace;
mod world;

pub use host::Host;
pub use link::Link;
pub use listener::SimListener;
pub use plan::{Fault, Kind, Plan, Random};
pub use run::{Summary, run, seeds, simulate};
pub use runtime::{Config, Sim, run_workers};
pub use stream::{SimReadHalf, SimStream, SimWriteHalf, pipe};
pub use world::World;

/// Runs `future` in a simulation with seed 0, for examples and small tests.
///
/// # Panics
/// As [`Executor::block_on`](owned_io::Executor::block_on) of [`Sim`] does.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let world = executor::Shared::new(Config::default());
    executor::run(&world, future).unwrap_or_else(|panicked| panicked.resume())
}
