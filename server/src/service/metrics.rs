//! `/metrics`: what the server counts, in Prometheus' text format 0.0.4. See [`crate::metrics`].

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use bytes::Bytes;
use owned_io::Clock;

use super::stalls::{LastBody, Sending};
use crate::metrics::Metrics;

/// What the workers share of the answers to `GET /metrics`.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    text: LastBody,
    /// How many are being sent.
    sent: Arc<AtomicUsize>,
}

/// An answer to `GET /metrics`. It counts as being sent until its body is dropped.
pub(super) struct Answer {
    pub(super) status: u16,
    content_type: &'static str,
    pub(super) body: Bytes,
}

impl Answer {
    /// Gathers the metrics, unless somebody has just done so.
    pub(super) async fn new<R: Clock>(metrics: &Metrics) -> Self {
        let refusal = |why: &'static str| Self {
            status: 503,
            content_type: "text/plain",
            body: Bytes::from_static(why.as_bytes()),
        };
        let answers = metrics.answers();
        let Some(sending) = Sending::begin(&answers.sent) else {
            return refusal("too many others are being answered: ask again\n");
        };
        let body = match answers.text.recent() {
            Some(body) => body,
            None => {
                metrics.gather::<R>().await;
                let Some(text) = metrics.text() else {
                    return refusal("the metrics are being set up: ask again\n");
                };
                answers.text.put(text.into_bytes())
            }
        };
        let content_type = "text/plain; version=0.0.4; charset=utf-8";
        Self { status: 200, content_type, body: sending.count(body) }
    }

    pub(super) fn headers(&self) -> [(&'static str, &'static str); 3] {
        [
            ("Content-Type", self.content_type),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
    }
}
