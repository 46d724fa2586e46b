//! Objects: `GET` and `HEAD` of `/object/NAME`, from a cache of what an origin has.
//!
//! NAME is one segment of a path, percent-encoded where a path needs it: see [`ObjectName`]. `--origin` names an HTTP
//! server, of which the object is `URL/NAME`, or a directory, of which it is the regular file NAME.
//!
//! | what happens | answer |
//! |---|---|
//! | the object is in the cache, or arrives from the origin | 200; 206 and 416 for a range; 304 if the client has it |
//! | the name is malformed, or there is a query | 400 |
//! | the origin has no such object; the server has no origin | 404, or 410 if the origin says so |
//! | the origin cannot be reached, answers something else, or the object is too long | 502 |
//! | too many objects are being fetched, or there is no memory for one | 503, with `Retry-After` |
//! | the origin does not answer in time | 504 |
//! | the origin ends or stalls within the object | the connection is reset |
//!
//! The body of a refusal says why. No failure is kept.
//!
//! # What is kept, and how long
//!
//! An object is fresh for `max-age` or `s-maxage` of the origin's `Cache-Control`, less `Age`, or for
//! `--object-seconds`. After that it is used for `stale-while-revalidate` or `--object-stale-seconds`, while one request
//! at a time asks the origin for a new one. If that fails, the old one stays in use until its time is over. `no-store`,
//! `no-cache` and `private` are not kept: who asks while they arrive gets them too, because the request to the origin says
//! nothing about a client. `Expires`, `Vary` and `Pragma` are ignored. What the origin does not have counts as
//! missing for [`MISSING_TIME`](crate::object::MISSING_TIME).
//!
//! # One request to the origin
//!
//! All workers share the cache: see [`object`](crate::object). While an object arrives, everybody who asks for it gets
//! what is there, and then the rest as it comes. A client that leaves, or reads slowly, changes nothing for others. An
//! object is fetched to its end even if the last client has left: it will be in the cache for the next one. Its length and
//! [`FETCH_TIME_MAX`] bound what that costs.
//!
//! # Memory
//!
//! `--object-memory-max` bounds what all objects take, over all workers: those in the cache, those that arrive, and those
//! that only slow clients still have. To make room, objects are removed that nobody reads, and of these the one first that
//! was used longest ago. If there is none, the new object is refused with 503.

mod directory;
mod fetch;
mod http;

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use owned_io::{ByteStream, Files, Pool, PoolConfig, Runtime};
use owned_io_http::{BodyLength, Connection, Error, Request, Response};

pub use self::fetch::{FETCH_TIME_MAX, HEAD_TIME_MAX, PIECE_TIME_MAX, WAIT_TIME_MAX};
pub use self::http::CONNECT_TIME_MAX;
use super::streams::percent_decoded;
use crate::context::Context;
use crate::log_limit::LogLimit;
use crate::metrics::WorkerMetrics;
use crate::object::response::FORWARDED_MAX;
use crate::object::{
    Arrival, Choice, End, Failure, Fetch, Head, Lookup, ObjectName, Objects, Stored, Transfer,
};

/// The objects, as one worker has them: it asks the origin for what its clients miss.
pub struct WorkerObjects {
    shared: Arc<Objects>,
    metrics: Arc<WorkerMetrics>,
    /// Starts a task. It knows the runtime, which connections need not know then.
    start: Box<dyn Fn(Fetch)>,
}

impl WorkerObjects {
    /// For a worker on runtime `R`.
    pub fn new<R: Runtime + Files>(shared: Arc<Objects>, metrics: Arc<WorkerMetrics>) -> Self {
        let mut config = PoolConfig::default();
        config.buf_bytes = fetch::READ_BYTES_MAX;
        config.leased_max = crate::object::CONNECTIONS_MAX;
        config.idle_max = fetch::READS_IDLE_MAX;
        let (pool, log) = (Pool::new(config), Rc::new(RefCell::new(LogLimit::default())));
        let counted = Arc::clone(&metrics);
        let start = move |fetch: Fetch| {
            let (pool, log, metrics) = (pool.clone(), Rc::clone(&log), Arc::clone(&counted));
            drop(R::spawn(fetch::run::<R>(fetch, pool, log, metrics)));
        };
        Self { shared, metrics, start: Box::new(start) }
    }

    /// The cache that all workers share.
    pub const fn shared(&self) -> &Arc<Objects> {
        &self.shared
    }

    /// What a request for `name` gets. Starts to fetch it if it has to be.
    fn find<R: Runtime>(&self, name: &ObjectName<'_>) -> Result<Source, Refusal> {
        let requests = &self.metrics.objects.requests;
        let (source, fetch) = match self.shared.find(name, R::now()) {
            Lookup::Stored(stored) => {
                requests.fresh.add(1);
                (Source::Stored(stored), None)
            }
            Lookup::Stale(stored, fetch) => {
                requests.stale.add(1);
                (Source::Stored(stored), fetch)
            }
            Lookup::Transfer(transfer, fetch) => {
                let counter = if fetch.is_some() { &requests.miss } else { &requests.joined };
                counter.add(1);
                (Source::Transfer(transfer), fetch)
            }
            Lookup::Missing(status) => {
                requests.missing.add(1);
                return Err(End::Missing(status).into());
            }
            Lookup::Busy => {
                requests.refused.add(1);
                return Err(End::Failed(Failure::Busy).into());
            }
        };
        if let Some(fetch) = fetch {
            (self.start)(fetch);
        }
        Ok(source)
    }
}

impl fmt::Debug for WorkerObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerObjects").field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// The beginning of the paths of objects.
const PATH: &str = "/object/";

/// Whether a path belongs to this service.
pub(super) fn has_path(path: &str) -> bool {
    path.starts_with(PATH)
}

/// Answers the request of a connection, a `GET` or `HEAD` with such a path.
///
/// # Errors
/// Errors of the connection. [`UnexpectedEof`](io::ErrorKind::UnexpectedEof): the object has failed while it was being
/// sent, and the connection is reset.
pub(super) async fn answer<R: Runtime>(
    connection: &mut Connection<R, impl ByteStream>,
    ctx: &Context,
) -> Result<(), Error> {
    let Some(objects) = &ctx.worker.objects else {
        let why = "there are no objects: --origin is missing\n";
        return refuse(connection, Refusal { status: 404, why: why.into() }).await;
    };
    let found = match connection.request() {
        Some(request) => name(&request).and_then(|name| objects.find::<R>(&name)),
        None => return Ok(()),
    };
    let source = match found {
        Ok(source) => source,
        Err(refusal) => return refuse(connection, refusal).await,
    };
    let head = match source.head(connection).await? {
        Ok(head) => head,
        Err(end) => return refuse(connection, end.into()).await,
    };
    let chunk_bytes = objects.shared.config().chunk_bytes;
    let sent = send(connection, &source, &head, chunk_bytes).await?;
    objects.metrics.objects.sent_bytes.add(sent);
    Ok(())
}

/// The name in the path of a request.
fn name<'b>(request: &Request<'b>) -> Result<ObjectName<'b>, Refusal> {
    let refused = |why: Cow<'static, str>| Refusal { status: 400, why };
    if !request.query().is_empty() {
        return Err(refused("an object has no query\n".into()));
    }
    let segment = request.path().strip_prefix(PATH).unwrap_or_default();
    let name = match segment.contains('%') {
        false => Cow::Borrowed(segment),
        true => percent_decoded(segment)
            .and_then(|decoded| String::from_utf8(decoded).ok())
            .map(Cow::Owned)
            .ok_or_else(|| refused("the name is not encoded UTF-8\n".into()))?,
    };
    ObjectName::new(name).map_err(|error| refused(format!("{error}\n").into()))
}

/// Where the bytes of an answer come from.
enum Source {
    Stored(Arc<Stored>),
    Transfer(Arc<Transfer>),
}

impl Source {
    /// Waits for the head of the object.
    async fn head<R: Runtime>(
        &self,
        connection: &mut Connection<R, impl ByteStream>,
    ) -> Result<Result<Arc<Head>, End>, Error> {
        let transfer = match self {
            Self::Stored(stored) => return Ok(Ok(Arc::clone(stored.head()))),
            Self::Transfer(transfer) => transfer,
        };
        // Each round waits for the fetch.
        loop {
            if let Some(head) = transfer.head() {
                return Ok(head);
            }
            let changed = transfer.listen();
            if let Some(head) = transfer.head() {
                return Ok(head);
            }
            connection.flush().await?; // earlier answers
            changed.await;
        }
    }

    /// Waits for the bytes at `at`. `None`: the object ends there.
    async fn next<R: Runtime>(
        &self,
        at: u64,
        connection: &mut Connection<R, impl ByteStream>,
    ) -> Result<Result<Option<Bytes>, End>, Error> {
        let transfer = match self {
            Self::Stored(stored) => return Ok(Ok(stored.read(at))),
            Self::Transfer(transfer) => transfer,
        };
        // Each round waits for the fetch.
        loop {
            let mut arrival = transfer.read(at);
            if arrival == Arrival::Nothing {
                let changed = transfer.listen();
                arrival = transfer.read(at);
                if arrival == Arrival::Nothing {
                    connection.flush().await?;
                    changed.await;
                }
            }
            match arrival {
                Arrival::Nothing => {}
                Arrival::Bytes(bytes) => return Ok(Ok(Some(bytes))),
                Arrival::End(End::Complete) => return Ok(Ok(None)),
                Arrival::End(end) => return Ok(Err(end)),
            }
        }
    }
}

/// Sends what the request asks for of an object, and returns how many bytes that were.
async fn send<R: Runtime>(
    connection: &mut Connection<R, impl ByteStream>,
    source: &Source,
    head: &Head,
    chunk_bytes: Option<NonZeroUsize>,
) -> Result<u64, Error> {
    let (length, etag, age) = match source {
        Source::Stored(stored) => (Some(stored.len()), Some(stored.etag()), stored.age(R::now())),
        Source::Transfer(_) => (head.length, head.etag.as_deref(), head.age),
    };
    let Some(request) = connection.request() else { return Ok(0) };
    let (choice, is_head_method) =
        (Choice::of(&request, head, length, etag), request.method() == "HEAD");
    let mut age_digits = [0; DIGITS_MAX];
    let mut headers = Headers::new();
    for (name, value) in &head.headers {
        // What the client has already is not described again (RFC 9110 section 15.4.5).
        if choice != Choice::NotModified || !name.starts_with("Content-") {
            headers.push(name, value);
        }
    }
    if let Some(etag) = etag {
        headers.push("ETag", etag);
    }
    if age > 0 || matches!(source, Source::Stored(_)) {
        headers.push("Age", decimal(age, &mut age_digits));
    }
    headers.push("Accept-Ranges", "bytes");
    let (response, range) = match choice {
        Choice::Whole => (Response::new(200), 0..length.unwrap_or(u64::MAX)),
        Choice::Part(part, length) => (Response::partial(part.clone(), length), part),
        Choice::Unsatisfiable(length) => {
            // Without the headers of the object: a cache in front could keep this answer for as long as the object.
            let headers = [("Cache-Control", "no-store"), ("Accept-Ranges", "bytes")];
            let response = Response::unsatisfiable(length).with_headers(&headers);
            return connection.respond(&response, "").await.map(|()| 0);
        }
        Choice::NotModified => {
            let response = Response::new(304).with_headers(headers.as_slice());
            return connection.respond(&response, "").await.map(|()| 0);
        }
    };
    let body = match (length, chunk_bytes) {
        (Some(_), None) => BodyLength::Exact(range.end - range.start),
        _ => BodyLength::Chunked,
    };
    connection.begin(&response.with_headers(headers.as_slice()), body).await?;
    let sent = match is_head_method {
        true => 0,
        false => send_body(connection, source, range, chunk_bytes).await?,
    };
    connection.finish().await?;
    Ok(sent)
}

/// Sends a part of an object, in chunks of this length if there is one.
async fn send_body<R: Runtime>(
    connection: &mut Connection<R, impl ByteStream>,
    source: &Source,
    range: Range<u64>,
    chunk_bytes: Option<NonZeroUsize>,
) -> Result<u64, Error> {
    let mut at = range.start;
    while at < range.end {
        let mut bytes = match source.next(at, connection).await? {
            Ok(Some(bytes)) => bytes,
            Ok(None) => break,
            Err(end) => {
                connection.close().await?; // the answer is not finished: a reset
                let why = Refusal::from(end).why;
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why.trim_end()).into());
            }
        };
        bytes.truncate(usize::try_from(range.end - at).unwrap_or(usize::MAX));
        at += bytes.len() as u64;
        if let Some(chunk_bytes) = chunk_bytes {
            while bytes.len() > chunk_bytes.get() {
                connection.write_body(bytes.split_to(chunk_bytes.get())).await?;
            }
        }
        connection.write_body(bytes).await?;
    }
    Ok(at - range.start)
}

/// An answer without an object.
struct Refusal {
    status: u16,
    why: Cow<'static, str>,
}

impl From<End> for Refusal {
    fn from(end: End) -> Self {
        match end {
            End::Failed(failure) => {
                Self { status: failure.status(), why: format!("{failure}\n").into() }
            }
            End::Missing(status) => Self { status, why: "there is no such object\n".into() },
            // Nothing is missing then.
            End::Complete => Self { status: 500, why: "the object has ended\n".into() },
        }
    }
}

async fn refuse<R: Runtime>(
    connection: &mut Connection<R, impl ByteStream>,
    refusal: Refusal,
) -> Result<(), Error> {
    const PLAIN_TEXT: (&str, &str) = ("Content-Type", "text/plain");
    let headers: &[_] = match refusal.status {
        503 => &[PLAIN_TEXT, ("Retry-After", RETRY_AFTER)],
        _ => &[PLAIN_TEXT],
    };
    let body = match refusal.why {
        Cow::Borrowed(text) => Bytes::from_static(text.as_bytes()),
        Cow::Owned(text) => text.into(),
    };
    connection.respond(&Response::new(refusal.status).with_headers(headers), body).await
}

/// When a client that was refused may ask again, in seconds. Objects that arrive take about as long.
const RETRY_AFTER: &str = "1";

/// The headers of an answer, without an allocation.
struct Headers<'a> {
    headers: [(&'a str, &'a str); FORWARDED_MAX + 3],
    count: usize,
}

impl<'a> Headers<'a> {
    const fn new() -> Self {
        Self { headers: [("", ""); FORWARDED_MAX + 3], count: 0 }
    }

    /// Adds a header. There is room for what an origin may say, and for three more.
    fn push(&mut self, name: &'a str, value: &'a str) {
        self.headers[self.count] = (name, value);
        self.count += 1;
    }

    fn as_slice(&self) -> &[(&'a str, &'a str)] {
        &self.headers[..self.count]
    }
}

/// The most digits of 64 bits.
const DIGITS_MAX: usize = 20;

fn decimal(number: u64, digits: &mut [u8; DIGITS_MAX]) -> &str {
    let mut rest = &mut digits[..];
    let written = write!(rest, "{number}");
    debug_assert!(written.is_ok(), "there is room for all digits");
    let left = rest.len();
    std::str::from_utf8(&digits[..DIGITS_MAX - left]).unwrap_or_default()
}

/// Waits at most `time` for an operation that may be dropped.
async fn within<R: Runtime, T>(
    time: Duration,
    operation: impl Future<Output = T>,
) -> Result<T, Failure> {
    let operation = std::pin::pin!(operation);
    owned_io::select(operation, R::sleep(time)).await.first.ok_or(Failure::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_digits() {
        for number in [0, 7, 1_000, u64::MAX] {
            assert_eq!(decimal(number, &mut [0; DIGITS_MAX]), number.to_string());
        }
    }
}
