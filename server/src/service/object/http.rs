//! Asks an origin that is an HTTP server.

use std::io;
use std::time::{Duration, Instant};

use owned_io::{
    BufResult, ByteStream, ConnectOptions, OwnedWriteExt, Pool, PoolBuf, Runtime, ShutdownHandle,
    coop, is_exhaustion, shutdown_after,
};
use owned_io_http::Refusal;
use owned_io_http::engine::{BodyDecoder, BodyLength};

use super::fetch::{FETCH_TIME_MAX, HEAD_TIME_MAX, Outcome, PIECE_TIME_MAX, wake};
use crate::object::response::{HeadDecoder, ResponseBody, ResponseError};
use crate::object::{Failure, Fetch, HttpOrigin};

/// How long each address of the origin may take to accept a connection: two lost packets.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Fetches an object from a server.
pub(super) async fn fetch<R: Runtime>(
    origin: &HttpOrigin,
    fetch: &mut Fetch,
    pool: &Pool,
) -> Result<Outcome, Failure> {
    let stream = connect::<R>(origin).await?;
    let handle = stream.shutdown_handle();
    let mut answer = Answer { stream, handle, pool };
    let head_by = R::now() + HEAD_TIME_MAX;
    answer.ask::<R>(origin.request(fetch.name())).await?;
    let mut decoder = HeadDecoder::new();
    let (mut response, received, used) = loop {
        let received = answer.read::<R>(head_by, Failure::NoAnswer).await?;
        if received.is_empty() {
            return Err(Failure::NoAnswer);
        }
        if let Some((head, used)) = decoder.decode(&received).map_err(Failure::Malformed)? {
            break (head, received, used);
        }
    };
    match response.status {
        200 => {}
        404 | 410 => {
            fetch.missing(response.status, &response.control, R::now());
            return Ok(Outcome::Missing);
        }
        status => return Err(Failure::Status(status)),
    }
    if response.body == ResponseBody::UntilEnd {
        // An origin that is killed in the middle ends its connection too. Nobody can tell that from the end of the object.
        response.control.forbid();
    }
    let mut body = Body::new(response.body, fetch.objects().config().object_bytes_max);
    fetch.begin(response.head, &response.control)?;
    let deadline = R::now() + FETCH_TIME_MAX;
    body.decode(&received[used..], fetch)?;
    drop(received); // the next read takes a buffer of the pool
    // Each round reads bytes of the body, or ends.
    while !body.is_at_end() {
        wake::<R>(fetch.transfer()).await;
        coop::yield_if_exhausted::<R>().await;
        let piece_by = deadline.min(R::now() + PIECE_TIME_MAX);
        let received = answer.read::<R>(piece_by, Failure::Truncated).await?;
        if received.is_empty() {
            match body {
                Body::UntilEnd => break,
                _ => return Err(Failure::Truncated),
            }
        }
        body.decode(&received, fetch)?;
    }
    fetch.complete(R::now())?;
    Ok(Outcome::Complete)
}

/// Connects to the first address that answers.
async fn connect<R: Runtime>(origin: &HttpOrigin) -> Result<R::TcpStream, Failure> {
    let mut failure = Failure::Unreachable;
    for addr in origin.addrs() {
        let mut options = ConnectOptions::new(*addr);
        options.timeout = CONNECT_TIME_MAX;
        match R::connect(options).await {
            Ok(stream) => return Ok(stream),
            Err(error) if is_exhaustion(&error) => return Err(Failure::Busy),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => failure = Failure::TimedOut,
            Err(_) => failure = Failure::Unreachable,
        }
    }
    Err(failure)
}

/// A connection to the origin.
struct Answer<'a, S> {
    stream: S,
    handle: ShutdownHandle,
    pool: &'a Pool,
}

impl<S: ByteStream> Answer<'_, S> {
    async fn ask<R: Runtime>(&mut self, request: String) -> Result<(), Failure> {
        let writing = self.stream.write_all(request.into_bytes());
        let BufResult(written, _) =
            shutdown_after::<R, _>(HEAD_TIME_MAX, &self.handle, writing).await;
        written.map_err(|error| failure(&error, Failure::NoAnswer))
    }

    /// Reads until `deadline`. Empty: the origin has ended its side. `broken`: what it means that the connection fails.
    async fn read<R: Runtime>(
        &mut self,
        deadline: Instant,
        broken: Failure,
    ) -> Result<PoolBuf, Failure> {
        let time = deadline.saturating_duration_since(R::now());
        let reading = self.stream.read_pooled(self.pool);
        let read = shutdown_after::<R, _>(time, &self.handle, reading).await;
        read.map_err(|error| failure(&error, broken))
    }
}

fn failure(error: &io::Error, broken: Failure) -> Failure {
    match error.kind() {
        io::ErrorKind::TimedOut => Failure::TimedOut,
        io::ErrorKind::QuotaExceeded => Failure::NoMemory, // of the pool
        _ => broken,
    }
}

/// The body of an answer that arrives.
enum Body {
    Exact(BodyDecoder),
    /// With room for the contents of the chunks of one read: there may be many short ones.
    Chunked(BodyDecoder, Vec<u8>),
    UntilEnd,
}

impl Body {
    const fn new(body: ResponseBody, bytes_max: u64) -> Self {
        match body {
            ResponseBody::Exact(bytes) => {
                Self::Exact(BodyDecoder::new(BodyLength::Exact(bytes), bytes_max))
            }
            ResponseBody::Chunked => {
                Self::Chunked(BodyDecoder::new(BodyLength::Chunked, bytes_max), Vec::new())
            }
            ResponseBody::UntilEnd => Self::UntilEnd,
        }
    }

    fn is_at_end(&self) -> bool {
        match self {
            Self::Exact(decoder) | Self::Chunked(decoder, _) => decoder.is_at_end(),
            Self::UntilEnd => false,
        }
    }

    /// Appends what is in `received` to the object. What follows the body is ignored: the connection is not used again.
    fn decode(&mut self, received: &[u8], fetch: &mut Fetch) -> Result<(), Failure> {
        coop::consume(coop::cost::body_piece(2 * received.len())); // it is copied and hashed
        match self {
            Self::UntilEnd => fetch.append(received),
            Self::Exact(decoder) => {
                let piece = decoder.decode(received).map_err(malformed)?;
                fetch.append(&received[piece.content])
            }
            Self::Chunked(decoder, content) => {
                content.clear();
                let mut rest = received;
                while !rest.is_empty() && !decoder.is_at_end() {
                    let piece = decoder.decode(rest).map_err(malformed)?;
                    content.extend_from_slice(&rest[piece.content]);
                    rest = &rest[piece.consumed..];
                }
                fetch.append(content)
            }
        }
    }
}

const fn malformed(refusal: Refusal) -> Failure {
    match refusal {
        Refusal::BodyTooLarge => Failure::TooLong,
        _ => Failure::Malformed(ResponseError::Body),
    }
}
