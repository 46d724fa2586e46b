use std::fmt;

use super::target;

/// The most headers that a head may have. More are answered 431.
pub const HEADERS_MAX: usize = 64;

/// How long a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// This many bytes, which may be none.
    Exact(u64),
    /// Unknown at its beginning: it comes in chunks.
    Chunked,
}

/// The head of a request, parsed and checked. It borrows the bytes of the head.
#[derive(Clone, Copy)]
pub struct Request<'b> {
    head: &'b [u8],
    index: &'b HeadIndex,
}

/// Where the parts of a head are, as offsets into it.
#[derive(Debug)]
pub(super) struct HeadIndex {
    pub(super) method: Part,
    pub(super) target: Part,
    pub(super) is_http_1_0: bool,
    /// The names and values, in order. At most [`HEADERS_MAX`].
    pub(super) headers: Vec<(Part, Part)>,
    pub(super) body: BodyLength,
    pub(super) is_close: bool,
    pub(super) expects_continue: bool,
}

/// A part of a head. A head is shorter than 64 KiB.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    at: u16,
    len: u16,
}

impl Part {
    /// The part of `head` from `at` on, of `len` bytes. Both are less than 64 Ki.
    pub(super) const fn new(at: usize, len: usize) -> Self {
        Self { at: at as u16, len: len as u16 }
    }

    pub(super) fn of(self, head: &[u8]) -> &[u8] {
        &head[usize::from(self.at)..][..usize::from(self.len)]
    }

    /// Its text, if it is UTF-8, which methods, targets and names are.
    pub(super) fn text(self, head: &[u8]) -> &str {
        std::str::from_utf8(self.of(head)).unwrap_or_default()
    }
}

impl Default for HeadIndex {
    fn default() -> Self {
        Self {
            method: Part::default(),
            target: Part::default(),
            is_http_1_0: false,
            headers: Vec::new(),
            body: BodyLength::Exact(0),
            is_close: false,
            expects_continue: false,
        }
    }
}

impl<'b> Request<'b> {
    pub(super) const fn new(head: &'b [u8], index: &'b HeadIndex) -> Self {
        Self { head, index }
    }

    /// The method, for example `GET`. Its case matters.
    pub fn method(&self) -> &'b str {
        self.index.method.text(self.head)
    }

    /// The target as it was sent: a path, and the query if there is one. It may also begin with `http://` and the
    /// value of `Host`.
    pub fn target(&self) -> &'b str {
        self.index.target.text(self.head)
    }

    /// The path of the target, without the query, as it was sent: nothing is decoded or normalised.
    pub fn path(&self) -> &'b str {
        let target = target::path_and_query(self.target());
        match target.split_once('?').map_or(target, |(path, _)| path) {
            "" => "/",
            path => path,
        }
    }

    /// The query of the target; empty if there is none.
    pub fn query(&self) -> &'b str {
        self.target().split_once('?').map_or("", |(_, query)| query)
    }

    /// The value of the first header with this name. Case does not matter.
    pub fn header(&self, name: &str) -> Option<&'b [u8]> {
        self.values(name).next()
    }

    /// The value of the header with this name, if there is exactly one.
    pub fn single(&self, name: &str) -> Option<&'b [u8]> {
        let mut values = self.values(name);
        values.next().filter(|_| values.next().is_none())
    }

    /// The values of all headers with this name, in order.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'b [u8]> {
        self.headers().filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Whether the list in the headers with this name contains `token`. Case does not matter.
    pub fn has_token(&self, name: &str, token: &str) -> bool {
        let mut tokens = self.values(name).flat_map(|value| value.split(|byte| *byte == b','));
        tokens.any(|found| found.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
    }

    /// All headers, in order.
    pub fn headers(&self) -> impl Iterator<Item = (&'b str, &'b [u8])> {
        let Self { head, index } = *self;
        index.headers.iter().map(move |(name, value)| (name.text(head), value.of(head)))
    }

    /// How long the body is.
    pub const fn body(&self) -> BodyLength {
        self.index.body
    }

    /// Whether the client waits for `100 Continue` before it sends the body. A
    /// [`Connection`](crate::Connection) sends it when the body is read.
    pub const fn expects_continue(&self) -> bool {
        self.index.expects_continue
    }

    /// Whether it is HTTP/1.0, not 1.1. Such a request may have no `Host`, has no chunks and expects nothing.
    pub const fn is_http_1_0(&self) -> bool {
        self.index.is_http_1_0
    }

    /// Whether this is the client's last request on the connection. Each request of HTTP/1.0 is.
    pub const fn is_last(&self) -> bool {
        self.index.is_close
    }
}

impl fmt::Debug for Request<'_> {
    /// Prints the names of the headers only: values may be secret, and so may a query.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.headers().map(|(name, _)| name).collect();
        let mut request = f.debug_struct("Request");
        request.field("method", &self.method()).field("path", &self.path());
        request.field("headers", &names).field("body", &self.body()).finish()
    }
}
