//! The page of operators at `/` of [`admin`](super::admin): live figures, stalls, and a tail of a partition.
//!
//! | path | answer |
//! |---|---|
//! | `/` | the page: one HTML file with its style and its script, and nothing from elsewhere |
//! | `/live` | a WebSocket: the figures as JSON, each second |
//! | `/tail` | a WebSocket: the newest messages of a partition, for who sends the user and the password of Iggy's clients |
//!
//! # Who sees it
//!
//! Figures and stalls are for operators, so the whole page is on `--admin`, and on no other listener. Whoever reaches
//! that one sees them, as with `/metrics` and `/stalls`. `/` of `--http` stays the WebSocket of Iggy's clients.
//!
//! Messages belong to the users of the streams. So the tail needs Iggy's user and password here too, and one page has
//! everything that an operator may see. The page sends them in the first message of `/tail`, not as HTTP Basic: a
//! browser sets no `Authorization` for a WebSocket. It only repeats what it remembers, and then for pages of other
//! sites, too. The page keeps the password in memory until it is left. A WebSocket that is open can also say why it
//! closes; of one that is refused a page learns nothing.
//!
//! `--admin` has no TLS, and the page says so above the password. Reach it through a tunnel, or behind a proxy that has
//! TLS and asks who is there. Behind a proxy the page may have any path that ends in `/`.
//!
//! # Pages of other sites
//!
//! A page of any site can ask for a WebSocket anywhere, and the browser says whose page it is. These WebSockets are
//! refused with 403 if `Origin` is not the `Host` of the request, whatever `--origins` allows. The scheme may be `https`,
//! because a proxy may have TLS. Clients that are not browsers send no origin, and are admitted.
//!
//! No other page can frame this one, and it runs nothing but its own script: its `Content-Security-Policy` names the
//! hashes of its script and of its style. The script makes no HTML of what it shows.
//!
//! # Slow viewers
//!
//! A viewer gets a new message when its socket has taken the last one. So it misses what it is too slow for, and holds one
//! message of at most [`MESSAGE_BYTES_MAX`]. One that takes nothing for `--message-seconds-max`, or answers no ping, is ended.
//! All workers together serve [`VIEWS_MAX`] WebSockets; the next one is closed as 1013.
//!
//! | module | subject |
//! |---|---|
//! | `live` | `/live` |
//! | `snapshot` | what it sends |
//! | `tail` | `/tail`; [`tail::preview`](super::tail) reads the messages |

mod live;
mod snapshot;
mod tail;

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use owned_io::{Buffers, ByteStream, Clock, Runtime};
use owned_io_http::{self as engine, Connection, Parts, Request, Response};
use owned_io_websocket::handshake::{self, Origins};
use owned_io_websocket::stream::{Acceptance, Error, Outgoing, Unsent, WebSocket};
use owned_io_websocket::{CloseCode, CloseFrame, Config, Fragment, MessageKind};

use super::http::{failure, handshake_request, refuse};
use super::tail::{PUSH_BYTES_MAX, ignore_messages};
use super::websocket::{websocket_config, while_receiving};
use crate::config::{Deflate, Limits};
use crate::connections::CloseMethod;
use crate::context::Context;
use crate::metrics::Metrics;

/// How many WebSockets all workers serve together: some ten operators, each with the figures and perhaps a tail. They are
/// among the connections of admins, of which most stay free for health checks.
pub const VIEWS_MAX: usize = 16;

/// The longest message to a viewer, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 32 * 1024;

/// What a viewer can make the server hold, in bytes: a message, and less than 8 KiB for frames, pongs, and what the viewer sends.
pub(super) const VIEW_BYTES: usize = MESSAGE_BYTES_MAX + 8 * 1024;

/// The longest message of a viewer, in bytes: four texts of 255 bytes, each of which JSON may make six times as long. It
/// fits a receive buffer.
const REQUEST_BYTES_MAX: usize = 7 * 1024;

const _: () = assert!(PUSH_BYTES_MAX <= MESSAGE_BYTES_MAX);

const PAGE: &str = include_str!("page.html");

/// What the page may do: run its script and use its style, show its icon, and ask the server it came from. The script may
/// not make HTML of text (`require-trusted-types-for`). A test compares the hashes with the page.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; \
    script-src 'sha256-3wamdyUCS7MgEU80Pmzk+N0SVe/qmLSyiUUI0vaa9e4='; \
    style-src 'sha256-GYt/tBsgDX5VrgW1zbkVxAdS7xBbGWQmLtAHsssQWOw='; \
    connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

const HEADERS: [(&str, &str); 7] = [
    ("Content-Type", "text/html; charset=utf-8"),
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", CONTENT_SECURITY_POLICY),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
];

/// What the workers share of the page.
#[derive(Debug, Default)]
pub(crate) struct Views {
    last: snapshot::Last,
    /// How many WebSockets are served.
    open: AtomicUsize,
}

/// Counts a WebSocket until it is dropped.
struct View<'a>(&'a Views);

impl Views {
    /// `None` if [`VIEWS_MAX`] are served.
    fn begin(&self) -> Option<View<'_>> {
        let increased = |open: usize| (open < VIEWS_MAX).then_some(open + 1);
        self.open.fetch_update(Ordering::AcqRel, Ordering::Acquire, increased).ok()?;
        Some(View(self))
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The WebSockets of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    Live,
    Tail,
}

impl Path {
    /// The WebSocket that has this path.
    pub(super) fn of(path: &str) -> Option<Self> {
        match path {
            "/live" => Some(Self::Live),
            "/tail" => Some(Self::Tail),
            _ => None,
        }
    }
}

/// Answers with the page.
pub(super) async fn respond<C: Clock>(
    connection: &mut Connection<C, impl ByteStream>,
) -> Result<(), engine::Error> {
    let response = Response::new(200).with_headers(&HEADERS);
    connection.respond(&response, Bytes::from_static(PAGE.as_bytes())).await
}

/// Opens the WebSocket that the request of the connection asks for, and serves it until either side closes it.
///
/// # Errors
/// [`Error::Refused`]: the client was told. Errors of the connection.
pub(super) async fn serve<R: Runtime, S: ByteStream>(
    mut connection: Connection<R, S>,
    path: Path,
    metrics: &Metrics,
    ctx: &Context,
) -> Result<(), Error> {
    let (buffers, config) = (ctx.websocket_buffers(), config(ctx.worker.limits));
    let Some(request) = connection.request() else { return Ok(()) }; // it has no answer yet
    let acceptance = match accept(&request, &buffers, &config) {
        Ok(acceptance) => acceptance,
        Err(Error::Refused(refusal)) => {
            let _ = refuse(&mut connection, refusal).await; // it may miss the answer
            return Err(refusal.into());
        }
        Err(error) => return Err(error),
    };
    let Parts { stream, buffers, received, head_bytes } =
        connection.into_parts().await.map_err(failure)?;
    let mut socket = acceptance.open::<R, _>(stream, received, head_bytes, buffers, config).await?;
    let handle = socket.outgoing.close_handle();
    ctx.connection.set_close_method(CloseMethod::WebSocket(handle.clone()));
    let WebSocket { incoming, outgoing } = &mut socket;
    let Some(_view) = metrics.views().begin() else {
        let reason = "too many viewers: close a page";
        let frame = CloseFrame { code: Some(CloseCode::TRY_AGAIN), reason };
        let receiving = pin!(ignore_messages(incoming, |_| (), ""));
        return while_receiving(receiving, pin!(outgoing.close(frame))).await;
    };
    match path {
        Path::Live => live::serve::<R>(incoming, outgoing, &handle, metrics, ctx).await,
        Path::Tail => tail::serve::<R>(incoming, outgoing, &handle, ctx).await,
    }
}

/// Accepts an upgrade of a page of this origin.
///
/// # Errors
/// [`Error::Refused`].
fn accept(request: &Request<'_>, buffers: &Buffers, config: &Config) -> Result<Acceptance, Error> {
    let upgrade = own_origin(request)?;
    Ok(Acceptance::new(upgrade, None, &[], buffers, config)?)
}

/// Checks that the page that asks for the upgrade, if it is one, came from the host that is asked.
fn own_origin<'b>(request: &Request<'b>) -> Result<handshake::Upgrade<'b>, handshake::Refusal> {
    let host = request.header("host").and_then(|host| std::str::from_utf8(host).ok());
    let host = host.unwrap_or_default(); // no origin equals `http://`
    let (plain, over_tls) = (format!("http://{host}"), format!("https://{host}"));
    handshake_request(request)?.upgrade(Origins::Only(&[&plain, &over_tls]))
}

fn config(limits: Limits) -> Config {
    let mut config = websocket_config(Deflate::Off, limits, 0);
    config.engine.frame_bytes_max = REQUEST_BYTES_MAX;
    config.engine.message_bytes_max = REQUEST_BYTES_MAX;
    config.engine.queue_bytes_max = VIEW_BYTES;
    config
}

/// Sends a text, and waits until it is written.
async fn send(outgoing: &mut Outgoing, text: Bytes) -> Result<(), Error> {
    let (part, mut text) = (Fragment::Whole(MessageKind::Text), text);
    while let Err(Unsent { error, payload, .. }) = outgoing.write_bytes(part, text) {
        outgoing.wait_for_room(error).await?;
        text = payload;
    }
    outgoing.flush().await
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use rustls::SupportedCipherSuite;
    use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;

    use super::*;

    /// The text of the only element with this name.
    fn content(name: &str) -> &'static str {
        let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
        assert_eq!((PAGE.matches(&begin).count(), PAGE.matches(&end).count()), (1, 1), "{name}");
        PAGE.split_once(&begin).unwrap().1.split_once(&end).unwrap().0
    }

    fn hash(text: &str) -> String {
        let SupportedCipherSuite::Tls13(suite) = TLS13_AES_128_GCM_SHA256 else { unreachable!() };
        let hash = suite.common.hash_provider.hash(text.as_bytes());
        format!("'sha256-{}'", STANDARD.encode(hash))
    }

    #[test]
    fn the_policy_allows_the_script_and_the_style_of_the_page() {
        for (directive, element) in [("script-src", "script"), ("style-src", "style")] {
            let expected = format!("{directive} {};", hash(content(element)));
            assert!(CONTENT_SECURITY_POLICY.contains(&expected), "it is to have: {expected}");
        }
        assert_eq!(CONTENT_SECURITY_POLICY.matches("sha256-").count(), 2);
    }

    /// The policy would refuse it, and the browser would complain.
    #[test]
    fn the_page_has_nothing_from_elsewhere() {
        for markup in [" style=", " onclick=", " onload=", "<img", "<iframe", "@import", "url("] {
            assert!(!PAGE.contains(markup), "{markup}");
        }
        let script = content("script");
        for name in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!script.contains(name), "{name}");
        }
        // The namespace of SVG is a name, which nobody asks for.
        let addresses = PAGE.matches("://").count();
        assert_eq!(addresses, PAGE.matches("http://www.w3.org/2000/svg").count());
    }

    #[test]
    fn views_are_limited() {
        let views = Views::default();
        let mut open: Vec<_> = (0..VIEWS_MAX).map(|_| views.begin().unwrap()).collect();
        assert!(views.begin().is_none());
        open.pop();
        assert!(views.begin().is_some());
    }
}
