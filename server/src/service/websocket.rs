//! Echo, sink, and source in two ways, over WebSocket, on either engine.

use std::pin::pin;

use owned_io::{beside, coop};
use owned_io_websocket::stream::{COPIED_BYTES_MAX, Error, Message, Received, Unsent};
use owned_io_websocket::{
    AnyIncoming, AnyOutgoing, CloseCode, CloseFrame, Extent, Kind, Misuse, Part,
};

use super::source::{Pattern, Request, WRITE_BYTES_MAX, start};

/// Queues a message, after others have left if there is no room. No function: its future would be part of
/// every poll.
macro_rules! give_back {
    ($outgoing:ident, $message:ident) => {
        let mut refused = try_give_back($outgoing, $message);
        while let Err((error, message)) = refused {
            $outgoing.wait_for_room(error).await?;
            refused = try_give_back($outgoing, message);
        }
    };
}

/// Each message goes back, the same kind and the same bytes. What came in one read is answered by one
/// write.
///
/// # Errors
/// The connection's; [`Timeout::Write`](owned_io_websocket::Timeout::Write) when the peer takes no
/// answer.
pub async fn echo(
    incoming: &mut impl AnyIncoming,
    outgoing: &mut impl AnyOutgoing,
) -> Result<(), Error> {
    let echoing = async {
        while let Some(message) = incoming.receive_owned().await? {
            give_back!(outgoing, message);
            while let Some(message) = incoming.try_receive_owned() {
                give_back!(outgoing, message);
            }
            outgoing.flush().await?;
        }
        Ok(())
    };
    let echoed = echoing.await;
    until_closed(incoming, echoed).await
}

/// Each message is answered by its length: a message of eight bytes, little-endian. What came in one
/// read is answered by one write; no message is kept.
///
/// # Errors
/// The connection's; [`Timeout::Write`](owned_io_websocket::Timeout::Write) when the peer takes no
/// answer.
pub async fn sink(
    incoming: &mut impl AnyIncoming,
    outgoing: &mut impl AnyOutgoing,
) -> Result<(), Error> {
    let mut len = 0_u64;
    let answering = async {
        loop {
            let mut next: Option<Extent> = incoming.receive_piece().await?.map(Into::into);
            if next.is_none() {
                return Ok(());
            }
            while let Some(Extent { bytes, last }) = next {
                len += bytes as u64;
                if last {
                    let answer = len.to_le_bytes();
                    while let Err(error) = outgoing.write(Message::Binary(&answer)) {
                        outgoing.wait_for_room(error).await?;
                    }
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
    until_closed(incoming, answered).await
}

/// Sends messages, and closes the connection. Byte `i` of message `n` is `n + i`, modulo 256.
///
/// # Errors
/// The connection's; [`Timeout::Write`](owned_io_websocket::Timeout::Write) when the peer takes no
/// message.
pub async fn source(
    incoming: &mut impl AnyIncoming,
    outgoing: &mut impl AnyOutgoing,
    messages: Messages,
    pattern: &Pattern,
) -> Result<(), Error> {
    // Pings are answered meanwhile, and the peer may close whenever it likes.
    let mut closing = pin!(drain(incoming));
    let sending = async {
        send(outgoing, messages, pattern).await?;
        outgoing.close(CloseFrame { code: Some(CloseCode::NORMAL), reason: "" }).await
    };
    let ready = beside(closing.as_mut(), sending).await;
    match (ready.pinned, ready.other) {
        (Some(closed), _) => closed,
        (None, Some(Err(error))) if !is_closing(&error) => Err(error),
        _ => closing.await,
    }
}

/// Each message asks for messages, as [over TCP](super::source): three `u32`, little-endian, in a
/// message of their own. A message that is no such request is not answered: the connection is closed.
/// While messages are sent nothing is received: pings wait, and so does a close.
///
/// # Errors
/// The connection's; [`Timeout::Write`](owned_io_websocket::Timeout::Write) when the peer takes no
/// message.
pub async fn fetch(
    incoming: &mut impl AnyIncoming,
    outgoing: &mut impl AnyOutgoing,
    bytes_max: usize,
    pattern: &Pattern,
) -> Result<(), Error> {
    let answering = async {
        while let Some(message) = incoming.receive().await? {
            match Request::parse(message.as_bytes(), bytes_max) {
                Ok(request) => send(outgoing, request.into(), pattern).await?,
                Err(error) => {
                    let (code, reason) = (Some(CloseCode::INVALID_DATA), &*error.to_string());
                    outgoing.close(CloseFrame { code, reason }).await?;
                    return drain(incoming).await;
                }
            }
        }
        Ok(())
    };
    let answered = answering.await;
    until_closed(incoming, answered).await
}

/// What a request for [`source`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Messages {
    /// How many; none: until the peer closes.
    pub count: Option<u64>,
    /// How long each is.
    pub bytes: usize,
    /// How many are queued before they are flushed.
    pub batch: u64,
}

impl Messages {
    /// Reads the query of a request: `messages=N&bytes=S&batch=B`. Without `messages` there is no end
    /// to them, and a batch is one message where nothing else is said.
    ///
    /// # Errors
    /// A sentence that names the culprit, for the peer.
    pub fn parse(query: &str, bytes_max: usize) -> Result<Self, String> {
        let (mut messages, mut bytes, mut batch) = (None, None, None);
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let slot = match name {
                "messages" => &mut messages,
                "bytes" => &mut bytes,
                "batch" => &mut batch,
                _ => return Err(format!("{name} is none of messages, bytes and batch\n")),
            };
            let number = value.parse().map_err(|_| format!("{name}: {value:?} is no number\n"))?;
            if slot.replace(number).is_some() {
                return Err(format!("{name} is given twice\n"));
            }
        }
        let bytes: u64 = bytes.ok_or("bytes is missing: how long each message is\n")?;
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

async fn send(
    outgoing: &mut impl AnyOutgoing,
    messages: Messages,
    pattern: &Pattern,
) -> Result<(), Error> {
    let pattern = pattern.of(messages.bytes);
    for n in 0..messages.count.unwrap_or(u64::MAX) {
        let payload = start(n)..start(n) + messages.bytes;
        if messages.bytes <= COPIED_BYTES_MAX {
            while let Err(error) = outgoing.write(Message::Binary(&pattern[payload.clone()])) {
                outgoing.wait_for_room(error).await?;
            }
        } else {
            let mut payload = pattern.slice(payload);
            while let Err(Unsent { error, payload: refused, .. }) =
                outgoing.write_bytes(Part::Whole(Kind::Binary), payload)
            {
                outgoing.wait_for_room(error).await?;
                payload = refused;
            }
        }
        let is_batch_end = (n + 1) % messages.batch == 0;
        let is_full = outgoing.queued_bytes() >= WRITE_BYTES_MAX || !coop::has_budget();
        if is_batch_end || is_full {
            outgoing.flush().await?;
        }
    }
    outgoing.flush().await
}

/// Queues a message. A long one leaves from where it was put together; one that is refused comes back,
/// with the reason.
#[inline]
fn try_give_back<'m>(
    outgoing: &mut impl AnyOutgoing,
    message: Received<'m>,
) -> Result<(), (owned_io_websocket::ProtocolError, Received<'m>)> {
    match message {
        Received::Borrowed(message) => {
            outgoing.write(message).map_err(|error| (error, Received::Borrowed(message)))
        }
        Received::Owned(kind, payload) => {
            outgoing.write_bytes(Part::Whole(kind), payload).map_err(|unsent| {
                let Unsent { error, payload, .. } = unsent;
                (error, Received::Owned(kind, payload))
            })
        }
    }
}

/// What becomes of a connection that ends like this. One that is closed from our side while it has
/// something to send waits for its peer to agree; messages that still come are thrown away.
async fn until_closed(
    incoming: &mut impl AnyIncoming,
    ended: Result<(), Error>,
) -> Result<(), Error> {
    match ended {
        Err(error) if is_closing(&error) => drain(incoming).await,
        ended => ended,
    }
}

async fn drain(incoming: &mut impl AnyIncoming) -> Result<(), Error> {
    while incoming.receive_piece().await?.is_some() {}
    Ok(())
}

/// Whether it says that nothing can be sent because the connection is being closed, by either side.
const fn is_closing(error: &Error) -> bool {
    matches!(
        error,
        Error::Protocol(owned_io_websocket::ProtocolError::Misuse(Misuse::SentAfterClose))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_what_is_wanted_or_what_is_wrong_with_it() {
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
    }
}
