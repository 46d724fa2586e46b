//! [`Preview`]: the newest messages of a partition for people, a part of each.
//!
//! Each push is JSON. `text` is the beginning of the payload, or `hex` if that is not UTF-8, and `bytes` the length of the
//! payload:
//!
//! ```text
//! {"messages":[{"offset":7,"timestamp":1764000000000000,"bytes":5,"is_cut":false,"text":"hello"}]}
//! ```
//!
//! A push has the newest [`MESSAGES_MAX`] messages at most. A viewer that has not seen the ones before never gets them, so that
//! it is never behind, however many are appended. It sees that by the offsets.

use std::collections::VecDeque;
use std::rc::Rc;

use iggy_binary_protocol::{WireMessageIterator, WireMessageView};
use owned_io::{Clock, Runtime, coop};
use serde::Serialize;

use super::End;
use super::log::{MESSAGE_NANOS, READ_BYTES_MAX, Reader};
use super::request::not_found;
use crate::context::Resources;
use crate::iggy::broker::tail::{TailError, TailPlace, TailStart, Tailed};
use crate::iggy::workers::Iggy;
use crate::service::streams::Refusal;

/// The most messages of a push.
const MESSAGES_MAX: usize = 20;

/// The most bytes of a payload that are shown as text.
const TEXT_BYTES_MAX: usize = 512;

/// The most bytes of a payload that are shown in hexadecimal.
const HEX_BYTES_MAX: usize = 64;

/// The longest push, in bytes. A message has at most six times the bytes of its text in JSON, and 150 more.
pub(in crate::service) const PUSH_BYTES_MAX: usize = 24 * 1024;

/// The JSON around the messages.
const JSON_BEGIN: &str = r#"{"messages":["#;
const JSON_END: &str = "]}";

/// What a viewer has still to see.
pub(in crate::service) struct Preview {
    reader: Reader,
    /// The offset of the next message.
    next: u64,
}

/// A message, as it is shown.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    offset: u64,
    timestamp: u64,
    bytes: usize,
    is_cut: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

impl Preview {
    /// Begins with the newest messages that are there.
    ///
    /// What is read counts in the common part of the worker's budget, not in the account of the viewer, which is small.
    ///
    /// # Errors
    /// The answer: 404, 500 or 503.
    pub(in crate::service) async fn open<C: Clock>(
        iggy: &Rc<Iggy>,
        place: TailPlace,
        worker: &Resources,
    ) -> Result<Self, Refusal> {
        let found = iggy.find_tail::<C>(place.clone()).await;
        let TailStart { epoch, offsets } = found.map_err(|status| not_found(&place, status))?;
        let next = offsets.first.max(offsets.next.saturating_sub(MESSAGES_MAX as u64));
        let room = worker.budget.common_account().reservation();
        let time_max = worker.limits.message_time_max;
        Ok(Self { reader: Reader::new(Rc::clone(iggy), epoch, room, time_max), next })
    }

    /// Waits for messages. Returns the newest ones, as JSON.
    ///
    /// # Errors
    /// They cannot be read.
    ///
    /// # Cancellation
    /// Safe.
    pub(in crate::service) async fn next<R: Runtime>(&mut self) -> Result<String, End> {
        let mut tailed = self.read::<R>().await?;
        if tailed.end.saturating_sub(self.next) > MESSAGES_MAX as u64 {
            self.next = tailed.end - MESSAGES_MAX as u64;
            drop(tailed);
            tailed = self.read::<R>().await?;
        }
        let json = self.show::<R>(&tailed).await;
        drop(tailed);
        self.reader.release();
        json
    }

    async fn read<R: Runtime>(&mut self) -> Result<Tailed, End> {
        let read = self.reader.read::<R>(self.next, READ_BYTES_MAX).await;
        read.map_err(|error| End::Unread { offset: self.next, error })
    }

    async fn show<R: Clock>(&mut self, tailed: &Tailed) -> Result<String, End> {
        let mut newest = VecDeque::with_capacity(MESSAGES_MAX);
        for batch in &tailed.batches {
            for message in WireMessageIterator::new(&batch.bytes, batch.count) {
                coop::yield_if_exhausted::<R>().await;
                coop::consume(MESSAGE_NANOS);
                let Ok(message) = message else {
                    let (offset, error) = (self.next, TailError::Unreadable);
                    return Err(End::Unread { offset, error });
                };
                if message.offset() < self.next {
                    continue; // the batch began before what was asked for
                }
                self.next = message.offset() + 1;
                if newest.len() == MESSAGES_MAX {
                    newest.pop_front();
                }
                newest.push_back(message);
            }
        }
        Ok(json(newest))
    }
}

/// As many of the messages as fit, the last ones.
fn json(mut messages: VecDeque<WireMessageView<'_>>) -> String {
    let mut shown = Vec::new();
    let mut bytes = JSON_BEGIN.len() + JSON_END.len();
    // Each message fits by itself.
    while let Some(message) = messages.pop_back() {
        let message = serde_json::to_string(&Shown::of(&message)).unwrap_or_default();
        bytes += message.len() + 1;
        if bytes > PUSH_BYTES_MAX {
            break;
        }
        coop::consume(message.len() as u64); // a nanosecond each. Not measured
        shown.push(message);
    }
    shown.reverse();
    format!("{JSON_BEGIN}{}{JSON_END}", shown.join(","))
}

impl<'a> Shown<'a> {
    fn of(message: &WireMessageView<'a>) -> Self {
        let payload = message.payload();
        let begin = &payload[..payload.len().min(TEXT_BYTES_MAX)];
        let is_cut = begin.len() < payload.len();
        let text = match std::str::from_utf8(begin) {
            Ok(text) => Some(text),
            // It was cut within a character.
            Err(error) if is_cut && error.error_len().is_none() => {
                std::str::from_utf8(&begin[..error.valid_up_to()]).ok()
            }
            Err(_) => None,
        };
        let hex = &payload[..payload.len().min(HEX_BYTES_MAX)];
        Self {
            offset: message.offset(),
            timestamp: message.timestamp(),
            bytes: payload.len(),
            is_cut: if text.is_some() { is_cut } else { hex.len() < payload.len() },
            text,
            hex: text.is_none().then(|| hex.iter().map(|byte| format!("{byte:02x} ")).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::format::tests::stored;
    use super::*;

    fn shown(payloads: &[&[u8]]) -> Vec<Value> {
        let stored: Vec<_> =
            (0..).zip(payloads).map(|(offset, payload)| stored(offset, 7, payload)).collect();
        let views = stored.iter().map(|message| WireMessageView::new(message).unwrap());
        let json = json(views.collect());
        assert!(json.len() <= PUSH_BYTES_MAX, "{}", json.len());
        let mut json: Value = serde_json::from_str(&json).unwrap();
        let Value::Array(messages) = json["messages"].take() else { panic!("{json}") };
        messages
    }

    #[test]
    fn a_payload_is_text_or_hexadecimal_and_a_long_one_is_cut() {
        let long = "é".repeat(400);
        let odd = format!("x{long}");
        for (payload, text, is_cut) in [
            (&b"hello"[..], "hello", false),
            (b"", "", false),
            (b"\0\"</script>", "\0\"</script>", false),
            (long.as_bytes(), &long[..512], true),
            (odd.as_bytes(), &odd[..511], true),
        ] {
            let message = &shown(&[payload])[0];
            assert_eq!(message["text"], text);
            assert_eq!(
                (&message["bytes"], &message["is_cut"]),
                (&payload.len().into(), &is_cut.into())
            );
            assert_eq!((&message["timestamp"], &message["hex"]), (&7.into(), &Value::Null));
        }
        for (payload, hex, is_cut) in [
            (&b"\xff\x00a"[..], "ff 00 61 ".to_owned(), false),
            (b"a\xc3", "61 c3 ".to_owned(), false),
            (&[0x80; 600], "80 ".repeat(64), true),
        ] {
            let message = &shown(&[payload])[0];
            assert_eq!((&message["hex"], &message["is_cut"]), (&hex.into(), &is_cut.into()));
            assert_eq!(message["text"], Value::Null);
        }
    }

    #[test]
    fn the_last_messages_are_shown_if_not_all_fit() {
        let escaped = [1; TEXT_BYTES_MAX];
        let messages = shown(&[&escaped[..]; MESSAGES_MAX]);
        assert!((2..MESSAGES_MAX).contains(&messages.len()), "{}", messages.len());
        let last = messages.last().unwrap();
        assert_eq!(last["offset"], MESSAGES_MAX - 1);
        assert_eq!(shown(&[]), [] as [Value; 0]);
    }
}
