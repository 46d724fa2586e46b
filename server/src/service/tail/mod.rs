//! Tail: pushes what is appended to a partition of Iggy's streams, over WebSocket.
//!
//! ```text
//! GET /tail/STREAM/TOPIC/PARTITION?from=first|next|OFFSET
//! Authorization: Basic …        Iggy's user and password (RFC 7617)
//! ```
//!
//! STREAM and TOPIC are names, or numbers as Iggy's clients use them: what is a number is never a name. Names are
//! percent-encoded where a path needs it. PARTITION is a number, from 0 on. `from` says where the messages begin: with
//! the first that is there, with the next that is appended (the default), or at an offset.
//!
//! | request | answer |
//! |---|---|
//! | another path below `/tail` | 404 |
//! | no such stream, topic or partition; a server without Iggy | 404 |
//! | no user and password, or wrong ones | 401 |
//! | a bad `from`, another parameter, an offset beyond the next one | 400 |
//!
//! The body of the answer names the culprit.
//!
//! # Messages
//!
//! Each message of the partition is one message of the WebSocket, in order, and none is sent twice. It is text, JSON:
//!
//! ```text
//! {"offset":7,"timestamp":1764000000000000,"payload":"hello"}
//! {"offset":8,"timestamp":1764000000000001,"payload_base64":"/wA="}      the payload is not UTF-8
//! ```
//!
//! With the subprotocol [`owned-io.tail.binary.v1`](BINARY_PROTOCOL) it is binary: offset and timestamp, `u64` each,
//! little-endian, and the payload. Timestamps are µs since 1970. User headers are not sent. `--deflate` applies as to
//! all WebSockets.
//!
//! A client only listens. [`IGNORED_MESSAGES_MAX`] messages or [`IGNORED_BYTES_MAX`] bytes of its messages are ignored;
//! with more it is closed as 1008.
//!
//! | what happens | the client is told |
//! |---|---|
//! | messages that it is to get were removed by the retention of their topic | `{"lost":{"from":7,"to":9}}`: the next message has offset 9. With the binary subprotocol, a close as 4000 |
//! | all messages are purged | a close as 4001: offsets begin at 0 again |
//! | the partition, its topic or its stream is deleted; the server ends | a close as 1001 |
//! | a message is longer than `--message-bytes-max` in JSON | a close as 1009. The binary subprotocol has room for it |
//! | messages cannot be read | a close as 1011 |
//! | there is no memory for a batch | a close as 1013 |
//!
//! The reason of such a close names the offset, so that a client can go on from there or behind it.
//!
//! In Kafka, offsets have gaps where there never was a message. Such a gap is passed over.
//!
//! # Slow clients
//!
//! A client that falls behind reads on from the log, at its own pace, and delays no other. It misses nothing that the log
//! keeps. If it takes nothing for `--message-seconds-max`, its connection is reset.
//!
//! # How it works
//!
//! Each worker has one feed for each partition and format that is listened to. It encodes a message once, and a
//! [`Topic`](owned_io_websocket::Topic) sends it to all who are at the end. Everybody else reads for itself until
//! its next message is the next of the feed. Then it subscribes, in the same poll, so that nothing is published
//! meanwhile. Engines of tungstenite have no topics: there, each connection always reads for itself.
//!
//! `preview` is not part of this: it reads for the [page](super::page) of operators.

mod feed;
mod format;
mod log;
mod preview;
mod request;

use std::ops::ControlFlow;
use std::pin::pin;
use std::rc::Rc;

use owned_io::Runtime;
use owned_io_websocket::stream::{Error, Outgoing};
use owned_io_websocket::{
    AnyIncoming, AnyOutgoing, CloseCode, CloseFrame, PieceInfo, ProtocolError, Subscriber,
};

pub use feed::Feeds;
use feed::{Feed, FeedKey};
pub use format::BINARY_PROTOCOL;
use format::Format;
pub(super) use preview::{PUSH_BYTES_MAX, Preview};
pub(super) use request::{TailRequest, place_of};

use super::websocket::{close_if_refused, while_receiving};
use crate::context::{Context, Resources};
use crate::iggy::broker::Epoch;
use crate::iggy::broker::tail::TailError;
use crate::iggy::workers::Iggy;

/// How many messages a client may send: a client that only listens sends none, and one that talks costs no more than these.
pub const IGNORED_MESSAGES_MAX: u64 = 64;

/// How many bytes they may have, all together.
pub const IGNORED_BYTES_MAX: u64 = 64 * 1024;

/// What a connection has still to get.
#[derive(Debug)]
pub(super) struct Tail {
    iggy: Rc<Iggy>,
    epoch: Epoch,
    format: Format,
    /// The offset of the next message.
    next: u64,
    /// Whether there was no such message yet a moment ago.
    is_at_end: bool,
}

/// The half of a connection that sends.
pub(super) trait TailOutgoing: AnyOutgoing {
    /// The half itself, if it is one of the native engine: topics know no other.
    fn as_native(&self) -> Option<&Outgoing>;
}

impl TailOutgoing for Outgoing {
    fn as_native(&self) -> Option<&Outgoing> {
        Some(self)
    }
}

#[cfg(feature = "tungstenite")]
impl TailOutgoing for owned_io_tungstenite::Outgoing {
    fn as_native(&self) -> Option<&Outgoing> {
        None
    }
}

/// Serves one WebSocket until either side closes it. `close` begins to close it.
///
/// # Errors
/// Errors of the connection. [`Timeout::Write`](owned_io_websocket::Timeout::Write) if the peer does not read what is
/// pushed.
pub(super) async fn serve<R: Runtime>(
    incoming: &mut impl AnyIncoming,
    outgoing: &mut impl TailOutgoing,
    close: impl Fn(CloseFrame<'_>),
    tail: &mut Tail,
    ctx: &Context,
) -> Result<(), Error> {
    let receiving = pin!(ignore_messages(incoming, close, "a tail only listens"));
    let pushing = pin!(async {
        let pushed = push::<R>(tail, outgoing, ctx).await;
        // Boxed, as is each part that comes only at an end or behind: most subscribers wait.
        Box::pin(close_as(pushed, outgoing)).await
    });
    while_receiving(receiving, pushing).await
}

/// Closes the connection for the reason for which nothing more is pushed.
async fn close_as(
    pushed: Result<End, Error>,
    outgoing: &mut impl TailOutgoing,
) -> Result<(), Error> {
    let end = close_if_refused(outgoing, pushed).await?;
    let reason = end.to_string();
    outgoing.close(CloseFrame { code: end.code(), reason: &reason }).await
}

/// Receives until the connection is closed. Closes it for this reason if the client talks too much.
#[expect(clippy::manual_async_fn, reason = "an async function keeps its arguments twice")]
pub(super) fn ignore_messages(
    incoming: &mut impl AnyIncoming,
    close: impl Fn(CloseFrame<'_>),
    reason: &str,
) -> impl Future<Output = Result<(), Error>> {
    async move {
        let (mut messages, mut bytes) = (0_u64, 0_u64);
        loop {
            let received: Option<PieceInfo> = incoming.receive_piece().await?.map(Into::into);
            let Some(piece) = received else { return Ok(()) };
            messages += u64::from(piece.last);
            bytes += piece.bytes as u64;
            if messages > IGNORED_MESSAGES_MAX || bytes > IGNORED_BYTES_MAX {
                close(CloseFrame { code: Some(CloseCode::POLICY), reason });
            }
        }
    }
}

/// Pushes messages until there is a reason to close.
async fn push<R: Runtime>(
    tail: &mut Tail,
    outgoing: &mut impl TailOutgoing,
    ctx: &Context,
) -> Result<End, Error> {
    loop {
        // Between what `log::read_on` has seen last and the subscription there is no await.
        let joined = tail.join::<R>(&*outgoing, &ctx.worker);
        let (feed, subscriber) = match joined? {
            Joined::Subscribed(feed, subscriber) => (feed, Some(subscriber)),
            Joined::Ahead(feed) => (feed, None),
            Joined::Behind => {
                // Boxed, so that a connection that has nothing to read is smaller.
                let read = Box::pin(log::read_on::<R>(tail, outgoing, ctx)).await?;
                if let ControlFlow::Break(end) = read {
                    return Ok(end);
                }
                continue;
            }
        };
        outgoing.flush().await?; // what was read from the log leaves before what is published
        match subscriber {
            Some(mut subscriber) => {
                subscriber.lagged().await;
                // It has lagged, the feed has ended, or the connection closes.
                tail.next = feed.offset_of(&subscriber);
            }
            None => Box::pin(feed.wait_for(tail.next)).await,
        }
        tail.is_at_end = false; // if the feed has ended, nobody knows
    }
}

/// Where a connection is, compared with the feed of its partition.
enum Joined {
    /// Its next message is the next of the feed, and it is subscribed.
    Subscribed(Rc<Feed>, Subscriber),
    /// The feed has still to publish what the connection has read already.
    Ahead(Rc<Feed>),
    /// It has to read on.
    Behind,
}

impl Tail {
    /// Subscribes to the feed, if that is where the connection is. If it is at the end of the log, and there is no
    /// feed, one begins here.
    fn join<R: Runtime>(
        &self,
        outgoing: &impl TailOutgoing,
        worker: &Resources,
    ) -> Result<Joined, ProtocolError> {
        let Some(outgoing) = outgoing.as_native() else { return Ok(Joined::Behind) };
        let feed = match worker.feeds.get(self.key()) {
            Some(feed) if feed.next() < Some(self.next) => return Ok(Joined::Ahead(feed)),
            Some(feed) if feed.next() > Some(self.next) => return Ok(Joined::Behind),
            Some(feed) => feed,
            None if self.is_at_end => {
                worker.feeds.start::<R>(self.key(), self.next, &self.iggy, worker)
            }
            None => return Ok(Joined::Behind),
        };
        match feed.subscribe(outgoing) {
            Some(subscriber) => Ok(Joined::Subscribed(feed, subscriber?)),
            None => Ok(Joined::Behind),
        }
    }

    /// Whether [`join`](Self::join) has something better to do than to read on.
    fn can_join(&self, outgoing: &impl TailOutgoing, worker: &Resources) -> bool {
        let feed = outgoing.as_native().and_then(|_| worker.feeds.get(self.key()));
        feed.and_then(|feed| feed.next()).is_some_and(|next| next <= self.next)
    }

    const fn key(&self) -> FeedKey {
        FeedKey { epoch: self.epoch, format: self.format }
    }
}

/// Why a tail ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Messages were removed, and the format cannot say so.
    Lost { from: u64, to: u64 },
    /// A message is longer than the limit.
    TooLarge { offset: u64, bytes: usize },
    /// Messages from `offset` on cannot be read.
    Unread { offset: u64, error: TailError },
    /// There is no memory for a message.
    NoMemory { offset: u64 },
}

impl End {
    pub(super) const fn code(self) -> Option<CloseCode> {
        match self {
            Self::Lost { .. } => CloseCode::new(4000),
            Self::TooLarge { .. } => Some(CloseCode::TOO_LARGE),
            Self::Unread { error, .. } => match error {
                TailError::Deleted | TailError::Ended => Some(CloseCode::GOING_AWAY),
                TailError::Purged => CloseCode::new(4001),
                TailError::TooLong(_) => Some(CloseCode::TRY_AGAIN),
                TailError::Unreadable => Some(CloseCode::INTERNAL_ERROR),
            },
            Self::NoMemory { .. } => Some(CloseCode::TRY_AGAIN),
        }
    }
}

/// The reason of the close: at most [`CloseFrame::REASON_BYTES_MAX`] bytes.
impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Lost { from, to } => write!(f, "messages {from} to {} were removed", to - 1),
            Self::TooLarge { offset, bytes } => {
                write!(f, "message {offset} has {bytes} bytes in this format")
            }
            Self::Unread { offset, error } => match error {
                TailError::Deleted => {
                    write!(f, "the partition was deleted before message {offset}")
                }
                TailError::Purged => write!(f, "all messages were purged before message {offset}"),
                TailError::TooLong(bytes) => {
                    write!(f, "no memory for a batch of {bytes} bytes with message {offset}")
                }
                TailError::Unreadable => write!(f, "message {offset} cannot be read"),
                TailError::Ended => write!(f, "the server ends before message {offset}"),
            },
            Self::NoMemory { offset } => write!(f, "no memory for message {offset}"),
        }
    }
}
