//! A task that panics loses its connection and nothing else: in the simulation, and on each runtime that is
//! compiled in.

use std::io;
use std::num::NonZeroUsize;
use std::time::Duration;

use owned_io::{
    BufResult, ByteStream, ConnectOptions, ListenOptions, MemoryBudget, OwnedRead, OwnedReadExt,
    OwnedWriteExt, Runtime, Worker, WorkersConfig, shutdown_after,
};
use owned_io_server::accept::accept_loop;
use owned_io_server::connection_limit::ConnectionLimit;
use owned_io_server::connections::{ConnectionHandle, Connections};
use owned_io_server::drain::DrainSignal;
use owned_io_sim::Sim;

/// The byte that makes the service of this test panic.
const PANIC: u8 = b'!';

/// One for the neighbour, and one for the clients that make their tasks panic, one after the other. The second of
/// them would not be served if the first had not released its permit.
const CONNECTIONS_MAX: usize = 2;

const ROUNDS: usize = 5;

const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn in_the_simulation() {
    for seed in 0..100 {
        println!("seed {seed}"); // shown when it fails
        case::<Sim>(owned_io_sim::Config::with_seed(seed));
    }
}

#[cfg(feature = "tokio")]
#[test]
fn on_tokio() {
    default_case::<owned_io_tokio::Tokio>();
}

#[cfg(feature = "tokio-uring")]
#[test]
fn on_tokio_uring() {
    default_case::<owned_io_tokio_uring::TokioUring>();
}

#[cfg(feature = "compio")]
#[test]
fn on_compio() {
    default_case::<owned_io_compio::Compio>();
}

#[cfg(feature = "monoio")]
#[test]
fn on_monoio() {
    default_case::<owned_io_monoio::Monoio>();
}

#[cfg(feature = "glommio")]
#[test]
fn on_glommio() {
    default_case::<owned_io_glommio::Glommio>();
}

fn default_case<R: Runtime>() {
    case::<R>(R::Config::default());
}

/// Runs one worker, with its clients in the same runtime.
fn case<R: Runtime>(runtime: R::Config) {
    let mut workers = WorkersConfig::<R>::new(NonZeroUsize::MIN);
    workers.runtime = runtime;
    R::run_workers(workers, serve_and_be_served::<R>).expect("the worker ends cleanly");
}

async fn serve_and_be_served<R: Runtime>(worker: Worker) -> io::Result<()> {
    let bound = R::bind(ListenOptions::new(([127, 0, 0, 1], 0).into()))?;
    let addr = bound.local_addr();
    let listener = R::listen(&bound)?;
    let limit = ConnectionLimit::new(CONNECTIONS_MAX);
    let connections = Connections::new(DrainSignal::default(), MemoryBudget::new(0));
    let accepting = R::spawn({
        let (limit, connections) = (limit.clone(), connections.clone());
        let stop = worker.stop.clone();
        async move {
            accept_loop::<R, _>(listener, limit, connections, &stop, echo_or_panic).await;
        }
    });

    let mut neighbour = R::connect(ConnectOptions::new(addr)).await?;
    echoed::<R>(&mut neighbour, b"before").await;
    for _ in 0..ROUNDS {
        let mut doomed = R::connect(ConnectOptions::new(addr)).await?;
        echoed::<R>(&mut doomed, b"not yet").await;
        doomed.write_all(vec![PANIC]).await.into_result()?;
        assert_ended::<R>(&mut doomed).await;
        echoed::<R>(&mut neighbour, b"as ever").await;
    }

    worker.stop.stop();
    accepting.await.expect("no panic");
    echoed::<R>(&mut neighbour, b"to the end").await;
    connections.close_all();
    limit.all_released().await;
    assert_ended::<R>(&mut neighbour).await;
    Ok(())
}

async fn echo_or_panic(mut stream: impl ByteStream, _: ConnectionHandle) -> io::Result<()> {
    let mut buf = Vec::with_capacity(64);
    loop {
        let n;
        (n, buf) = stream.read(buf).await.into_result()?;
        if n == 0 {
            return Ok(());
        }
        assert!(!buf.contains(&PANIC), "told to panic");
        ((), buf) = stream.write_all(buf).await.into_result()?;
    }
}

async fn echoed<R: Runtime>(client: &mut R::TcpStream, bytes: &'static [u8]) {
    let handle = client.shutdown_handle();
    let exchange = async {
        client.write_all(bytes).await.into_result()?;
        let len = bytes.len();
        Ok(client.read_exact(Vec::with_capacity(len), len).await.into_result()?.1)
    };
    let answer = shutdown_after::<R, io::Result<Vec<u8>>>(PATIENCE, &handle, exchange).await;
    assert_eq!(answer.expect("an answer"), bytes);
}

/// Asserts that the server has ended the connection, cleanly or by a reset, with nothing more to read.
async fn assert_ended<R: Runtime>(client: &mut R::TcpStream) {
    let handle = client.shutdown_handle();
    let end = async {
        let BufResult(result, _) = client.read(Vec::with_capacity(16)).await;
        result
    };
    match shutdown_after::<R, _>(PATIENCE, &handle, end).await {
        Ok(0) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        other => panic!("expected the end, got {other:?}"),
    }
}
