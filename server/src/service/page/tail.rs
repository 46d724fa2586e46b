//! `/tail` of the page: the newest messages of a partition.
//!
//! The viewer sends one message, JSON:
//!
//! ```text
//! {"user":"iggy","password":"…","stream":"orders","topic":"7","partition":0}
//! ```
//!
//! Streams and topics are named as in the path of [`/tail`](crate::service::tail) of `--http`, without its escapes. Then
//! the server sends a push without messages, the newest messages, and those that are appended: [`Preview`] says how. If
//! it cannot, it closes the WebSocket:
//!
//! | why | code |
//! |---|---|
//! | what was sent is not such a request | 4400 |
//! | a wrong user or password, after [`REFUSAL_DELAY`] | 4401 |
//! | no such stream, topic or partition; a server without streams | 4404 |
//! | nothing was sent for [`REQUEST_TIME_MAX`], or more than one message | 1008 |
//! | anything else | as a [tail](crate::service::tail#messages) of `--http` |

use std::future::pending;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use owned_io::{Clock, OwnedRead, Runtime, select};
use owned_io_websocket::stream::{CloseHandle, Error, Incoming, Message, Outgoing};
use owned_io_websocket::{CloseCode, CloseFrame};
use serde::Deserialize;

use super::send;
use crate::context::Context;
use crate::iggy::workers::Iggy;
use crate::service::streams::Refusal;
use crate::service::tail::{Preview, ignore_messages, place_of};
use crate::service::websocket::{close_if_refused, while_receiving};

/// How long a viewer may take to say what it wants to see. The page says it at once.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a wrong password waits for its answer. With the limit on viewers it bounds how many can be tried.
const REFUSAL_DELAY: Duration = Duration::from_secs(1);

/// From one push to the next. People do not read faster.
const PUSH_PERIOD: Duration = Duration::from_millis(250);

/// Tells the viewer that there is such a partition: it may be empty.
const EMPTY_PUSH: &[u8] = br#"{"messages":[]}"#;

/// What a viewer wants to see.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    user: String,
    password: String,
    stream: String,
    topic: String,
    partition: u32,
}

/// Why the server closes.
struct Closing {
    code: Option<CloseCode>,
    reason: String,
}

/// Serves one viewer until either side closes the WebSocket.
///
/// # Errors
/// Errors of the connection. [`Timeout::Write`](owned_io_websocket::Timeout::Write) if the viewer does not read.
pub(super) async fn serve<R: Runtime>(
    incoming: &mut Incoming<impl OwnedRead>,
    outgoing: &mut Outgoing,
    handle: &CloseHandle,
    ctx: &Context,
) -> Result<(), Error> {
    let Some(request) = receive_request::<R>(incoming, handle).await? else { return Ok(()) };
    let close = |frame: CloseFrame<'_>| {
        let _ = handle.close(frame); // an error: it is closing already
    };
    let receiving = pin!(ignore_messages(incoming, close, "a tail only listens"));
    let pushing = pin!(async {
        let pushed = match open::<R>(request, ctx).await {
            Ok(preview) => push::<R>(preview, outgoing).await,
            Err(closing) => Ok(closing),
        };
        let closing = close_if_refused(outgoing, pushed).await?;
        let reason = &*closing.reason;
        let reason = &reason[..reason.floor_char_boundary(CloseFrame::REASON_BYTES_MAX)];
        outgoing.close(CloseFrame { code: closing.code, reason }).await
    });
    while_receiving(receiving, pushing).await
}

/// Waits for the request. `None`: there was none, and the WebSocket is closed.
async fn receive_request<R: Clock>(
    incoming: &mut Incoming<impl OwnedRead>,
    handle: &CloseHandle,
) -> Result<Option<Result<Request, Closing>>, Error> {
    let late = async {
        R::sleep(REQUEST_TIME_MAX).await;
        let reason = "no request has come in time";
        let _ = handle.close(CloseFrame { code: Some(CloseCode::POLICY), reason });
        pending::<()>().await; // the receiver ends with the WebSocket
    };
    let received = select(pin!(incoming.receive()), late).await.first.transpose()?;
    Ok(received.flatten().map(|message| Request::parse(message)))
}

impl Request {
    fn parse(message: Message<'_>) -> Result<Self, Closing> {
        // The error of the parser may repeat the password.
        serde_json::from_slice(message.as_bytes())
            .map_err(|_| Closing::new(4400, "the request is not JSON of the fields it is to have"))
    }
}

/// Finds the partition, for who has the password.
async fn open<R: Runtime>(
    request: Result<Request, Closing>,
    ctx: &Context,
) -> Result<Preview, Closing> {
    let request = request?;
    let Some(iggy) = &ctx.worker.iggy else {
        return Err(Closing::new(4404, "there are no streams: --iggy-password-file is missing"));
    };
    if !iggy.credentials().admit(&request.user, &request.password) {
        R::sleep(REFUSAL_DELAY).await;
        return Err(Closing::new(4401, "the user or the password is wrong"));
    }
    find::<R>(&request, iggy, ctx).await.map_err(Closing::from)
}

async fn find<R: Runtime>(
    request: &Request,
    iggy: &Rc<Iggy>,
    ctx: &Context,
) -> Result<Preview, Refusal> {
    let place = place_of(&request.stream, &request.topic, request.partition)?;
    Preview::open::<R>(iggy, place, &ctx.worker).await
}

async fn push<R: Runtime>(mut preview: Preview, outgoing: &mut Outgoing) -> Result<Closing, Error> {
    send(outgoing, Bytes::from_static(EMPTY_PUSH)).await?;
    // Each round waits for messages, for the viewer, and for the time.
    loop {
        match preview.next::<R>().await {
            Ok(json) => send(outgoing, json.into()).await?,
            Err(end) => return Ok(Closing { code: end.code(), reason: end.to_string() }),
        }
        R::sleep(PUSH_PERIOD).await;
    }
}

impl Closing {
    fn new(code: u16, reason: &str) -> Self {
        Self { code: CloseCode::new(code), reason: reason.to_owned() }
    }
}

/// 404 becomes 4404. What may be otherwise later is to be tried again.
impl From<Refusal> for Closing {
    fn from((status, body): Refusal) -> Self {
        let code = match status {
            400..500 => 4000 + status,
            _ => CloseCode::TRY_AGAIN.get(),
        };
        Self::new(code, body.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_all_fields_and_no_others() {
        let right = r#"{"user":"u","password":"p","stream":"s","topic":"7","partition":3}"#;
        let request = Request::parse(Message::Text(right)).ok().unwrap();
        assert_eq!((&*request.stream, &*request.topic, request.partition), ("s", "7", 3));
        for wrong in [
            "",
            "{}",
            "[]",
            "null",
            &right.replace("3}", "-1}"),
            &right.replace("3}", "4294967296}"),
            &right.replace("3}", r#"3,"from":0}"#),
            &right.replace(r#""p""#, "7"),
            &right[..right.len() - 1],
        ] {
            let closing = Request::parse(Message::Text(wrong)).err().expect(wrong);
            assert_eq!(closing.code.unwrap().get(), 4400, "{wrong}");
        }
    }

    #[test]
    fn a_refusal_has_its_status_as_code_unless_it_may_pass() {
        for (status, code) in [(404, 4404), (400, 4400), (503, 1013), (500, 1013)] {
            let closing = Closing::from((status, "why\n".into()));
            assert_eq!((closing.code.unwrap().get(), &*closing.reason), (code, "why"));
        }
    }
}
