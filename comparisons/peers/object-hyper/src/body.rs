//! The body of an answer.

use std::convert::Infallible;
use std::num::NonZero;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};

/// An object, whole with its length, or in chunks.
pub(crate) struct ObjectBody {
    left: Bytes,
    chunk_bytes: Option<NonZero<usize>>,
}

impl ObjectBody {
    pub(crate) fn new(object: Bytes, chunk_bytes: Option<NonZero<usize>>) -> Self {
        Self { left: object, chunk_bytes }
    }
}

impl Body for ObjectBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _ctx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left.is_empty() {
            return Poll::Ready(None);
        }
        let len = self.chunk_bytes.map_or(usize::MAX, NonZero::get).min(self.left.len());
        let chunk = self.left.split_to(len);
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    /// Without an exact length the body is chunked.
    fn size_hint(&self) -> SizeHint {
        match self.chunk_bytes {
            None => SizeHint::with_exact(self.left.len() as u64),
            Some(_) => SizeHint::default(),
        }
    }
}
