//! The memory of a worker, in the simulation. It holds no more than docs/limits.md says, whatever its clients do, and
//! serves well-behaved clients.
//!
//! The memory is what the budget and the pools have counted, and what the server has allocated. `SIM_SEEDS` sets the
//! number of seeds.
#![cfg(all(feature = "tls", target_os = "linux"))]

mod owners;

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use owned_io::backend::{Duplex, Endpoint};
use owned_io::{
    BufResult, ByteStream, Clock, Executor, IoBuf, IoVec, MemoryBudget, OwnedRead, OwnedWrite,
    OwnedWriteExt, Pool, Random, ShutdownHandle, copy, shutdown_after,
};
use owned_io_server::config::{Limits, WebSockets};
use owned_io_server::connections::Connections;
use owned_io_server::context::{Context, Resources};
use owned_io_server::drain::DrainSignal;
use owned_io_server::memory::Memory;
use owned_io_server::metrics::Flow;
use owned_io_server::service::websocket::{Messages, echo};
use owned_io_server::service::{sink, source, websocket};
use owned_io_sim::{Config, Sim, SimReadHalf, SimStream, SimWriteHalf, pipe, seeds};
use owned_io_tls::rustls::crypto::ring;
use owned_io_tls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use owned_io_tls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use owned_io_tls::{Acceptor, Connector};
use owned_io_websocket::deflate::Deflate;
use owned_io_websocket::handshake::{Key, Offer};
use owned_io_websocket::stream::{Buffers, Error, Message, WebSocket, accept, connect};
use owned_io_websocket::{CloseCode, CloseFrame};
use owners::{owned_by_server, server_bytes, with_owner};
use rcgen::{CertificateParams, KeyPair};

const KIB: usize = 1024;

/// The default number of seeds.
const SEEDS: u64 = 3;

/// How long a new client may wait for the echo of a message that fits its share.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a client does, until the server ends the connection.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Sends nothing over TCP.
    Idle,
    /// Sends nothing over WebSocket.
    IdleWebSocket,
    /// Has sent a part of a message: a fragment, and a part of a frame.
    MidMessage,
    /// Sends messages, and reads none of the echoes.
    UnreadEcho,
    /// Requests messages from the source, and reads none.
    UnreadSource,
    /// Has a compression context in each direction, and has sent a part of a compressed message.
    Deflate,
    /// Sends compression bombs, and reads none of the echoes.
    Bomb,
    /// Sends nothing over TLS.
    IdleTls,
    /// Sends over TLS, and reads none of the echoes.
    UnreadTls,
    /// Sends part of a message to a sink over TCP.
    MidSink,
    /// Sends messages to a sink over TCP, and reads none of the answers.
    UnreadSink,
    /// Requests short messages from a source over TCP, which copies them, and reads none.
    UnreadTcpSource,
    /// Has sent a part of a compressed message, without a context of its own.
    SharedDeflate,
    /// Sends compression bombs that have no context of their own, and reads none of the echoes.
    SharedBomb,
    /// Sends pings and messages to tungstenite, and reads neither pongs nor echoes.
    #[cfg(feature = "tungstenite")]
    UnreadBridge,
    /// Has sent a fragment, and a part of a frame, to tungstenite.
    #[cfg(feature = "tungstenite")]
    MidBridge,
}

const KINDS: &[Kind] = &[
    Kind::Idle,
    Kind::IdleWebSocket,
    Kind::MidMessage,
    Kind::UnreadEcho,
    Kind::UnreadSource,
    Kind::Deflate,
    Kind::Bomb,
    Kind::IdleTls,
    Kind::UnreadTls,
    Kind::MidSink,
    Kind::UnreadSink,
    Kind::UnreadTcpSource,
    Kind::SharedDeflate,
    Kind::SharedBomb,
    #[cfg(feature = "tungstenite")]
    Kind::UnreadBridge,
    #[cfg(feature = "tungstenite")]
    Kind::MidBridge,
];

/// What a connection takes beyond the budget and the buffers: its state, and that of its task, without optimisation.
const STATE_BYTES_MAX: usize = 14 * KIB;

/// What the worker takes beyond that: buffers that are kept for reuse, compressors, and what the source sends.
const WORKER_BYTES_MAX: usize = 4 << 20;

/// "What a worker can hold at most", with as many connections as the default of `--connections-max`.
#[test]
fn sixteen_thousand_connections_of_all_kinds_hold_no_more_than_documented() {
    const CONNECTIONS: usize = 16_000;
    Sim::block_on(Config::with_seed(1), async {
        let worker = Worker::new(Memory::least(CONNECTIONS), CONNECTIONS);
        for n in 0..CONNECTIONS {
            worker.open(KINDS[n % KINDS.len()]);
            if n % 1_000 == 0 {
                Sim::sleep(Duration::from_millis(10)).await;
                worker.check();
            }
        }
        let mut common_max = 0;
        for _ in 0..40 {
            Sim::sleep(Duration::from_millis(50)).await;
            common_max = common_max.max(worker.check());
        }
        println!("{common_max} of the common bytes, {:?}", worker.budget);
        println!("{} bytes are allocated", server_bytes());
        assert!(common_max > worker.memory.bytes_max / 8, "{common_max}: too little load to test");
    })
    .unwrap();
}

/// The same with few connections and random mixtures of kinds. A new client is served meanwhile.
#[test]
fn random_clients_hold_no_more_than_documented() {
    const CONNECTIONS: usize = 60;
    for seed in seeds(SEEDS) {
        println!("seed {seed}"); // shown when it fails
        Sim::block_on(Config::with_seed(seed), async {
            let worker = Worker::new(2 * Memory::least(CONNECTIONS + 1), CONNECTIONS + 1);
            let main_kind = KINDS[random_below(KINDS.len())];
            for _ in 0..CONNECTIONS {
                let is_other = random_below(4) == 0;
                worker.open(if is_other { KINDS[random_below(KINDS.len())] } else { main_kind });
                Sim::sleep(Duration::from_millis(random_below(20) as u64)).await;
            }
            for _ in 0..60 {
                Sim::sleep(Duration::from_millis(50)).await;
                worker.check();
            }
            worker.serve_new_client().await;
            worker.check();
        })
        .unwrap();
    }
}

/// "An account that needs no more than its fair part waits at most" two seconds, whatever others announce: 200 clients
/// announce 16 MiB each, and send as much of it as the server takes. A new client's message of 100 KiB fits its fair
/// part.
#[test]
fn a_message_that_fits_the_fair_part_waits_no_longer_than_documented() {
    const HOARDERS: usize = 200;
    let mut longest = Duration::ZERO;
    for seed in seeds(SEEDS) {
        println!("seed {seed}"); // shown when it fails
        let waited = Sim::block_on(Config::with_seed(seed), async {
            let worker = Worker::new(64 << 20, 3_840);
            for _ in 0..HOARDERS {
                let (server, client) = connection();
                worker.serve_echo(server, worker.config);
                spawn(announce_and_trickle(client));
            }
            Sim::sleep(Duration::from_millis(random_below(6_000) as u64)).await;
            let (server, client) = connection();
            worker.serve_echo(server, worker.config);
            let waited = echo_fragments(client).await.unwrap();
            worker.check();
            waited
        })
        .unwrap();
        longest = longest.max(waited);
        let waited_max = MemoryBudget::SMALL_WAIT_MAX + Duration::from_millis(100);
        assert!(waited <= waited_max, "{waited:?}");
    }
    println!("{longest:?} at most");
}

/// A client whose answer never has room is told so by a close frame.
#[test]
fn a_refused_answer_ends_with_a_close_frame() {
    Sim::block_on(Config::with_seed(1), async {
        let worker = Worker::new(Memory::least(10), 10);
        let mut config = worker.config;
        config.engine.queue_bytes_max = KIB;
        let (server, client) = connection();
        worker.serve_echo(server, config);
        let mut client = upgraded(client, "").await.unwrap();
        client.write_all(frame(0x82, &[7; 2 * KIB])).await.into_result().unwrap();
        expect_try_again(&mut client).await;
    })
    .unwrap();
}

/// So is a client that asks for messages that cannot be allocated.
#[test]
fn an_answer_that_cannot_be_allocated_ends_with_a_close_frame() {
    Sim::block_on(Config::with_seed(1), async {
        let worker = Worker::new(Memory::least(10), 10);
        let (server, mut client) = connection();
        let messages = Messages { count: None, bytes: 1 << 62, batch: 1 };
        worker.serve_source(server, messages);
        client.write_all(upgrade_request("")).await.into_result().unwrap();
        expect_try_again(&mut client).await;
    })
    .unwrap();
}

/// Reads up to a close frame with code 1013.
async fn expect_try_again(client: &mut SimStream) {
    let mut received = Vec::new();
    while !received.ends_with(&[0x88, 2, 0x03, 0xF5]) {
        let (n, read) = client.read(Vec::with_capacity(KIB)).await.into_result().unwrap();
        assert!(n > 0, "{}", received.escape_ascii());
        received.extend_from_slice(&read);
    }
}

/// What the connections of a worker share.
struct Worker {
    memory: Memory,
    budget: MemoryBudget,
    buffers: Buffers,
    tls: Buffers,
    config: owned_io_websocket::Config,
    resources: Rc<Resources>,
    connections: Connections,
}

/// A connection of the server. What the simulated kernel holds for it is not the server's.
type ServerStream = Duplex<SimReadHalf, KernelWrites>;

struct KernelWrites(SimWriteHalf);

impl OwnedWrite for KernelWrites {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        owned_by_server(false, self.0.write(buf)).await
    }

    async fn write_vectored<B: IoBuf>(&mut self, bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        owned_by_server(false, self.0.write_vectored(bufs)).await
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.0.shutdown().await
    }
}

impl Endpoint for KernelWrites {
    fn shutdown_handle(&self) -> ShutdownHandle {
        self.0.shutdown_handle()
    }
}

/// The server's end of a connection, and the client's.
fn connection() -> (ServerStream, SimStream) {
    let (server, client) = pipe();
    let (read, write) = server.into_split();
    (Duplex::new(read, KernelWrites(write)), client)
}

impl Worker {
    fn new(bytes_max: usize, connections: usize) -> Self {
        let memory = Memory::divide(bytes_max, connections).unwrap();
        let limits = Limits { connections_max: connections, ..Limits::default() };
        let resources = Resources::new(memory, None, WebSockets::default(), limits);
        let (budget, pool) = (resources.budget.clone(), resources.pool.clone());
        let mut config = owned_io_websocket::Config::default();
        let mut deflate = Deflate::default();
        (deflate.send_takeover, deflate.receive_takeover) = (true, true);
        config.handshake.deflate = Some(deflate);
        Self {
            memory,
            tls: Buffers::new(pool, budget.clone()),
            buffers: resources.websocket_buffers.clone(),
            connections: Connections::new(DrainSignal::default(), budget.clone()),
            budget,
            config,
            resources: Rc::new(resources),
        }
    }

    /// Asserts that the worker holds no more than documented. Returns the bytes held beyond the shares.
    fn check(&self) -> usize {
        let Self { memory, budget, buffers, .. } = self;
        let held_by = |pool: &Pool| pool.leased() * pool.buf_bytes();
        let shares = budget.share_bytes() * memory.connections_max;
        let common = budget.bytes_max() - shares;
        assert!(budget.common_bytes_held() <= common, "{budget:?}: {common} bytes are in common");
        let held = held_by(buffers.pool()) + shares + budget.common_bytes_held();
        assert!(held <= memory.bytes_max, "{held} of {} bytes: {budget:?}", memory.bytes_max);
        let live = server_bytes();
        let state = memory.connections_max * STATE_BYTES_MAX;
        let live_max = (memory.bytes_max + state + WORKER_BYTES_MAX) as isize;
        assert!(live <= live_max, "{live} of {live_max} bytes are allocated, {held} are counted");
        budget.common_bytes_held()
    }

    /// Opens a connection with a client of this kind.
    fn open(&self, kind: Kind) {
        let (server, client) = connection();
        match kind {
            Kind::Idle => {
                let (mut read, mut write) = server.into_split();
                let pool = self.buffers.pool().clone();
                spawn_server(async move { copy(&mut read, &mut write, &pool).await.map(drop) });
            }
            Kind::IdleTls | Kind::UnreadTls => {
                let (pool, buffers) = (self.buffers.pool().clone(), self.tls.clone());
                spawn_server(async move {
                    let stream = identity().acceptor().accept::<Sim, _>(server, &buffers).await?;
                    let (mut read, mut write) = stream.into_split();
                    copy(&mut read, &mut write, &pool).await.map(drop)
                });
            }
            Kind::UnreadSource => {
                let messages = Messages { count: None, bytes: 50 * KIB, batch: 1_000 };
                self.serve_source(server, messages);
            }
            Kind::MidSink | Kind::UnreadSink => {
                let ctx = self.context(&server);
                spawn_server(async move { sink::serve::<Sim>(server, &ctx).await });
            }
            Kind::UnreadTcpSource => {
                let ctx = self.context(&server);
                spawn_server(async move { source::serve::<Sim>(server, &ctx).await });
            }
            Kind::SharedDeflate | Kind::SharedBomb => {
                let mut config = self.config;
                config.handshake.deflate = Some(Deflate::default());
                self.serve_echo(server, config);
            }
            #[cfg(feature = "tungstenite")]
            Kind::UnreadBridge | Kind::MidBridge => {
                let (buffers, config) = (self.buffers.clone(), self.config);
                spawn_server(async move {
                    let growth = owned_io_tungstenite::BufferGrowth::EXPONENTIAL;
                    let owned_io_tungstenite::WebSocket { mut incoming, mut outgoing } =
                        owned_io_tungstenite::accept::<Sim, _>(server, &buffers, config, growth)
                            .await?;
                    echo(&mut incoming, &mut outgoing, &Flow::default()).await
                });
            }
            _ => self.serve_echo(server, self.config),
        }
        spawn(run_client(kind, client));
    }

    fn context(&self, server: &ServerStream) -> Context {
        let connection = self.connections.add(server.shutdown_handle());
        Context { connection, worker: Rc::clone(&self.resources) }
    }

    fn serve_echo(&self, server: ServerStream, config: owned_io_websocket::Config) {
        let buffers = self.buffers.clone();
        spawn_server(async move {
            let WebSocket { mut incoming, mut outgoing } =
                accept::<Sim, _>(server, &buffers, config).await?;
            echo(&mut incoming, &mut outgoing, &Flow::default()).await
        });
    }

    fn serve_source(&self, server: ServerStream, messages: Messages) {
        let (buffers, pattern, config) =
            (self.buffers.clone(), self.resources.pattern.clone(), self.config);
        spawn_server(async move {
            let WebSocket { mut incoming, mut outgoing } =
                accept::<Sim, _>(server, &buffers, config).await?;
            let flow = Flow::default();
            websocket::source::<Sim>(&mut incoming, &mut outgoing, messages, &pattern, &flow).await
        });
    }

    /// "Each connection is guaranteed S of the budget": messages that fit are echoed, whatever other clients do.
    async fn serve_new_client(&self) {
        let (server, client) = connection();
        self.serve_echo(server, self.config);
        let handle = client.shutdown_handle();
        let own = Memory::divide(64 << 20, 1).unwrap();
        let buffers = Buffers::new(own.receive_pool(), own.budget());
        let session = async {
            let config = owned_io_websocket::Config::default();
            let (mut socket, _) =
                connect::<Sim, _>(client, &buffers, config, &Offer::default()).await?;
            let payload = vec![7; self.budget.share_bytes() / 2];
            for payload in [&b"a word"[..], &payload] {
                socket.outgoing.send(Message::Binary(payload)).await?;
                let echo = socket.incoming.receive().await?;
                assert!(echo == Some(Message::Binary(payload)), "{echo:?}");
            }
            socket.close(CloseFrame { code: Some(CloseCode::NORMAL), reason: "" }).await
        };
        let session = async { session.await.map_err(|error| io::Error::other(error.to_string())) };
        let served = shutdown_after::<Sim, io::Result<()>>(PATIENCE, &handle, session).await;
        served.unwrap_or_else(|error| panic!("the new client: {error}; {:?}", self.budget));
    }
}

/// Spawns a connection. It may fail, because a connection that hoards memory is evicted.
fn spawn<E>(future: impl Future<Output = Result<(), E>> + 'static) {
    Sim::spawn_detached(async { drop(future.await) });
}

/// Spawns the server's part of a connection. The memory of the task is the server's too.
fn spawn_server<E: 'static>(future: impl Future<Output = Result<(), E>> + 'static) {
    with_owner(true, || spawn(owned_by_server(true, future)));
}

async fn run_client(kind: Kind, client: SimStream) -> Result<(), Error> {
    let _held = match kind {
        Kind::Idle => client,
        Kind::IdleWebSocket | Kind::UnreadSource => upgraded(client, "").await?,
        Kind::MidMessage => {
            let mut client = upgraded(client, "").await?;
            let bytes = random_below(300 * KIB);
            let fragment = frame(0x02, &vec![7; bytes]);
            let cut = frame(0x80, &[7; 70 * KIB])[..60 * KIB].to_vec();
            client.write_all([fragment, cut].concat()).await.into_result()?;
            client
        }
        #[cfg(feature = "tungstenite")]
        Kind::MidBridge => {
            let mut client = upgraded(client, "").await?;
            let fragment = frame(0x02, &vec![7; random_below(300 * KIB)]);
            let cut = frame(0x80, &[7; 70 * KIB])[..60 * KIB].to_vec();
            client.write_all([fragment, cut].concat()).await.into_result()?;
            client
        }
        #[cfg(feature = "tungstenite")]
        Kind::UnreadBridge => {
            let client = upgraded(client, "").await?;
            let pings = frame(0x89, &[7; 125]).repeat(200);
            let bytes = [pings, frame(0x82, &vec![7; random_below(100 * KIB)])].concat();
            send_forever(client, bytes).await?
        }
        Kind::MidSink => {
            let mut client = client;
            let message = [&(16_u32 << 20).to_le_bytes()[..], &[7; 40 * KIB]].concat();
            client.write_all(message).await.into_result()?;
            client
        }
        Kind::UnreadSink => send_forever(client, vec![0; 16 * KIB]).await?,
        Kind::UnreadTcpSource => {
            let mut client = client;
            let request = [u32::MAX, 500, 1_000].map(u32::to_le_bytes).concat();
            client.write_all(request).await.into_result()?;
            client
        }
        Kind::SharedDeflate => {
            let mut client = upgraded(client, DEFLATE).await?;
            client.write_all(frame(0x42, &inflating()[..20])).await.into_result()?;
            client
        }
        Kind::UnreadEcho => {
            let client = upgraded(client, "").await?;
            send_forever(client, frame(0x82, &vec![7; random_below(100 * KIB)])).await?
        }
        Kind::Deflate => {
            let mut client = upgraded(client, DEFLATE).await?;
            // A whole message, whose echo is read, and the beginning of the next.
            let inflating = inflating();
            let bytes = [frame(0xC2, &inflating), frame(0x42, &inflating[..20])].concat();
            client.write_all(bytes).await.into_result()?;
            client.read(Vec::with_capacity(KIB)).await.into_result()?;
            client
        }
        Kind::Bomb | Kind::SharedBomb => {
            let mut client = upgraded(client, DEFLATE).await?;
            // The echoes are compressed again and fill no queue. Bombs without end would run for ever.
            let bombs = frame(0xC2, &inflating()).repeat(1 + random_below(5));
            client.write_all(bombs).await.into_result()?;
            client
        }
        Kind::IdleTls | Kind::UnreadTls => {
            let own = Memory::divide(16 << 20, 1).unwrap();
            let buffers = Buffers::new(own.receive_pool(), own.budget());
            let name = ServerName::try_from("localhost").expect("a name");
            let mut client =
                identity().connector().connect::<Sim, _>(client, name, &buffers).await?;
            if matches!(kind, Kind::UnreadTls) {
                loop {
                    client.write_all(vec![7; 50 * KIB]).await.into_result()?;
                }
            }
            Sim::sleep(FOREVER).await;
            return Ok(());
        }
    };
    Sim::sleep(FOREVER).await;
    Ok(())
}

/// Announces a message of 16 MiB, and sends 2 MiB of it.
async fn announce_and_trickle(client: SimStream) -> io::Result<()> {
    let mut client = upgraded(client, "").await?;
    let announced = [&[0x82, 0xFF][..], &(16_u64 << 20).to_be_bytes(), &[0; 4]].concat();
    client.write_all(announced).await.into_result()?;
    for _ in 0..32 {
        client.write_all(vec![7; 64 * KIB]).await.into_result()?;
        Sim::sleep(Duration::from_millis(random_below(3) as u64)).await;
    }
    Sim::sleep(FOREVER).await;
    Ok(())
}

/// Has 100 KB in two fragments echoed. Returns how long that took.
async fn echo_fragments(client: SimStream) -> io::Result<Duration> {
    const BYTES: usize = 50_000;
    const HEADER_BYTES: usize = 10;
    let began = Sim::now();
    let mut client = upgraded(client, "").await?;
    let fragments = [frame(0x02, &[7; BYTES]), frame(0x80, &[7; BYTES])].concat();
    client.write_all(fragments).await.into_result()?;
    let mut received = 0;
    while received < HEADER_BYTES + 2 * BYTES {
        let (n, read) = client.read(Vec::with_capacity(64 * KIB)).await.into_result()?;
        if n == 0 || read[0] == 0x88 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        received += n;
    }
    Ok(Sim::now() - began)
}

/// Longer than any test.
const FOREVER: Duration = Duration::from_secs(3_600);

const DEFLATE: &str = "permessage-deflate";

async fn send_forever(mut client: SimStream, bytes: Vec<u8>) -> io::Result<SimStream> {
    let bytes = Rc::<[u8]>::from(bytes);
    loop {
        client.write_all(bytes.to_vec()).await.into_result()?;
    }
}

/// Upgrades a connection, and reads the response.
async fn upgraded(mut client: SimStream, extensions: &str) -> io::Result<SimStream> {
    client.write_all(upgrade_request(extensions)).await.into_result()?;
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let (n, read) = client.read(Vec::with_capacity(KIB)).await.into_result()?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&read);
    }
    Ok(client)
}

fn upgrade_request(extensions: &str) -> Vec<u8> {
    let headers = [("Sec-WebSocket-Extensions", extensions)];
    let headers = if extensions.is_empty() { &[][..] } else { &headers[..] };
    let mut request = Vec::new();
    let offer = Offer { host: "server", headers, ..Offer::default() };
    offer.encode(&Key::new([7; 16]), &mut request).expect("a request");
    request
}

/// A frame of a client. The masking key is zero, so the payload is unchanged.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = match payload.len() {
        len @ 0..126 => vec![first, 0x80 | len as u8],
        len @ 126..0x1_0000 => [&[first, 0xFE][..], &(len as u16).to_be_bytes()].concat(),
        len => [&[first, 0xFF][..], &(len as u64).to_be_bytes()].concat(),
    };
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(payload);
    frame
}

/// 64 KiB of zeros, compressed by DEFLATE to 79 bytes.
fn inflating() -> Vec<u8> {
    let mut payload = vec![0; 79];
    payload[..14].copy_from_slice(b"\xec\xc1\x01\x01\0\0\0\x80\x90\xfe\xaf\xee\x08\x0a");
    payload[77] = 0x6a;
    payload
}

/// A random number below `below`, from the seed.
fn random_below(below: usize) -> usize {
    let mut random = [0; 8];
    Sim::fill_random(&mut random);
    (u64::from_le_bytes(random) % below as u64) as usize
}

/// The server's certificate, in the configurations of both sides.
struct Identity {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

fn identity() -> &'static Identity {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    IDENTITY.get_or_init(Identity::new)
}

impl Identity {
    fn new() -> Self {
        // Ed25519 signatures all have the same length, so that a simulation is repeatable.
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate: CertificateDer<'static> = params.self_signed(&key).unwrap().der().clone();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        server.send_tls13_tickets = 0;
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self { server: Arc::new(server), client: Arc::new(client) }
    }

    fn acceptor(&self) -> Acceptor {
        Acceptor::new(Arc::clone(&self.server))
    }

    fn connector(&self) -> Connector {
        Connector::new(Arc::clone(&self.client))
    }
}
