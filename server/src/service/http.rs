//! HTTP: the health of the server, and upgrades to WebSocket.
//!
//! | path | answer |
//! |---|---|
//! | `/health` | `ok` |
//! | `/` | a WebSocket for Iggy's clients, if there is a password for them: see [`iggy`] |
//! | `/echo` | a WebSocket: see [`websocket::echo`] |
//! | `/echo?hops=app` | a WebSocket: see [`application::echo`] |
//! | `/sink` | a WebSocket: see [`websocket::sink`] |
//! | `/source?messages=N&bytes=S&batch=B` | a WebSocket: see [`websocket::source`] |
//! | `/source` | a WebSocket: see [`websocket::fetch`] |
//! | `/tail/STREAM/TOPIC/PARTITION?from=…` | a WebSocket, for who has the password of Iggy's clients: see [`tail`] |
//!
//! Other paths are answered 404. `/health` is answered 503 after [notice](crate::drain::DrainSignal::notice), and
//! every path is answered 503 once the server drains. A connection has one request. After the answer to a request that
//! is not an upgrade, the connection is closed.
//!
//! A page of any origin may ask for an upgrade, unless the [allowed origins](crate::config::AllowedOrigins) are
//! limited. A site that identifies its users by cookies must limit them. So must one whose users tell their browsers the
//! password for `/tail`: a browser that remembers it may send it for a page of another site.

use std::borrow::Cow;

use owned_io::{ByteStream, Runtime};
#[cfg(feature = "tungstenite")]
use owned_io_tungstenite::{self as bridge, BufferGrowth};
use owned_io_websocket::handshake::{Origins, Request};
use owned_io_websocket::stream::{Error, PendingRequest, WebSocket};
use owned_io_websocket::{CloseFrame, Config};

use super::source::WRITE_BYTES_MAX;
use super::tail::{self, Tail, TailRequest};
use super::websocket::{self, Messages, websocket_config};
use super::{application, iggy};
#[cfg(feature = "tungstenite")]
use crate::config::Deflate;
use crate::connections::{CloseMethod, ConnectionHandle};
use crate::context::{Context, Resources};

/// The bytes that the queue of a connection may hold beyond a message: the messages that the source gathers for a
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
    let Resources { pattern, limits, metrics, .. } = &*ctx.worker;
    let (traffic, source) = (&metrics.traffic, &metrics.traffic.source_websocket);
    // Futures that few connections need, or need only at first, are boxed, so that each connection is smaller.
    #[cfg(feature = "tungstenite")]
    if let Some(growth) = ctx.worker.websockets.engine.growth() {
        return Box::pin(serve_bridged::<R>(stream, ctx, growth)).await;
    }
    let opening = Box::pin(open::<R, _>(stream, ctx));
    let Some((mut socket, service)) = opening.await? else { return Ok(()) };
    let WebSocket { incoming, outgoing } = &mut socket;
    match service {
        SocketService::Echo => websocket::echo(incoming, outgoing, &traffic.echo_websocket).await,
        SocketService::EchoByApplication => {
            Box::pin(application::echo::<R>(incoming, outgoing, ctx)).await
        }
        SocketService::Sink => websocket::sink(incoming, outgoing, &traffic.sink_websocket).await,
        SocketService::Source(messages) => {
            Box::pin(websocket::source::<R>(incoming, outgoing, messages, pattern, source)).await
        }
        SocketService::Fetch => {
            let bytes_max = limits.message_bytes_max;
            Box::pin(websocket::fetch::<R>(incoming, outgoing, bytes_max, pattern, source)).await
        }
        SocketService::Iggy => Box::pin(iggy::serve_websocket::<R>(incoming, outgoing, ctx)).await,
        SocketService::Tail(tail) => {
            let handle = outgoing.close_handle();
            // An error: the WebSocket is closing already.
            let close = move |frame: CloseFrame<'_>| {
                let _ = handle.close(frame);
            };
            Box::pin(tail::serve::<R>(incoming, outgoing, close, *tail, ctx)).await
        }
    }
}

/// Serves one connection over tungstenite.
#[cfg(feature = "tungstenite")]
async fn serve_bridged<R: Runtime>(
    stream: impl ByteStream,
    ctx: &Context,
    growth: BufferGrowth,
) -> Result<(), Error> {
    let Resources { pattern, websockets, limits, metrics, .. } = &*ctx.worker;
    let (traffic, source) = (&metrics.traffic, &metrics.traffic.source_websocket);
    let config = websocket_config(Deflate::Off, *limits, BRIDGE_BYTES_SPARE);
    let upgrade = read_upgrade::<R, _>(stream, ctx, config).await?;
    let Some((pending, service)) = upgrade else { return Ok(()) };
    let accept = async |origins: Origins<'_>| {
        bridge::accept_pending(pending, origins, service.protocol(), &[], growth).await
    };
    let mut socket = websockets.origins.with_async(accept).await?;
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
        SocketService::Tail(tail) => {
            let handle = outgoing.close_handle();
            let close = move |frame: CloseFrame<'_>| {
                let _ = handle.close(frame);
            };
            Box::pin(tail::serve::<R>(incoming, outgoing, close, *tail, ctx)).await
        }
    }
}

/// Reads the request, and upgrades the connection or answers. Returns the WebSocket and its service after an upgrade.
async fn open<R: Runtime, S: ByteStream>(
    stream: S,
    ctx: &Context,
) -> Result<Option<(WebSocket<S>, SocketService)>, Error> {
    let Resources { websockets, limits, .. } = &*ctx.worker;
    let config = websocket_config(websockets.deflate, *limits, QUEUE_BYTES_SPARE);
    let upgrade = read_upgrade::<R, _>(stream, ctx, config).await?;
    let Some((pending, service)) = upgrade else { return Ok(None) };
    let accept =
        async |origins: Origins<'_>| pending.accept(origins, service.protocol(), &[]).await;
    let socket = websockets.origins.with_async(accept).await?;
    ctx.connection.set_close_method(CloseMethod::WebSocket(socket.outgoing.close_handle()));
    Ok(Some((socket, service)))
}

/// Reads the request. Returns a request for an upgrade together with its service. Answers any other request.
async fn read_upgrade<R: Runtime, S: ByteStream>(
    stream: S,
    ctx: &Context,
    config: Config,
) -> Result<Option<(PendingRequest<R, S>, SocketService)>, Error> {
    let Resources { websockets, .. } = &*ctx.worker;
    let pending = PendingRequest::<R, _>::read(stream, &ctx.websocket_buffers(), config).await?;
    let route = match ctx.connection.is_closing() {
        false => Route::of(&pending.request(), ctx),
        true => Route::Answer(503, ABOUT_TO_END.into()),
    };
    let answered = match route {
        Route::Upgrade(service) => Ok(service),
        Route::Tail(request) => match request.open::<R>().await {
            _ if ctx.connection.is_closing() => Err((503, ABOUT_TO_END.into())),
            opened => opened.map(|tail| SocketService::Tail(Box::new(tail))),
        },
        Route::Answer(status, body) => Err((status, body)),
    };
    match answered {
        Ok(service) => {
            let request = pending.request();
            if websockets.origins.with(|origins| request.upgrade(origins).is_ok()) {
                ctx.connection.set_close_method(CloseMethod::Upgrading);
            } // Otherwise `accept` refuses it, and the connection can still be closed meanwhile.
            Ok(Some((pending, service)))
        }
        Err((status, body)) => {
            let headers: &[_] = match status {
                401 => &[("WWW-Authenticate", "Basic realm=\"owned-io\"")],
                405 => &[("Allow", "GET, HEAD")],
                426 => &[("Upgrade", "websocket")],
                _ => &[],
            };
            pending.respond(status, headers, body.as_bytes()).await?;
            Ok(None)
        }
    }
}

/// How a request is handled.
enum Route {
    /// An answer with this status and this body.
    Answer(u16, Cow<'static, str>),
    /// An upgrade to this service.
    Upgrade(SocketService),
    /// An upgrade to a tail, if there is such a partition.
    Tail(TailRequest),
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
                let (status, body) = health(&ctx.connection);
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
            path if TailRequest::has_path(path) => {
                match TailRequest::decode(request, iggy.as_ref()) {
                    Ok(request) => Self::Tail(request),
                    Err((status, body)) => Self::Answer(status, body),
                }
            }
            _ => {
                Self::Answer(404, "the paths are /health, /echo, /sink, /source and /tail\n".into())
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
        (Some(value), None) => Err(format!("hops: {value:?} is not app\n")),
    }
}

/// The status and the body of `/health`.
pub(super) fn health(connection: &ConnectionHandle) -> (u16, &'static str) {
    if connection.is_draining() { (503, ABOUT_TO_END) } else { (200, "ok\n") }
}

const ABOUT_TO_END: &str = "the server is about to end\n";

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
    }
}
