//! A server of two workers with one cache, its clients, and an origin.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use owned_io::{
    BufResult, ByteStream, Clock, Executor, JoinHandle, ListenOptions, OwnedRead, OwnedWriteExt,
    Random, Tcp, TcpListener,
};
use owned_io_http::engine::{BodyDecoder, BodyLength};
use owned_io_server::config::{Limits, WebSockets};
use owned_io_server::connections::Connections;
use owned_io_server::context::{Context, Resources};
use owned_io_server::drain::DrainSignal;
use owned_io_server::memory::Memory;
use owned_io_server::object::{HttpOrigin, Lifetime, Objects, ObjectsConfig, Origin, Totals};
use owned_io_server::service::http;
use owned_io_server::service::object::WorkerObjects;
use owned_io_sim::{Config, Sim, SimStream, pipe, seeds};

/// The number of seeds without `SIM_SEEDS`.
const SEEDS: u64 = 20;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Where the origin listens.
pub(crate) const ORIGIN: ([u8; 4], u16) = ([10, 0, 0, 1], 80);

pub(crate) fn simulate(case: impl AsyncFn()) {
    for seed in seeds(SEEDS) {
        println!("seed {seed}"); // shown when it fails
        Sim::block_on(Config::with_seed(seed), case()).unwrap();
    }
}

pub(crate) fn random_below(bound: u64) -> u64 {
    let mut bytes = [0; 8];
    Sim::fill_random(&mut bytes);
    u64::from_le_bytes(bytes) % bound
}

/// An object of so many bytes, different for each number.
pub(crate) fn object(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| ((number + at) % 251) as u8).collect()
}

/// An answer of the origin with this head, after the status line, and this body.
pub(crate) fn answer(headers: &str, body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\n{headers}\r\n\r\n").as_bytes(), body].concat()
}

/// An answer of the origin whose length is announced.
pub(crate) fn with_length(body: &[u8]) -> Vec<u8> {
    answer(&format!("Content-Length: {}", body.len()), body)
}

/// An origin that counts its requests.
pub(crate) struct FakeOrigin {
    requests: Rc<RefCell<Vec<String>>>,
}

impl FakeOrigin {
    /// Answers each request by `answer`, which is given the number of the request, from 1 on. Then it ends the connection.
    pub(crate) fn start(
        answer: impl AsyncFn(usize, &mut SimStream) -> io::Result<()> + 'static,
    ) -> Self {
        let requests: Rc<RefCell<Vec<String>>> = Rc::default();
        let (seen, answer) = (Rc::clone(&requests), Rc::new(answer));
        let bound = Sim::bind(ListenOptions::new(ORIGIN.into())).unwrap();
        let mut listener = Sim::listen(&bound).unwrap();
        drop(Sim::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (seen, answer) = (Rc::clone(&seen), Rc::clone(&answer));
                drop(Sim::spawn(async move {
                    let mut request = Vec::new();
                    while !request.ends_with(b"\r\n\r\n") {
                        let read = stream.read(Vec::with_capacity(512)).await.into_result();
                        let Ok((1.., bytes)) = read else { return };
                        request.extend(bytes);
                    }
                    seen.borrow_mut().push(String::from_utf8(request).unwrap());
                    let number = seen.borrow().len();
                    let _ = answer(number, &mut stream).await; // an error: the server has given up
                }));
            }
        }));
        Self { requests }
    }

    /// Answers each request by these bytes.
    pub(crate) fn always(bytes: Vec<u8>) -> Self {
        Self::start(async move |_, stream| {
            stream.write_all(bytes.clone()).await.into_result().map(drop)
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.requests.borrow().len()
    }

    pub(crate) fn last_request(&self) -> String {
        self.requests.borrow().last().cloned().unwrap_or_default()
    }
}

/// The default options, with short lifetimes, and the origin at its address.
pub(crate) fn config() -> ObjectsConfig {
    let origin = HttpOrigin::new(&[SocketAddr::from(ORIGIN)], "origin", "/p");
    config_for(Origin::Http(origin))
}

pub(crate) fn config_for(origin: Origin) -> ObjectsConfig {
    let mut config = ObjectsConfig::new(origin);
    config.lifetime = Lifetime { fresh: 100 * SECOND, stale: 50 * SECOND };
    config
}

pub(crate) struct Server {
    objects: Option<Arc<Objects>>,
    workers: [Worker; 2],
    next: Cell<usize>,
}

struct Worker {
    resources: Rc<Resources>,
    connections: Connections,
}

impl Server {
    pub(crate) fn new(config: ObjectsConfig) -> Self {
        Self::with(Some(Arc::new(Objects::new(config))))
    }

    pub(crate) fn without_origin() -> Self {
        Self::with(None)
    }

    fn with(objects: Option<Arc<Objects>>) -> Self {
        let worker = || {
            let memory = Memory::divide(256 << 20, 6_000).expect("enough memory");
            let mut resources =
                Resources::new(memory, None, WebSockets::default(), Limits::default());
            let metrics = Arc::clone(&resources.metrics);
            resources.objects =
                objects.clone().map(|objects| Rc::new(WorkerObjects::new::<Sim>(objects, metrics)));
            let connections = Connections::new(DrainSignal::default(), resources.budget.clone());
            Worker { resources: Rc::new(resources), connections }
        };
        let workers = [worker(), worker()];
        Self { objects, workers, next: Cell::new(0) }
    }

    /// A connection to one of the workers, in turn.
    pub(crate) fn connect(&self) -> SimStream {
        self.next.set(self.next.get() + 1);
        let worker = &self.workers[self.next.get() % 2];
        let (client, server) = pipe();
        let connection = worker.connections.add(server.shutdown_handle());
        let ctx = Context { connection, worker: Rc::clone(&worker.resources) };
        drop(Sim::spawn(async move {
            let _ = http::serve::<Sim>(server, &ctx).await; // an error: it was cut off
        }));
        client
    }

    /// Asks for an object, on a connection of its own.
    pub(crate) fn ask(&self, method: &str, target: &str, headers: &str) -> JoinHandle<Answer> {
        let request =
            format!("{method} {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{headers}\r\n");
        let mut client = self.connect();
        Sim::spawn(async move {
            client.write_all(request.into_bytes()).await.into_result().unwrap();
            Answer::read(client).await
        })
    }

    pub(crate) async fn get(&self, target: &str) -> Answer {
        self.ask("GET", target, "").await.unwrap()
    }

    pub(crate) async fn get_with(&self, target: &str, headers: &str) -> Answer {
        self.ask("GET", target, headers).await.unwrap()
    }

    pub(crate) fn totals(&self) -> Totals {
        self.objects.as_ref().unwrap().totals()
    }

    /// Nothing is in the cache, and nothing is being fetched, soon after a failure.
    pub(crate) async fn assert_empty(&self) {
        Sim::sleep(SECOND).await;
        assert_eq!(self.totals(), Totals { objects: 0, held_bytes: 0, fetches: 0 });
    }
}

/// What a client gets.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    /// As it was sent.
    pub(crate) raw: Vec<u8>,
    /// Whether the connection was reset.
    pub(crate) is_reset: bool,
}

impl Answer {
    /// Reads until the end of the connection.
    async fn read(mut client: SimStream) -> Self {
        let mut bytes = Vec::new();
        // Each round reads bytes, or ends.
        let is_reset = loop {
            let BufResult(read, more) = client.read(Vec::with_capacity(64 * 1024)).await;
            match read {
                Ok(0) => break false,
                Ok(_) => bytes.extend(more),
                Err(_) => break true,
            }
        };
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let Some(end) = end else {
            return Self { status: 0, head: String::new(), raw: bytes, is_reset };
        };
        let raw = bytes.split_off(end + 4);
        let head = String::from_utf8(bytes).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head, raw, is_reset }
    }

    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// The body. Panics unless it is complete.
    pub(crate) fn body(&self) -> Vec<u8> {
        assert!(!self.is_reset, "{}", self.head);
        match self.header("Content-Length") {
            Some(length) => {
                assert_eq!(length, self.raw.len().to_string());
                self.raw.clone()
            }
            None => self.chunks().concat(),
        }
    }

    /// The chunks of the body. Panics unless it is complete.
    pub(crate) fn chunks(&self) -> Vec<Vec<u8>> {
        assert_eq!(self.header("Transfer-Encoding"), Some("chunked"));
        let mut decoder = BodyDecoder::new(BodyLength::Chunked, u64::MAX);
        let (mut chunks, mut rest) = (Vec::new(), &self.raw[..]);
        while !decoder.is_at_end() {
            let piece = decoder.decode(rest).unwrap();
            assert!(piece.consumed > 0, "the body is cut off");
            if !piece.content.is_empty() {
                chunks.push(rest[piece.content].to_vec());
            }
            rest = &rest[piece.consumed..];
        }
        assert!(rest.is_empty());
        chunks
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body()).unwrap()
    }
}
