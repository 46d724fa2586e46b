//! HTTP: the health of the server, objects, and upgrades to WebSocket.
//!
//! | path | answer |
//! |---|---|
//! | `/health` | `ok` |
//! | `/object/NAME` | an object of the origin: see [`object`] |
//! | `/` | a WebSocket for Iggy's clients, if there is a password for them: see [`iggy`] |
//! | `/echo` | a WebSocket: see [`websocket::echo`] |
//! | `/echo?hops=app` | a WebSocket: see [`application::echo`] |
//! | `/sink` | a WebSocket: see [`websocket::sink`] |
//! | `/source?messages=N&bytes=S&batch=B` | a WebSocket: see [`websocket::source`] |
//! | `/source` | a WebSocket: see [`websocket::fetch`] |
//! | `/tail/STREAM/TOPIC/PARTITION?from=…` | a WebSocket, for who has the password of Iggy's clients: see [`tail`] |
//! | `POST /events/STREAM/TOPIC` | where the events of its body were appended, for who has that password: see [`events`] |
//!
//! Each answer but the 101 of an upgrade has `Date` and `Server`.
//!
//! Other paths are answered 404. `/health` is answered 503 after [notice](crate::drain::DrainSignal::notice), and when
//! [the catalogue of the streams has failed](crate::iggy::storage::CatalogueFailure), which a restart may cure. Every
//! path is answered 503 once the server drains.
//!
//! A connection serves one request after the other, until one is upgraded. [`owned_io_http`] reads and refuses them,
//! and says how connections end. A request for an upgrade that is refused is the last one of its connection.
//!
//! A page of any origin may ask for an upgrade, and send events, unless the
//! [allowed origins](crate::config::AllowedOrigins) are limited. A site that identifies its users by cookies must limit
//! them. So must one whose users tell their browsers the password for `/tail` or `/events`: a browser that remembers it
//! may send it for a page of another site.

use std::borrow::Cow;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use owned_io::{Buffers, ByteStream, Clock, Runtime, TRANSFER_BYTES_MAX};
use owned_io_http::{self as engine, Connection, Parts, Request, Response};
#[cfg(feature = "tungstenite")]
use owned_io_tungstenite::{self as bridge, BufferGrowth};
use owned_io_websocket::handshake;
use owned_io_websocket::stream::{Acceptance, Error, WebSocket};
use owned_io_websocket::{CloseFrame, Config};

use super::events::{self, EventsRequest};
use super::source::WRITE_BYTES_MAX;
use super::streams::Refusal;
use super::tail::{self, Tail, TailRequest};
use super::websocket::{self, Messages, websocket_config};
use super::{application, iggy, object};
#[cfg(feature = "tungstenite")]
use crate::config::Deflate;
use crate::config::{Limits, WebSockets};
use crate::connections::CloseMethod;
use crate::context::{Context, Resources};

/// How long a client may wait before it sends a request, its first or a further one: as long as a head may take. Its
/// connection counts against `--connections-max` meanwhile.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// How long a client may accept nothing of an answer. Longer than a few retransmissions.
const WRITE_MAX: Duration = Duration::from_secs(10);

/// How many bytes of answers may wait to be written, whatever the share of a connection is. The buffer for them has twice
/// as many bytes at most, which is the least share.
pub(super) const ANSWERS_BYTES_MIN: usize = 2 * 1024;

/// How many bytes of answers wait to be written at most. Those to 16 requests for an object of 1 KiB, which came at once,
/// leave in one write, if the share of the connection has room.
const ANSWERS_BYTES_MAX: usize = 32 * 1024;

/// How many bytes of answers that are sent by reference wait to be written at most, but one piece at least. What is
/// queued of one object is one write then, with its head and its framing, if chunks have up to 16 KiB.
const SHARED_BYTES_MAX: usize = TRANSFER_BYTES_MAX - (4 + 16) * 1024;

/// The value of `Server`. It has no version: that would tell an attacker more than a user.
const SERVER: &str = "owned-io";

/// The bytes that the queue of a WebSocket may hold beyond a message: the messages that the source gathers for a
/// write, or the answers to one read (the sink's answers to the shortest messages are 5/3 as long as these), and pongs.
const QUEUE_BYTES_SPARE: usize = WRITE_BYTES_MAX + 16 * 1024;

/// As [`QUEUE_BYTES_SPARE`], but over tungstenite, where one read may receive 1 MiB.
#[cfg(feature = "tungstenite")]
const BRIDGE_BYTES_SPARE: usize = 2 * 1024 * 1024;

/// Serves one connection until either side ends it.
///
/// # Errors
/// Errors of the handshake and of the service.
pub async fn serve<R: Runtime>(stream: impl ByteStream, ctx: &Context) -> Result<(), Error> {
    // Futures that few connections need, or need only at first, are boxed, so that each connection is smaller.
    #[cfg(feature = "tungstenite")]
    if let Some(growth) = ctx.worker.websockets.engine.growth() {
        return Box::pin(serve_bridged::<R>(stream, ctx, growth)).await;
    }
    match Box::pin(open::<R, _>(stream, ctx)).await? {
        Some(serving) => serving.await,
        None => Ok(()),
    }
}

/// A service of a WebSocket, in memory of its own size. So the future of the connection has no space for the largest
/// service.
type Serving<'c> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'c>>;

/// Begins the service of a WebSocket, which owns the socket. A block for each, because the argument of a function takes its
/// space twice.
fn serve_socket<R: Runtime, S: ByteStream>(
    socket: WebSocket<S>,
    service: SocketService,
    ctx: &Context,
) -> Serving<'_> {
    let Resources { pattern, limits, metrics, .. } = &*ctx.worker;
    let (traffic, source) = (&metrics.traffic, &metrics.traffic.source_websocket);
    let WebSocket { mut incoming, mut outgoing } = socket;
    match service {
        SocketService::Echo => {
            let flow = &traffic.echo_websocket;
            Box::pin(async move { websocket::echo(&mut incoming, &mut outgoing, flow).await })
        }
        SocketService::EchoByApplication => {
            Box::pin(async move { application::echo::<R>(&mut incoming, &mut outgoing, ctx).await })
        }
        SocketService::Sink => {
            let flow = &traffic.sink_websocket;
            Box::pin(async move { websocket::sink(&mut incoming, &mut outgoing, flow).await })
        }
        SocketService::Source(messages) => Box::pin(async move {
            let (incoming, outgoing) = (&mut incoming, &mut outgoing);
            websocket::source::<R>(incoming, outgoing, messages, pattern, source).await
        }),
        SocketService::Fetch => {
            let bytes_max = limits.message_bytes_max;
            Box::pin(async move {
                let (incoming, outgoing) = (&mut incoming, &mut outgoing);
                websocket::fetch::<R>(incoming, outgoing, bytes_max, pattern, source).await
            })
        }
        SocketService::Iggy => {
            let serving =
                async move { iggy::serve_websocket::<R>(&mut incoming, &mut outgoing, ctx).await };
            Box::pin(serving)
        }
        SocketService::Tail(mut tail) => Box::pin(async move {
            let handle = outgoing.close_handle();
            // An error: the WebSocket is closing already.
            let close = move |frame: CloseFrame<'_>| {
                let _ = handle.close(frame);
            };
            tail::serve::<R>(&mut incoming, &mut outgoing, close, &mut tail, ctx).await
        }),
    }
}

/// Serves one connection over tungstenite.
#[cfg(feature = "tungstenite")]
async fn serve_bridged<R: Runtime>(
    stream: impl ByteStream,
    ctx: &Context,
    growth: BufferGrowth,
) -> Result<(), Error> {
    let Resources { pattern, limits, metrics, .. } = &*ctx.worker;
    let (traffic, source) = (&metrics.traffic, &metrics.traffic.source_websocket);
    let config = websocket_config(Deflate::Off, *limits, BRIDGE_BYTES_SPARE);
    let Some(upgrading) = read_upgrade::<R, _>(stream, ctx, &config).await? else { return Ok(()) };
    let Upgrading { parts, acceptance, service } = upgrading;
    let Parts { stream, buffers, received, head_bytes } = parts;
    let upgraded =
        acceptance.upgrade::<R, _>(stream, received, head_bytes, buffers, config).await?;
    let mut socket = bridge::serve_upgraded::<R, _>(upgraded, growth);
    ctx.connection.set_close_method(CloseMethod::Bridge(socket.outgoing.close_handle()));
    let bridge::WebSocket { incoming, outgoing } = &mut socket;
    match service {
        SocketService::Echo => websocket::echo(incoming, outgoing, &traffic.echo_websocket).await,
        SocketService::EchoByApplication => application::echo::<R>(incoming, outgoing, ctx).await,
        SocketService::Sink => websocket::sink(incoming, outgoing, &traffic.sink_websocket).await,
        SocketService::Source(messages) => {
            websocket::source::<R>(incoming, outgoing, messages, pattern, source).await
        }
        SocketService::Fetch => {
            let bytes_max = limits.message_bytes_max;
            websocket::fetch::<R>(incoming, outgoing, bytes_max, pattern, source).await
        }
        SocketService::Iggy => iggy::serve_websocket::<R>(incoming, outgoing, ctx).await,
        SocketService::Tail(mut tail) => {
            let handle = outgoing.close_handle();
            let close = move |frame: CloseFrame<'_>| {
                let _ = handle.close(frame);
            };
            Box::pin(tail::serve::<R>(incoming, outgoing, close, &mut tail, ctx)).await
        }
    }
}

/// Answers requests until one is upgraded. Returns the service of the WebSocket.
async fn open<R: Runtime, S: ByteStream>(
    stream: S,
    ctx: &Context,
) -> Result<Option<Serving<'_>>, Error> {
    let Resources { websockets, limits, .. } = &*ctx.worker;
    let config = websocket_config(websockets.deflate, *limits, QUEUE_BYTES_SPARE);
    let Some(upgrading) = read_upgrade::<R, _>(stream, ctx, &config).await? else {
        return Ok(None);
    };
    let Upgrading { parts, acceptance, service } = upgrading;
    let Parts { stream, buffers, received, head_bytes } = parts;
    let socket = acceptance.open::<R, _>(stream, received, head_bytes, buffers, config).await?;
    ctx.connection.set_close_method(CloseMethod::WebSocket(socket.outgoing.close_handle()));
    Ok(Some(serve_socket::<R, _>(socket, service, ctx)))
}

/// A connection that is being upgraded to a service.
struct Upgrading<S> {
    parts: Parts<S>,
    acceptance: Acceptance,
    service: SocketService,
}

/// Answers requests until one asks for an upgrade, and accepts that.
async fn read_upgrade<R: Runtime, S: ByteStream>(
    stream: S,
    ctx: &Context,
    config: &Config,
) -> Result<Option<Upgrading<S>>, Error> {
    let Resources { websockets, limits, iggy, .. } = &*ctx.worker;
    let buffers = ctx.websocket_buffers();
    let share_bytes = ctx.connection.account().budget().share_bytes();
    let mut http = http_config(*limits, IDLE_MAX, answers_bytes_max(share_bytes));
    if iggy.is_some() {
        http = events::with_bodies(http, *limits);
    }
    let mut connection = Connection::<R, _>::new(stream, &buffers, http);
    // It stays until the WebSocket is open: meanwhile it has nothing to end.
    ctx.connection.set_close_method(CloseMethod::Http(connection.end_handle()));
    while let Some(request) = connection.next().await.map_err(failure)? {
        let route = match ctx.connection.is_closing() {
            false => Route::of(&request, ctx),
            true => Route::Answer(503, ABOUT_TO_END.into()),
        };
        let routed = match route {
            Route::Upgrade(service) => Ok(service),
            Route::Tail(request) => {
                connection.flush().await.map_err(failure)?; // finding the partition takes a while
                match request.open::<R>().await {
                    _ if ctx.connection.is_closing() => Err((503, ABOUT_TO_END.into())),
                    opened => opened.map(|tail| SocketService::Tail(Box::new(tail))),
                }
            }
            Route::Events(request) => {
                // Boxed because few connections need it.
                Box::pin(events::serve(&mut connection, request, ctx)).await.map_err(failure)?;
                continue;
            }
            Route::Object => {
                // Boxed, so that a connection that asks for none is smaller.
                let answering = Box::pin(object::answer::<R>(&mut connection, ctx));
                answering.await.map_err(failure)?;
                continue;
            }
            Route::Answer(status, body) => Err((status, body)),
        };
        let service = match routed {
            Ok(service) => service,
            Err((status, body)) => {
                respond(&mut connection, status, body).await.map_err(failure)?;
                continue;
            }
        };
        let Some(request) = connection.request() else { return Ok(None) }; // it has no answer yet
        match accept(&request, websockets, service.protocol(), &buffers, config) {
            Ok(acceptance) => {
                let parts = connection.into_parts().await.map_err(failure)?;
                return Ok(Some(Upgrading { parts, acceptance, service }));
            }
            Err(Error::Refused(refusal)) => {
                // It gets no service, and counts as refused. It may miss the answer.
                let _ = refuse(&mut connection, refusal).await;
                return Err(refusal.into());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Accepts an upgrade.
///
/// # Errors
/// [`Error::Refused`].
fn accept(
    request: &Request<'_>,
    websockets: &WebSockets,
    protocol: Option<&str>,
    buffers: &Buffers,
    config: &Config,
) -> Result<Acceptance, Error> {
    let request = handshake_request(request)?;
    let upgrade = websockets.origins.with(|origins| request.upgrade(origins))?;
    Ok(Acceptance::new(upgrade, protocol, &[], buffers, config)?)
}

/// The request, as the handshake of a WebSocket takes it.
pub(super) fn handshake_request<'b>(
    request: &Request<'b>,
) -> Result<handshake::Request<'b>, handshake::Refusal> {
    let (method, target, is_http_1_1) =
        (request.method(), request.target(), !request.is_http_1_0());
    handshake::Request::from_parts(method, target, is_http_1_1, request.headers())
}

/// Answers a request for an upgrade that is refused, and ends the connection.
pub(super) async fn refuse<C: Clock>(
    connection: &mut Connection<C, impl ByteStream>,
    refusal: handshake::Refusal,
) -> Result<(), engine::Error> {
    connection.end_handle().end();
    let headers = [&[PLAIN_TEXT], refusal.headers()].concat();
    let response = Response::new(refusal.status()).with_headers(&headers);
    connection.respond(&response, format!("{refusal}\n")).await?;
    connection.close().await
}

/// Answers with text.
pub(super) async fn respond<C: Clock>(
    connection: &mut Connection<C, impl ByteStream>,
    status: u16,
    body: Cow<'static, str>,
) -> Result<(), engine::Error> {
    let headers: &[_] = match status {
        401 => &[PLAIN_TEXT, ("WWW-Authenticate", "Basic realm=\"owned-io\"")],
        405 => &[PLAIN_TEXT, ("Allow", "GET, HEAD")],
        426 => &[PLAIN_TEXT, ("Upgrade", "websocket")],
        _ => &[PLAIN_TEXT],
    };
    let body = match body {
        Cow::Borrowed(text) => Bytes::from_static(text.as_bytes()),
        Cow::Owned(text) => text.into(),
    };
    connection.respond(&Response::new(status).with_headers(headers), body).await
}

pub(super) const PLAIN_TEXT: (&str, &str) = ("Content-Type", "text/plain");

/// How many bytes of answers wait for a client with this share of the memory: half of it, so that a client that reads no
/// answers takes no memory that others need.
fn answers_bytes_max(share_bytes: usize) -> usize {
    (share_bytes / 2).clamp(ANSWERS_BYTES_MIN, ANSWERS_BYTES_MAX)
}

/// The limits of a connection whose client may wait for `idle_max` before each request, and let `answers_bytes_max` bytes of
/// answers wait. No service but [events](events::with_bodies) takes a body; the defaults bound what is discarded of one.
pub(super) fn http_config(
    limits: Limits,
    idle_max: Duration,
    answers_bytes_max: usize,
) -> engine::Config {
    let mut config = engine::Config::default();
    config.server = Some(SERVER);
    config.limits.queue_bytes_max = answers_bytes_max;
    config.limits.queue_shared_bytes_max = SHARED_BYTES_MAX;
    config.timeouts.idle = idle_max;
    config.timeouts.write = WRITE_MAX;
    config.timeouts.close = limits.linger_time;
    config
}

/// The error of the service for one of HTTP. [`CloseCause`](crate::metrics::CloseCause) finds it inside.
pub(super) fn failure(error: engine::Error) -> Error {
    Error::Io(error.into())
}

/// How a request is handled.
enum Route {
    /// An answer with this status and this body.
    Answer(u16, Cow<'static, str>),
    /// An upgrade to this service.
    Upgrade(SocketService),
    /// An upgrade to a tail, if there is such a partition.
    Tail(TailRequest),
    /// Events in the body, or what is wrong with the request.
    Events(Result<EventsRequest, Refusal>),
    /// An object.
    Object,
}

/// The service of a WebSocket.
enum SocketService {
    Echo,
    /// With two queue hops.
    EchoByApplication,
    Sink,
    Source(Messages),
    Fetch,
    Iggy,
    Tail(Box<Tail>),
}

impl SocketService {
    /// The subprotocol, which the client has offered.
    fn protocol(&self) -> Option<&'static str> {
        match self {
            Self::Tail(tail) => tail.protocol(),
            _ => None,
        }
    }
}

impl Route {
    fn of(request: &Request<'_>, ctx: &Context) -> Self {
        if EventsRequest::has_path(request.path()) {
            let Resources { iggy, websockets, limits, .. } = &*ctx.worker;
            let origins = &websockets.origins;
            return Self::Events(EventsRequest::decode(request, iggy.as_ref(), origins, *limits));
        }
        let is_head = match request.method() {
            "GET" => false,
            "HEAD" => true,
            _ => return Self::Answer(405, "only GET and HEAD are allowed\n".into()),
        };
        match Self::of_get(request, ctx) {
            Self::Upgrade(_) | Self::Tail(_) if is_head => {
                Self::Answer(426, "this path is a WebSocket\n".into())
            }
            route => route,
        }
    }

    fn of_get(request: &Request<'_>, ctx: &Context) -> Self {
        let Resources { limits, iggy, .. } = &*ctx.worker;
        match request.path() {
            "/" if iggy.is_some() => Self::Upgrade(SocketService::Iggy),
            "/health" => {
                let (status, body) = health(ctx);
                Self::Answer(status, body.into())
            }
            "/echo" => match passes_application(request.query()) {
                Ok(false) => Self::Upgrade(SocketService::Echo),
                Ok(true) => Self::Upgrade(SocketService::EchoByApplication),
                Err(why) => Self::Answer(400, why.into()),
            },
            "/sink" => Self::Upgrade(SocketService::Sink),
            "/source" if request.query().is_empty() => Self::Upgrade(SocketService::Fetch),
            "/source" => match Messages::parse(request.query(), limits.message_bytes_max) {
                Ok(messages) => Self::Upgrade(SocketService::Source(messages)),
                Err(why) => Self::Answer(400, why.into()),
            },
            path if object::has_path(path) => Self::Object,
            path if TailRequest::has_path(path) => {
                match TailRequest::decode(request, iggy.as_ref()) {
                    Ok(request) => Self::Tail(request),
                    Err((status, body)) => Self::Answer(status, body),
                }
            }
            _ => {
                let paths =
                    "the paths are /health, /object, /echo, /sink, /source, /tail and /events\n";
                Self::Answer(404, paths.into())
            }
        }
    }
}

/// Whether the query of `/echo` asks for the hops to the application: `hops=app`. Other parameters mean nothing.
///
/// # Errors
/// A sentence for the peer that names the bad value.
fn passes_application(query: &str) -> Result<bool, String> {
    let hops = |parameter: &str| match parameter.split_once('=').unwrap_or((parameter, "")) {
        ("hops", value) => Some(value.to_owned()),
        _ => None,
    };
    let mut hops = query.split('&').filter_map(hops);
    match (hops.next().as_deref(), hops.next()) {
        (None, _) => Ok(false),
        (Some("app"), None) => Ok(true),
        (Some(_), Some(_)) => Err("hops is given twice\n".to_owned()),
        (Some(value), None) => Err(format!("hops: {} is not app\n", quoted(value))),
    }
}

/// The most characters of a request that an answer repeats. The body of an answer is not counted in the memory budget.
const QUOTED_CHARS_MAX: usize = 64;

/// `text` in quotation marks, with escapes. A longer one is cut, and dots follow its quotation marks.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS_MAX) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// The status and the body of `/health`.
pub(super) fn health(ctx: &Context) -> (u16, &'static str) {
    let iggy = ctx.worker.iggy.as_ref();
    if ctx.connection.is_draining() {
        (503, ABOUT_TO_END)
    } else if iggy.is_some_and(|iggy| iggy.hub().catalogue_failure().has_happened()) {
        (503, CATALOGUE_FAILED)
    } else {
        (200, "ok\n")
    }
}

pub(super) const ABOUT_TO_END: &str = "the server is about to end\n";

const CATALOGUE_FAILED: &str = "the log of streams and offsets has failed: nothing can be created until the server is started again\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_are_to_the_application_or_named() {
        for plain in ["", "x", "hop=1", "hopss=app", "x=hops=app"] {
            assert_eq!(passes_application(plain), Ok(false), "{plain}");
        }
        for hops in ["hops=app", "x&hops=app", "hops=app&"] {
            assert_eq!(passes_application(hops), Ok(true), "{hops}");
        }
        for (query, named) in [
            ("hops", "\"\""),
            ("hops=", "\"\""),
            ("hops=App", "\"App\""),
            ("hops=2", "\"2\""),
            ("hops=app=", "\"app=\""),
            ("hops=app&hops=app", "twice"),
        ] {
            let why = passes_application(query).unwrap_err();
            assert!(why.contains(named), "{query}: {why}");
        }
        let why = passes_application(&format!("hops={}", "x".repeat(7_000))).unwrap_err();
        assert!(why.len() < 128, "{why}");
    }

    #[test]
    fn a_long_text_is_cut_between_two_characters() {
        for (text, expected) in [
            ("", "\"\"".to_owned()),
            ("a\n", "\"a\\n\"".to_owned()),
            (&*"é".repeat(64), format!("\"{}\"", "é".repeat(64))),
            (&*"é".repeat(65), format!("\"{}\"...", "é".repeat(64))),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }
}
