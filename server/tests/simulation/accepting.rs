//! The accept loop in the simulation: its connection limit, its end, and a loop that panics.

use std::cell::Cell;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use clap::Parser;
use owned_io::{
    BoundAddr, Clock, ConnectOptions, DirEntry, Executor, Files, HandOver, ListenOptions,
    MemoryBudget, OpenMode, OwnedReadExt, OwnedWriteExt, Random, StopSignal, Tcp, TcpListener,
    forward_runtime,
};
use owned_io_server::accept::accept_loop;
use owned_io_server::config::Flags;
use owned_io_server::connection_limit::ConnectionLimit;
use owned_io_server::connections::Connections;
use owned_io_server::drain::DrainSignal;
use owned_io_server::server;
use owned_io_sim::{Config, Sim, SimListener, SimStream};

const SEEDS: u64 = 100;

fn simulate(case: impl AsyncFn() -> io::Result<()>) {
    for seed in 0..SEEDS {
        println!("seed {seed}"); // shown when it fails
        Sim::block_on(Config::with_seed(seed), case()).unwrap().unwrap();
    }
}

fn bind(port: u16) -> io::Result<BoundAddr> {
    Sim::bind(ListenOptions::new(([10, 0, 0, 1], port).into()))
}

async fn connect(bound: &BoundAddr) -> io::Result<SimStream> {
    Sim::connect(ConnectOptions::new(bound.local_addr())).await
}

/// A listener without clients withholds no permit from the others, and together the listeners serve no more than
/// the limit.
#[test]
fn listeners_share_the_limit() {
    simulate(async || {
        let limit = ConnectionLimit::new(1);
        let bound = [bind(7)?, bind(8)?];
        let served = Rc::new(Cell::new(0));
        for bound in &bound {
            let (listener, limit) = (Sim::listen(bound)?, limit.clone());
            let served = Rc::clone(&served);
            drop(Sim::spawn(async move {
                let serve = move |mut stream: SimStream, _| {
                    let served = Rc::clone(&served);
                    async move {
                        served.set(served.get() + 1);
                        assert_eq!(served.get(), 1, "served at once");
                        stream.write_all("served").await.into_result()?;
                        let asked = stream.read_exact(Vec::with_capacity(1), 1).await;
                        served.set(served.get() - 1);
                        asked.into_result().map(drop)
                    }
                };
                let connections = Connections::new(DrainSignal::default(), MemoryBudget::new(0));
                let stop = StopSignal::new();
                accept_loop::<Sim, _>(listener, limit, connections, &stop, serve).await;
            }));
        }
        // All wait for the one permit, half of them at each listener.
        let mut clients = Vec::new();
        for client in 0..6 {
            clients.push(connect(&bound[client % 2]).await?);
        }
        let served = clients.into_iter().map(|mut client| {
            Sim::spawn(async move {
                client.read_exact(Vec::with_capacity(6), 6).await.into_result()?;
                Sim::sleep(Duration::from_millis(1)).await;
                client.write_all("x").await.into_result()
            })
        });
        for served in served.collect::<Vec<_>>() {
            served.await.unwrap()?;
        }
        Ok(())
    });
}

/// Even if clients wait to be accepted.
#[test]
fn the_accept_loop_ends_at_the_stop_signal() {
    simulate(async || {
        let bound = bind(7)?;
        let listener = Sim::listen(&bound)?;
        let mut clients = Vec::new();
        for _ in 0..100 {
            clients.push(connect(&bound).await?);
        }
        let (stop, limit) = (StopSignal::new(), ConnectionLimit::new(1000));
        stop.stop();
        let connections = Connections::new(DrainSignal::default(), MemoryBudget::new(0));
        let serve = |_stream, _| pending::<io::Result<()>>();
        accept_loop::<Sim, _>(listener, limit.clone(), connections, &stop, serve).await;
        assert_eq!(limit.in_use(), 0);
        Ok(())
    });
}

/// The simulator, except that an accept at port [`BROKEN`] panics.
struct WithBrokenListener;

/// The port of the listener that panics.
const BROKEN: u16 = 8;

struct BrokenListener(SimListener);

impl TcpListener for BrokenListener {
    type Stream = SimStream;

    async fn accept(&mut self) -> io::Result<(SimStream, SocketAddr)> {
        assert_ne!(self.local_addr()?.port(), BROKEN, "this listener is broken");
        self.0.accept().await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl Clock for WithBrokenListener {
    forward_runtime!(Clock => Sim);
}

impl Random for WithBrokenListener {
    forward_runtime!(Random => Sim);
}

impl Executor for WithBrokenListener {
    forward_runtime!(Executor => Sim);
}

impl Tcp for WithBrokenListener {
    type TcpListener = BrokenListener;

    fn listen(bound: &BoundAddr) -> io::Result<BrokenListener> {
        Sim::listen(bound).map(BrokenListener)
    }
    forward_runtime!(Tcp::{TcpStream, bind, connect} => Sim);
}

impl HandOver for WithBrokenListener {
    type Detached = <Sim as HandOver>::Detached;

    async fn accept_detached(
        listener: &mut BrokenListener,
    ) -> io::Result<(Self::Detached, SocketAddr)> {
        Sim::accept_detached(&mut listener.0).await
    }
    fn adopt(detached: Self::Detached) -> io::Result<SimStream> {
        Sim::adopt(detached)
    }
}

impl Files for WithBrokenListener {
    type File = <Sim as Files>::File;

    async fn open(path: &Path, mode: OpenMode) -> io::Result<Self::File> {
        <Sim as Files>::open(path, mode).await
    }
    async fn list_dir(path: &Path) -> io::Result<Vec<DirEntry>> {
        Sim::list_dir(path).await
    }
    async fn create_dir_all(path: &Path) -> io::Result<()> {
        Sim::create_dir_all(path).await
    }
    async fn rename(from: &Path, to: &Path) -> io::Result<()> {
        Sim::rename(from, to).await
    }
    async fn remove_file(path: &Path) -> io::Result<()> {
        Sim::remove_file(path).await
    }
    async fn remove_dir(path: &Path) -> io::Result<()> {
        Sim::remove_dir(path).await
    }
    async fn sync_dir(path: &Path) -> io::Result<()> {
        Sim::sync_dir(path).await
    }
}

/// Whichever listener it is, and without a stop signal.
#[test]
fn a_panic_of_the_accept_loop_ends_the_server_and_says_so() {
    for (echo, sink) in [(BROKEN, 7), (7, BROKEN)] {
        let address = |port| format!("10.0.0.1:{port}");
        let (echo, sink) = (address(echo), address(sink));
        let flags = ["server", "--workers", "1", "--echo", &echo, "--sink", &sink];
        let config = Flags::parse_from(flags).into_config().unwrap();
        let error =
            server::run::<WithBrokenListener>(&config, StopSignal::new(), |_| {}).unwrap_err();
        assert!(error.to_string().contains("this listener is broken"), "{error}");
    }
}
