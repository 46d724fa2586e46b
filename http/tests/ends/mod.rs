//! Helpers of the connection's tests: both ends of a connection, on the simulator.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io;

use owned_io::{
    Buffers, ByteStream, Executor, JoinHandle, MemoryBudget, OwnedRead, OwnedWriteExt, Pool,
    PoolConfig,
};
use owned_io_http::{Config, Connection, Error, Response};
use owned_io_sim::{Sim, SimReadHalf, SimStream, SimWriteHalf, pipe};

pub(crate) type Server = Connection<Sim, SimStream>;

/// Runs `test` under as many seeds as `SIM_SEEDS` says. Reads and writes are short everywhere.
pub(crate) fn simulate<F: Future<Output = ()>>(test: impl Fn() -> F) {
    for seed in owned_io_sim::seeds(20) {
        println!("seed {seed}"); // shown when the test fails
        Sim::block_on(owned_io_sim::Config::with_seed(seed), test()).unwrap();
    }
}

pub(crate) fn buffers() -> Buffers {
    Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(1 << 20))
}

/// Answers each request with its method, its path and its body.
pub(crate) async fn answer_all(connection: &mut Server) -> Result<(), Error> {
    while let Some(request) = connection.next().await? {
        let mut text = format!("{} {} ", request.method(), request.path()).into_bytes();
        while let Some(piece) = connection.read_body().await? {
            text.extend_from_slice(piece);
        }
        connection.respond(&Response::new(200), text).await?;
    }
    Ok(())
}

/// Starts a server on `stream`.
pub(crate) fn serve(
    stream: SimStream,
    config: Config,
    serve: impl AsyncFnOnce(&mut Server) -> Result<(), Error> + 'static,
) -> JoinHandle<Result<(), Error>> {
    Sim::spawn(async move {
        let mut connection = Connection::new(stream, &buffers(), config);
        serve(&mut connection).await
    })
}

/// Sends `requests`, and returns all answers and how the server ended.
pub(crate) async fn talk(
    config: Config,
    requests: impl Into<Vec<u8>>,
    serve: impl AsyncFnOnce(&mut Server) -> Result<(), Error> + 'static,
) -> (Answers, Result<(), Error>) {
    let (near, far) = pipe();
    let (serving, requests) = (self::serve(near, config, serve), requests.into());
    let (mut far, mut client) = Client::new(far);
    // The server may end before it has read everything.
    let writing = Sim::spawn(async move {
        let _ = far.write_all(requests).await;
        far
    });
    let answers = client.read_to_end().await;
    drop((writing.await, client));
    (answers, serving.await.unwrap())
}

/// The bytes that a client has received, and the error behind them.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    pub(crate) bytes: Vec<u8>,
    pub(crate) error: Option<io::ErrorKind>,
}

impl Answers {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes).unwrap()
    }
}

/// The read half of a client.
pub(crate) struct Client {
    stream: SimReadHalf,
    answers: Answers,
}

impl Client {
    pub(crate) fn new(stream: SimStream) -> (SimWriteHalf, Self) {
        let (stream, write) = stream.into_split();
        (write, Self { stream, answers: Answers::default() })
    }

    /// Reads until the answers end with `end`, and forgets them.
    pub(crate) async fn read_until(&mut self, end: &str) {
        while !self.answers.bytes.ends_with(end.as_bytes()) {
            let (n, byte) = self.stream.read(Vec::with_capacity(1)).await.into_result().unwrap();
            assert!(n > 0, "the server ends: {}", self.answers.text());
            self.answers.bytes.extend_from_slice(&byte);
        }
        self.answers.bytes.clear();
    }

    pub(crate) async fn read_to_end(&mut self) -> Answers {
        loop {
            match self.stream.read(Vec::with_capacity(4096)).await.into_result() {
                Ok((0, _)) => break,
                Ok((_, bytes)) => self.answers.bytes.extend_from_slice(&bytes),
                Err(error) => {
                    self.answers.error = Some(error.kind());
                    break;
                }
            }
        }
        std::mem::take(&mut self.answers)
    }
}

/// The bodies of answers to requests other than HEAD, decoded by hand.
pub(crate) fn texts(answers: &Answers) -> Vec<String> {
    let (mut texts, mut rest) = (Vec::new(), answers.text());
    while !rest.is_empty() {
        let (head, mut behind) = rest.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 ") && head.contains("\r\nDate: "), "{head}");
        let mut text = String::new();
        match head.split_once("Content-Length: ") {
            Some((_, length)) => {
                let length = length.split("\r\n").next().unwrap().parse().unwrap();
                text.push_str(&behind[..length]);
                behind = &behind[length..];
            }
            None => {
                assert!(head.contains("Transfer-Encoding: chunked"), "{head}");
                loop {
                    let (size, chunk) = behind.split_once("\r\n").unwrap();
                    let size = usize::from_str_radix(size, 16).unwrap();
                    text.push_str(&chunk[..size]);
                    behind = chunk[size..].strip_prefix("\r\n").unwrap();
                    if size == 0 {
                        break;
                    }
                }
            }
        }
        texts.push(text);
        rest = behind;
    }
    texts
}
