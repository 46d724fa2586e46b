//! Echo, sink and source over WebSocket, on either engine. Source has two forms: one request in the URL ([`source`]),
//! or one request in each message ([`fetch`]).

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Poll, ready};

use owned_io::{Clock, coop};
use owned_io_websocket::stream::{COPIED_BYTES_MAX, Error, Message, Received, Unsent};
use owned_io_websocket::{
    AnyIncoming, AnyOutgoing, CloseCode, CloseFrame, Config, Fragment, MessageKind, Misuse,
    PieceInfo, ProtocolError, compressed_bytes_max, deflate,
};

use super::http::quoted;
use super::source::{Pattern, Request, WRITE_BYTES_MAX, pattern_offset};
use crate::config::{Deflate, Limits};
use crate::metrics::Flow;

/// Sends each message back with the same kind and the same bytes. The messages of one read are answered by one write.
///
/// # Errors
/// Errors of the connection. [`Timeout::Write`](owned_io_websocket::Timeout::Write) if the peer does not read the
/// answers.
pub async fn echo(
    incoming: &mut impl AnyIncoming,
    outgoing: &mut impl AnyOutgoing,
    flow: &Flow,
) -> Result<(), Error> {
    // `let … else` and not `while let`, which would keep space for each message that is matched, in an idle connection.
    let echoing = async {
        loop {
            let Some(message) = incoming.receive_owned().await? else { return Ok(()) };
            if let Err(unsent) = queue(outgoing, message, flow) {
                Box::pin(queue_waiting(outgoing, unsent, flow)).await?;
            }
            loop {
                let Some(message) = incoming.try_receive_owned() else { break };
                if let Err(unsent) = queue(outgoing, message, flow) {
                    Box::pin(queue_waiting(outgoing, unsent, flow)).await?;
                }
            }
            outgoing.flush().await?;
        }
    };
    let echoed = echoing.await;
    Box::pin(complete_close(incoming, outgoing, echoed)).await
}

/// Queues the echo of a message. A long message is not copied. Without room it comes back, with the error.
#[inline(always)] // or each message would pass through memory once more
fn queue<'m>(
    outgoing: &mut impl AnyOutgoing,
    message: Received<'m>,
    flow: &Flow,
) -> Result<(), (ProtocolError, Received<'m>)> {
    let bytes = message.as_bytes().len();
    flow.receive(1, bytes);
    try_queue(outgoing, message)?;
    flow.send(1, bytes);
    Ok(())
}

#[inline(always)]
fn try_queue<'m>(
    outgoing: &mut impl AnyOutgoing,
    message: Received<'m>,
) -> Result<(), (ProtocolError, Received<'m>)> {
    match message {
        Received::Borrowed(borrowed) => outgoing.write(borrowed).map_err(|error| (error, message)),
        Received::Owned(kind, payload) => {
            let written = outgoing.write_bytes(Fragment::Whole(kind), payload);
            written.map_err(|Unsent { error, payload, .. }| (error, Received::Owned(kind, payload)))
        }
    }
}

/// Waits for room, and queues the echo. The future is boxed where it is awaited: most connections never have one.
async fn queue_waiting(
    outgoing: &mut impl AnyOutgoing,
    unsent: (ProtocolError, Received<'_>),
    flow: &Flow,
) -> Result<(), Error> {
    let (mut error, mut message) = unsent;
    let bytes = message.as_bytes().len();
    loop {
        outgoing.wait_for_room(error).await?;
        match try_queue(outgoing, message) {
            Ok(()) => break,
            Err(unsent) => (error, message) = unsent,
        }
    }
    flow.send(1, bytes);
    Ok(())
}

/// Answers each message with its length: a message of eight bytes, little-endian. The messages of one read are answered
/// by one write. No message is kept.
///
/// # Errors
/// Errors of the connection. [`Timeout::Write`](owned_io_websocket::Timeout::Write) if the peer does not read the
/// answers.
pub async fn sink(
    incoming: &mut impl AnyIncoming,
    outgoing: &mut impl AnyOutgoing,
    flow: &Flow,
) -> Result<(), Error> {
    let mut len = 0_u64;
    let answering = async {
        loop {
            let mut next: Option<PieceInfo> = incoming.receive_piece().await?.map(Into::into);
            if next.is_none() {
                return Ok(());
            }
            while let Some(PieceInfo { bytes, last }) = next {
                len += bytes as u64;
                flow.receive(u64::from(last), bytes);
                if last {
                    let answer = len.to_le_bytes();
                    while let Err(error) = outgoing.write(Message::Binary(&answer)) {
                        Box::pin(outgoing.wait_for_room(error)).await?;
                    }
                    flow.send(1, answer.len());
                    len = 0;
                }
                next = incoming.try_receive_piece().map(Into::into);
            }
            if outgoing.queued_bytes() > 0 {
                outgoing.flush().await?;
            }
        }
    };
    let answered = answering.await;
    Box::pin(complete_close(incoming, outgoing, answered)).await
}

/// Sends messages, then closes the connection. Byte `i` of message `n` is `n + i`, modulo 256.
///
/// # Errors
/// Errors of the connection. [`Timeout::Write`](owned_io_websocket::Timeout::Write) if the peer does not read the
/// messages.
pub async fn source<R: Clock>(
    incoming: &mut impl AnyIncoming,
    outgoing: &mut impl AnyOutgoing,
    messages: Messages,
    pattern: &Pattern,
    flow: &Flow,
) -> Result<(), Error> {
    let receiving = pin!(receive_until_close(incoming));
    let sending = pin!(async {
        let sent = send::<R>(outgoing, messages, pattern, flow).await;
        close_if_refused(outgoing, sent).await?;
        outgoing.close(CloseFrame { code: Some(CloseCode::NORMAL), reason: "" }).await
    });
    while_receiving(receiving, sending).await
}

/// Answers each request for messages. A request is one message with the same content as
/// [over TCP](super::source): three `u32`, little-endian. A message that is not a request closes the connection. Nothing
/// is received while messages are sent, so pings and a close wait.
///
/// # Errors
/// Errors of the connection. [`Timeout::Write`](owned_io_websocket::Timeout::Write) if the peer does not read the
/// messages.
pub async fn fetch<R: Clock>(
    incoming: &mut impl AnyIncoming,
    outgoing: &mut impl AnyOutgoing,
    bytes_max: usize,
    pattern: &Pattern,
    flow: &Flow,
) -> Result<(), Error> {
    let answering = async {
        while let Some(message) = incoming.receive().await? {
            let message = message.as_bytes();
            flow.receive(1, message.len());
            match Request::parse(message, bytes_max) {
                Ok(request) => send::<R>(outgoing, request.into(), pattern, flow).await?,
                Err(error) => {
                    let (code, reason) = (Some(CloseCode::INVALID_DATA), &*error.to_string());
                    outgoing.close(CloseFrame { code, reason }).await?;
                    return receive_until_close(incoming).await;
                }
            }
        }
        Ok(())
    };
    let answered = answering.await;
    Box::pin(complete_close(incoming, outgoing, answered)).await
}

/// The messages that a request for [`source`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Messages {
    /// The number of messages. None: messages without end, until the peer closes.
    pub count: Option<u64>,
    /// The length of each, in bytes.
    pub bytes: usize,
    /// How many are queued before they are flushed.
    pub batch: u64,
}

impl Messages {
    /// Parses the query of a request: `messages=N&bytes=S&batch=B`. Without `messages`, messages are sent without end.
    /// Without `batch`, a batch is one message.
    ///
    /// # Errors
    /// A sentence for the peer that names the bad parameter.
    pub fn parse(query: &str, bytes_max: usize) -> Result<Self, String> {
        let (mut messages, mut bytes, mut batch) = (None, None, None);
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let slot = match name {
                "messages" => &mut messages,
                "bytes" => &mut bytes,
                "batch" => &mut batch,
                _ => {
                    let name = quoted(name);
                    return Err(format!("{name} is not one of messages, bytes and batch\n"));
                }
            };
            let number = value
                .parse()
                .map_err(|_| format!("{name}: {} is not a number\n", quoted(value)))?;
            if slot.replace(number).is_some() {
                return Err(format!("{name} is given twice\n"));
            }
        }
        let bytes: u64 = bytes.ok_or("bytes is missing: the length of each message\n")?;
        if bytes > bytes_max as u64 {
            return Err(format!("bytes: {bytes} is more than message-bytes-max, {bytes_max}\n"));
        }
        let batch = batch.unwrap_or(1);
        if batch == 0 {
            return Err("batch: 0 would send nothing\n".to_owned());
        }
        Ok(Self { count: messages, bytes: bytes as usize, batch })
    }
}

impl From<Request> for Messages {
    fn from(Request { messages, bytes, batch }: Request) -> Self {
        Self { count: Some(messages.into()), bytes: bytes as usize, batch: batch.into() }
    }
}

async fn send<R: Clock>(
    outgoing: &mut impl AnyOutgoing,
    messages: Messages,
    pattern: &Pattern,
    flow: &Flow,
) -> Result<(), Error> {
    let pattern = pattern.bytes_for::<R>(messages.bytes).await?;
    for n in 0..messages.count.unwrap_or(u64::MAX) {
        let start = pattern_offset(n);
        let payload = start..start + messages.bytes;
        if messages.bytes <= COPIED_BYTES_MAX {
            while let Err(error) = outgoing.write(Message::Binary(&pattern[payload.clone()])) {
                outgoing.wait_for_room(error).await?;
            }
        } else {
            let mut payload = pattern.slice(payload);
            while let Err(Unsent { error, payload: refused, .. }) =
                outgoing.write_bytes(Fragment::Whole(MessageKind::Binary), payload)
            {
                outgoing.wait_for_room(error).await?;
                payload = refused;
            }
        }
        flow.send(1, messages.bytes);
        let is_batch_end = (n + 1) % messages.batch == 0;
        let is_full = outgoing.queued_bytes() >= WRITE_BYTES_MAX || !coop::has_budget();
        if is_batch_end || is_full {
            outgoing.flush().await?;
        }
    }
    outgoing.flush().await
}

/// Runs `sending`, which closes the connection at its end. Receives meanwhile, so that pings are answered and the peer
/// may close at any time. `receiving` ends once the connection is closed. Both are pinned already: a future that is passed
/// by value takes its space again in each function. For the same reason this is one future, without an await.
pub(super) fn while_receiving(
    mut receiving: Pin<&mut impl Future<Output = Result<(), Error>>>,
    mut sending: Pin<&mut impl Future<Output = Result<(), Error>>>,
) -> impl Future<Output = Result<(), Error>> {
    let (mut is_sending, mut refusal) = (true, None);
    poll_fn(move |cx| {
        // A second round if `sending` ends in the first: that may have closed the connection.
        loop {
            if let Poll::Ready(closed) = receiving.as_mut().poll(cx) {
                return Poll::Ready(closed.and_then(|()| refusal.take().map_or(Ok(()), Err)));
            }
            if !is_sending {
                return Poll::Pending;
            }
            let sent = ready!(sending.as_mut().poll(cx));
            is_sending = false;
            match sent {
                Err(error) if is_closing(&error) => {}
                Err(error) if is_refusal(&error) => refusal = Some(error),
                Err(error) => return Poll::Ready(Err(error)),
                Ok(()) => {}
            }
        }
    })
}

/// Returns the outcome of a service. If the service ended because either side closes the connection, or because there
/// is no room for an answer, this first receives until the close is complete, and drops messages that still arrive.
pub(super) async fn complete_close(
    incoming: &mut impl AnyIncoming,
    outgoing: &mut impl AnyOutgoing,
    outcome: Result<(), Error>,
) -> Result<(), Error> {
    match close_if_refused(outgoing, outcome).await {
        Err(error) if is_closing(&error) => receive_until_close(incoming).await,
        Err(error) if is_refusal(&error) => receive_until_close(incoming).await.and(Err(error)),
        outcome => outcome,
    }
}

/// Tells the peer if there is no room or no memory for an answer.
pub(super) async fn close_if_refused<T>(
    outgoing: &mut impl AnyOutgoing,
    outcome: Result<T, Error>,
) -> Result<T, Error> {
    if let Err(error) = &outcome
        && is_refusal(error)
    {
        let code = match error {
            Error::Protocol(refusal) => refusal.close_code(),
            _ => None,
        };
        let code = code.or(Some(CloseCode::TRY_AGAIN));
        // Nothing more can be done if this fails.
        let _ = outgoing.close(CloseFrame { code, reason: "" }).await;
    }
    outcome
}

/// Receives and drops messages until the connection is closed.
async fn receive_until_close(incoming: &mut impl AnyIncoming) -> Result<(), Error> {
    while incoming.receive_piece().await?.is_some() {}
    Ok(())
}

/// Whether a limit has refused what was received or is to be sent, or an allocation for it has failed.
fn is_refusal(error: &Error) -> bool {
    match error {
        Error::Protocol(error) => matches!(error, ProtocolError::Limit { .. }),
        Error::Io(error) => error.kind() == io::ErrorKind::OutOfMemory,
        _ => false,
    }
}

/// Whether nothing could be sent because either side closes the connection.
const fn is_closing(error: &Error) -> bool {
    matches!(error, Error::Protocol(ProtocolError::Misuse(Misuse::SentAfterClose)))
}

/// The configuration of a connection that speaks HTTP, and perhaps WebSocket. `queue_bytes_spare`: the bytes that its
/// queue may hold beyond a message.
///
/// `idle_timeout` stays off: WebSockets may wait for ever. Pings find out whether their peers are there.
pub(super) fn websocket_config(
    deflate: Deflate,
    limits: Limits,
    queue_bytes_spare: usize,
) -> Config {
    let mut config = Config::default();
    config.handshake.deflate = compression(deflate);
    config.engine.frame_bytes_max = match config.handshake.deflate {
        Some(_) => compressed_bytes_max(limits.message_bytes_max),
        None => limits.message_bytes_max,
    };
    config.engine.queue_bytes_max = config.engine.frame_bytes_max.saturating_add(queue_bytes_spare);
    config.engine.message_bytes_max = limits.message_bytes_max;
    config.stream.message_timeout = Some(limits.message_time_max);
    config.stream.write_timeout = Some(limits.message_time_max);
    config.stream.close_timeout = limits.linger_time;
    config.handshake.close_timeout = limits.linger_time;
    config
}

fn compression(mode: Deflate) -> Option<deflate::Deflate> {
    let mut deflate = deflate::Deflate::default();
    match mode {
        Deflate::Off => return None,
        Deflate::Shared => {}
        Deflate::Takeover => (deflate.send_takeover, deflate.receive_takeover) = (true, true),
    }
    Some(deflate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_parsed_or_its_bad_parameter_is_named() {
        let parse = |query| Messages::parse(query, 1_000);
        let all = Messages { count: Some(5), bytes: 10, batch: 3 };
        assert_eq!(parse("messages=5&bytes=10&batch=3"), Ok(all));
        assert_eq!(parse("bytes=0"), Ok(Messages { count: None, bytes: 0, batch: 1 }));
        for (query, named) in [
            ("", "bytes"),
            ("bytes=1001", "1001"),
            ("bytes=1&batch=0", "batch"),
            ("bytes=x", "\"x\""),
            ("bytes=1&bytes=2", "twice"),
            ("bytes=1&messages=-1", "messages"),
            ("bytes=1&size=2", "size"),
        ] {
            let why = parse(query).unwrap_err();
            assert!(why.contains(named), "{query}: {why}");
        }
        let long = "x".repeat(7_000);
        for query in [format!("bytes={long}"), format!("{long}=1")] {
            let why = Messages::parse(&query, 1_000).unwrap_err();
            assert!(why.len() < 128, "{why}");
        }
    }
}
