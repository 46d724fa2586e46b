//! A client that is accepted beside busy tasks is served before any of them is polled again: in the simulation, and on
//! each runtime that is compiled in.
//!
//! Time is counted in polls of the busy tasks, because the clock depends on the load of the machine.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use std::{io, mem};

use owned_io::{
    BoundAddr, Clock, ConnectOptions, Executor, ListenOptions, MemoryBudget, OwnedRead,
    OwnedReadExt, OwnedWriteExt, Random, Runtime, StopSignal, Tcp, TcpListener, coop,
    forward_runtime,
};
use owned_io_server::accept::accept_loop;
use owned_io_server::connection_limit::ConnectionLimit;
use owned_io_server::connections::Connections;
use owned_io_server::drain::DrainSignal;
use owned_io_sim::Sim;

/// The tasks that always have work. A turn of the queue has this many polls of theirs.
const BUSY: u64 = 50;

const SEEDS: u64 = 100;

/// Long enough for requests to arrive.
const A_WHILE: Duration = Duration::from_millis(30);

thread_local! {
    /// The polls of the busy tasks.
    static POLLS: Cell<u64> = const { Cell::new(0) };
    /// `POLLS` when a client was accepted last.
    static ACCEPTED_AT: Cell<u64> = const { Cell::new(0) };
}

/// What a client's task has seen, in polls of the busy tasks.
struct Served {
    /// When it was accepted.
    accepted_at: u64,
    /// From then until its task ran.
    began: u64,
    /// Until its request was read.
    read: u64,
    /// Until it was answered.
    answered: u64,
}

/// Some operations of the simulator wait for a turn. Both of a client do not with a probability of 9 in 16.
#[test]
fn in_the_simulation() {
    let (mut clients, mut at_once) = (0, 0);
    for seed in 0..SEEDS {
        println!("seed {seed}"); // shown when it fails
        for served in serve::<Sim>(owned_io_sim::Config::with_seed(seed), 8, 0) {
            assert_eq!(served.began, 0, "the polls of busy tasks before that of a new client");
            // A read or a write that waits is polled again in the next turn.
            assert!(served.answered <= 4 * BUSY, "{} polls until the answer", served.answered);
            clients += 1;
            at_once += u32::from(served.answered == 0);
        }
    }
    assert!(at_once > clients / 3, "{at_once} of {clients} clients were answered at once");
}

#[cfg(feature = "tokio")]
#[test]
fn on_tokio() {
    serve_without_work::<owned_io_tokio::Tokio>();
}

#[cfg(feature = "tokio-uring")]
#[test]
fn on_tokio_uring() {
    serve_without_work::<owned_io_tokio_uring::TokioUring>();
}

#[cfg(feature = "compio")]
#[test]
fn on_compio() {
    serve_without_work::<owned_io_compio::Compio>();
}

#[cfg(feature = "monoio")]
#[test]
fn on_monoio() {
    serve_without_work::<owned_io_monoio::Monoio>();
}

#[cfg(feature = "glommio")]
#[test]
fn on_glommio() {
    serve_without_work::<owned_io_glommio::Glommio>();
}

/// Each client is answered before any busy task is polled.
fn serve_without_work<R: Runtime>() {
    for Served { began, read, answered, .. } in serve::<R>(R::Config::default(), 8, 0) {
        let seen = (began, read, answered);
        assert_eq!(
            seen,
            (0, 0, 0),
            "the polls of busy tasks before the task, its read, its answer"
        );
    }
}

/// Clients with much work do not keep the others waiting: some of them wait for their turn.
#[test]
fn clients_with_work_are_not_all_served_at_once() {
    const CLIENTS: u64 = 60;
    const WORK_NANOS: u64 = coop::POLL_BUDGET_NANOS as u64 * 4 / 5;
    const AT_ONCE_MAX: u64 = coop::EAGER_BUDGET_NANOS as u64 / WORK_NANOS + 1;
    for seed in 0..SEEDS {
        println!("seed {seed}"); // shown when it fails
        let config = owned_io_sim::Config::with_seed(seed);
        let mut at_once = BTreeMap::<u64, u64>::new();
        let served = serve::<Sim>(config, CLIENTS, WORK_NANOS);
        assert_eq!(served.len() as u64, CLIENTS);
        for served in served.into_iter().filter(|served| served.began == 0) {
            *at_once.entry(served.accepted_at).or_default() += 1;
        }
        let most = at_once.into_values().max().unwrap_or(0);
        // The accept loop may be the last task of a turn and the first of the next one.
        assert!((1..=2 * AT_ONCE_MAX).contains(&most), "{most} clients were served at once");
    }
}

/// Serves clients that have connected and sent a request before the accept loop begins, while other tasks are busy. Each
/// client causes work of `work_nanos` before its request is read.
fn serve<R: Runtime>(config: R::Config, clients: u64, work_nanos: u64) -> Vec<Served> {
    let serving = serve_beside_busy_tasks::<R>(clients, work_nanos);
    R::block_on(config, serving).expect("a runtime").expect("no error of a connection")
}

async fn serve_beside_busy_tasks<R: Runtime>(
    clients: u64,
    work_nanos: u64,
) -> io::Result<Vec<Served>> {
    let bound = R::bind(ListenOptions::new(([127, 0, 0, 1], 0).into()))?;
    let listener = Observed::<R>::listen(&bound)?;
    let mut connected = Vec::new();
    for _ in 0..clients {
        let mut client = R::connect(ConnectOptions::new(bound.local_addr())).await?;
        client.write_all("?").await.into_result()?;
        connected.push(client);
    }
    // No timer is used beyond this: on monoio, none fires while a task has work.
    R::sleep(A_WHILE).await;
    for task in 0..BUSY {
        drop(R::spawn(be_busy::<R>(task))); // each begins with another turn, so that they do not all sleep at once
    }

    let all = Rc::new(RefCell::new(Vec::new()));
    let serve = {
        let all = Rc::clone(&all);
        move |mut stream: R::TcpStream, _| {
            let all = Rc::clone(&all);
            async move {
                let accepted_at = ACCEPTED_AT.get();
                let since = || POLLS.get() - accepted_at;
                let began = since();
                coop::consume(work_nanos);
                let (_, request) = stream.read(Vec::with_capacity(8)).await.into_result()?;
                let read = since();
                stream.write_all(request).await.into_result()?;
                let answered = since();
                all.borrow_mut().push(Served { accepted_at, began, read, answered });
                stream.read(Vec::with_capacity(8)).await.into_result().map(drop) // the end
            }
        }
    };
    drop(R::spawn(async move {
        let limit = ConnectionLimit::new(clients as usize);
        let connections = Connections::new(DrainSignal::default(), MemoryBudget::new(0));
        let stop = StopSignal::new();
        accept_loop::<Observed<R>, _>(listener, limit, connections, &stop, serve).await;
    }));
    for client in &mut connected {
        client.read_exact(Vec::with_capacity(1), 1).await.into_result()?;
    }
    // The client may know the answer before the task that has sent it.
    while (all.borrow().len() as u64) < clients {
        let_others_run().await;
    }
    Ok(all.take())
}

/// Always has work. Most of these tasks are in the queue of the runtime at any time: tokio keeps one that sleeps for zero
/// apart until the queue is empty. The others poll I/O only while tasks sleep.
async fn be_busy<R: Runtime>(first_turn: u64) {
    for turn in first_turn.. {
        POLLS.set(POLLS.get() + 1);
        if turn.is_multiple_of(4) {
            R::sleep(Duration::ZERO).await;
        } else {
            let_others_run().await;
        }
    }
}

async fn let_others_run() {
    let mut has_waited = false;
    poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if mem::replace(&mut has_waited, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// `R`, whose listeners record when a client is accepted.
struct Observed<R>(PhantomData<R>);

struct ObservedListener<L>(L);

impl<L: TcpListener> TcpListener for ObservedListener<L> {
    type Stream = L::Stream;

    async fn accept(&mut self) -> io::Result<(L::Stream, SocketAddr)> {
        let accepted = self.0.accept().await;
        ACCEPTED_AT.set(POLLS.get());
        accepted
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl<R: Runtime> Clock for Observed<R> {
    forward_runtime!(Clock => R);
}

impl<R: Runtime> Random for Observed<R> {
    forward_runtime!(Random => R);
}

impl<R: Runtime> Executor for Observed<R> {
    forward_runtime!(Executor => R);
}

impl<R: Runtime> Tcp for Observed<R> {
    type TcpListener = ObservedListener<R::TcpListener>;

    fn listen(bound: &BoundAddr) -> io::Result<ObservedListener<R::TcpListener>> {
        R::listen(bound).map(ObservedListener)
    }
    forward_runtime!(Tcp::{TcpStream, bind, connect} => R);
}
