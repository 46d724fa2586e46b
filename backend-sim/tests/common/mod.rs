//! Helpers that the tests of the simulated world share.
#![allow(dead_code, reason = "each test program uses a part")]

use std::io;
use std::time::Duration;

use owned_io::{
    ByteStream, Clock, ConnectOptions, Executor, ListenOptions, OwnedReadExt, OwnedWriteExt, Pool,
    PoolConfig, Tcp, TcpListener, copy,
};
use owned_io_sim::{Host, Link, Sim, SimListener, SimStream, World};

pub(crate) const PORT: u16 = 7;

/// A link on which every segment takes exactly this long.
pub(crate) fn fixed_latency(latency: Duration) -> Link {
    let mut link = Link::default();
    link.latency = latency;
    link.jitter = Duration::ZERO;
    link
}

pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A listener on the current host.
pub(crate) fn listen(backlog: u32) -> io::Result<SimListener> {
    let mut options = ListenOptions::new(([0, 0, 0, 0], PORT).into());
    options.backlog = backlog;
    Sim::listen(&Sim::bind(options)?)
}

pub(crate) async fn connect(host: &Host) -> io::Result<SimStream> {
    Sim::connect(ConnectOptions::new(host.at(PORT))).await
}

/// Echoes on every connection.
pub(crate) async fn echo() -> io::Result<()> {
    let mut listener = listen(1024)?;
    let pool = Pool::new(PoolConfig::default());
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            Sim::sleep(millis(50)).await;
            continue;
        };
        let pool = pool.clone();
        drop(Sim::spawn(async move {
            let (mut read, mut write) = stream.into_split();
            copy(&mut read, &mut write, &pool).await
        }));
    }
}

/// Sends `bytes` and reads the same number of bytes.
pub(crate) async fn echo_once(stream: &mut SimStream, bytes: &'static [u8]) -> io::Result<Vec<u8>> {
    stream.write_all(bytes).await.into_result()?;
    let answer = stream.read_exact(Vec::with_capacity(bytes.len()), bytes.len()).await;
    Ok(answer.into_result()?.1)
}

/// Two hosts, client and server, that are exactly 10 ms apart, and both ends of a connection between them.
pub(crate) async fn connected_hosts(
    world: World,
) -> io::Result<(Host, Host, SimStream, SimStream)> {
    let (client, server) = (world.host("client"), world.host("server"));
    world.link(&client, &server, fixed_latency(millis(10)));
    let accepted = server.spawn(async { listen(1024)?.accept().await });
    let connected = client.spawn({
        let server = server.clone();
        async move { connect(&server).await }
    });
    let a = connected.await.expect("no panic")?;
    let (b, _) = accepted.await.expect("no panic")?;
    Ok((client, server, a, b))
}

/// Runs the future of `ask` on a client host, while a server host echoes. `ask` gets both hosts.
pub(crate) async fn with_echo_server<Fut>(
    world: World,
    ask: impl FnOnce(Host, Host) -> Fut,
) -> io::Result<()>
where
    Fut: Future<Output = io::Result<()>> + 'static,
{
    let (client, server) = (world.host("client"), world.host("server"));
    server.start(echo);
    let asking = client.spawn(ask(client.clone(), server));
    asking.await.expect("no panic")
}

/// How long `future` takes.
pub(crate) async fn timed<T>(future: impl Future<Output = T>) -> (Duration, T) {
    let started = Sim::now();
    let output = future.await;
    (Sim::now() - started, output)
}
