//! [`TlsOver`]: a runtime whose connections are TLS over the connections of another runtime.

use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use owned_io::{
    BoundAddr, Clock, ConnectOptions, Executor, JoinHandle, ListenOptions, Random, Runtime, Tcp,
    TcpListener, TcpStream, forward_runtime,
};
use owned_io_tls::rustls::ALL_VERSIONS;
use owned_io_tls::{Acceptor, Buffers, Connector};

use crate::common;
use crate::late::{self, LateStream};

pub(crate) struct TlsOver<R>(PhantomData<R>);

pub(crate) struct Listener<R: Runtime> {
    tcp: R::TcpListener,
    /// A client whose handshake has begun. It is kept when an accept is dropped.
    next: Option<Handshake<R>>,
}

type Handshake<R> = JoinHandle<io::Result<(LateStream<<R as Tcp>::TcpStream>, SocketAddr)>>;

thread_local! {
    static BUFFERS: Buffers = common::buffers();
}

fn configs() -> &'static (Acceptor, Connector) {
    static CONFIGS: OnceLock<(Acceptor, Connector)> = OnceLock::new();
    CONFIGS.get_or_init(|| {
        let mut server = common::server_config(ALL_VERSIONS);
        // Some clients of the suite never read. With unread session tickets they would reset the connection when
        // they are dropped.
        server.send_tls13_tickets = 0;
        (
            Acceptor::new(Arc::new(server)),
            Connector::new(Arc::new(common::client_config(ALL_VERSIONS))),
        )
    })
}

/// The client's and the server's end of a connection.
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
                continue; // the handshake failed: accept the next client
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

impl<R: Runtime> Clock for TlsOver<R> {
    forward_runtime!(Clock => R);
}

impl<R: Runtime> Random for TlsOver<R> {
    forward_runtime!(Random => R);
}

impl<R: Runtime> Executor for TlsOver<R> {
    forward_runtime!(Executor => R);
}

impl<R: Runtime> Tcp for TlsOver<R> {
    type TcpStream = LateStream<R::TcpStream>;
    type TcpListener = Listener<R>;

    forward_runtime!(Tcp::{bind} => R);

    fn listen(bound: &BoundAddr) -> io::Result<Listener<R>> {
        Ok(Listener { tcp: R::listen(bound)?, next: None })
    }

    /// Connects. The handshake runs in a task, because the suite accepts only after `connect` has returned.
    async fn connect(options: ConnectOptions) -> io::Result<LateStream<R::TcpStream>> {
        let tcp = R::connect(options).await?;
        let addrs = [tcp.local_addr()?, tcp.peer_addr()?];
        Ok(late::begin::<R, _>(tcp, addrs, async |tcp| {
            let buffers = BUFFERS.with(Buffers::clone);
            configs().1.connect::<R, _>(tcp, common::server_name(), &buffers).await
        }))
    }
}
