//! [`TlsOver`]: a runtime whose connections are TLS over another's.

use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use owned_io::{
    BoundAddr, Capabilities, ConnectOptions, JoinHandle, ListenOptions, Panicked, Runtime,
    TcpListener, TcpStream,
};
use owned_io_tls::rustls::ALL_VERSIONS;
use owned_io_tls::{Acceptor, Buffers, Connector};

use crate::common;
use crate::late::{self, LateStream};

pub(crate) struct TlsOver<R>(PhantomData<R>);

pub(crate) struct Listener<R: Runtime> {
    tcp: R::TcpListener,
    /// A client whose handshake is under way; kept when an accept is dropped.
    next: Option<Handshake<R>>,
}

type Handshake<R> = JoinHandle<io::Result<(LateStream<<R as Runtime>::TcpStream>, SocketAddr)>>;

thread_local! {
    static BUFFERS: Buffers = common::buffers();
}

fn configs() -> &'static (Acceptor, Connector) {
    static CONFIGS: OnceLock<(Acceptor, Connector)> = OnceLock::new();
    CONFIGS.get_or_init(|| {
        let mut server = common::server_config(ALL_VERSIONS);
        // The suite has clients that never read. With tickets unread they would reset the connection
        // when they are dropped.
        server.send_tls13_tickets = 0;
        (
            Acceptor::new(Arc::new(server)),
            Connector::new(Arc::new(common::client_config(ALL_VERSIONS))),
        )
    })
}

/// A client and the server's end of it.
pub(crate) async fn pair<R: Runtime>() -> (LateStream<R::TcpStream>, LateStream<R::TcpStream>) {
    let bound = TlsOver::<R>::bind(ListenOptions::new(([127, 0, 0, 1], 0).into())).unwrap();
    let mut listener = TlsOver::<R>::listen(&bound).unwrap();
    let client = TlsOver::<R>::connect(ConnectOptions::new(bound.local_addr())).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    (client, server)
}

impl<R: Runtime> TcpListener for Listener<R> {
    type Stream = LateStream<R::TcpStream>;

    async fn accept(&mut self) -> io::Result<(Self::Stream, SocketAddr)> {
        loop {
            if let Some(next) = &mut self.next {
                let outcome = next.await.expect("no panic");
                self.next = None;
                if outcome.is_ok() {
                    return outcome;
                }
                continue; // it gave up in its handshake, as others do in the queue
            }
            let (tcp, peer) = self.tcp.accept().await?;
            self.next = Some(R::spawn(async move {
                let local = tcp.local_addr()?;
                let stream = configs().0.accept::<R, _>(tcp, &BUFFERS.with(Buffers::clone)).await?;
                Ok((late::ready(stream, [local, peer]), peer))
            }));
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

impl<R: Runtime> Runtime for TlsOver<R> {
    const NAME: &'static str = R::NAME;
    /// A pooled read waits without a buffer of its caller's, whatever the transport does.
    const CAPABILITIES: Capabilities =
        Capabilities::new(R::CAPABILITIES.io_uring, false, R::CAPABILITIES.dropped_read);
    type Config = R::Config;
    type TcpStream = LateStream<R::TcpStream>;
    type TcpListener = Listener<R>;

    fn tuned() -> R::Config {
        R::tuned()
    }
    fn block_on<F: Future>(config: R::Config, future: F) -> io::Result<F::Output> {
        R::block_on(config, future)
    }
    fn spawn_detached(future: impl Future<Output = ()> + 'static) {
        R::spawn_detached(future);
    }
    fn spawn_blocking<T: Send + 'static>(
        f: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, Panicked>> + 'static {
        R::spawn_blocking(f)
    }
    fn now() -> Instant {
        R::now()
    }
    fn wall_clock() -> SystemTime {
        R::wall_clock()
    }
    fn sleep(duration: Duration) -> impl Future<Output = ()> + 'static {
        R::sleep(duration)
    }
    fn fill_random(bytes: &mut [u8]) {
        R::fill_random(bytes);
    }
    fn bind(options: ListenOptions) -> io::Result<BoundAddr> {
        R::bind(options)
    }
    fn listen(bound: &BoundAddr) -> io::Result<Listener<R>> {
        Ok(Listener { tcp: R::listen(bound)?, next: None })
    }

    /// Connects; the handshake is a task's, because the suite lets no server accept before.
    async fn connect(options: ConnectOptions) -> io::Result<LateStream<R::TcpStream>> {
        let tcp = R::connect(options).await?;
        let addrs = [tcp.local_addr()?, tcp.peer_addr()?];
        Ok(late::begin::<R, _>(tcp, addrs, async |tcp| {
            let buffers = BUFFERS.with(Buffers::clone);
            configs().1.connect::<R, _>(tcp, common::server_name(), &buffers).await
        }))
    }
}
