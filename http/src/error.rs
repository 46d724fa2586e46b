use std::{error, fmt, io};

use owned_io::MemoryExhausted;

use crate::{InvalidHeader, Refusal};

/// Why a connection failed. It serves no further request.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The client's request is refused, and the client was told so, unless its answer had already begun.
    Refused(Refusal),
    /// The underlying connection failed. [`TimedOut`](io::ErrorKind::TimedOut) if the client accepted nothing
    /// for [`write`](crate::Timeouts::write), [`OutOfMemory`](io::ErrorKind::OutOfMemory) if it accepted or sent nothing
    /// and others needed the memory that the connection holds, [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if it
    /// ended its side within a request.
    Io(io::Error),
    /// The worker's memory budget has no room for the queue, after a wait.
    Memory(MemoryExhausted),
    /// The program used the connection wrongly.
    Misuse(Misuse),
    /// A future of the connection was dropped while it waited. Bytes may be lost.
    Interrupted,
}

/// How a program used a connection wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misuse {
    /// There is no request to answer, or its answer has begun.
    NoRequest,
    /// The request was not answered, or its answer was not finished.
    NotAnswered,
    /// No answer has begun.
    NotBegun,
    /// The body of an answer is longer than announced.
    BodyTooLong,
    /// The body of an answer is shorter than announced.
    BodyTooShort,
    /// The body of a request was not read, so the bytes behind it belong to no other protocol.
    BodyNotRead,
    /// A header cannot be sent. See [`InvalidHeader`].
    Header,
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Misuse> for Error {
    fn from(misuse: Misuse) -> Self {
        Self::Misuse(misuse)
    }
}

impl From<InvalidHeader> for Error {
    fn from(InvalidHeader: InvalidHeader) -> Self {
        Self::Misuse(Misuse::Header)
    }
}

impl From<Error> for io::Error {
    /// Returns an I/O error unchanged. Any other error is wrapped, and gets a matching kind.
    fn from(error: Error) -> Self {
        let kind = match error {
            Error::Io(error) => return error,
            Error::Refused(_) => io::ErrorKind::InvalidData,
            Error::Memory(_) => io::ErrorKind::QuotaExceeded,
            Error::Misuse(_) => io::ErrorKind::InvalidInput,
            // Not `Interrupted`: callers would retry.
            Error::Interrupted => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "request refused: {refusal}"),
            Self::Io(error) => error.fmt(f),
            Self::Memory(exhausted) => exhausted.fmt(f),
            Self::Misuse(misuse) => misuse.fmt(f),
            Self::Interrupted => {
                f.write_str("a future of the connection was dropped while it waited")
            }
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Io(error) => error.source(),
            _ => None,
        }
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoRequest => "there is no request to answer",
            Self::NotAnswered => "the request was not answered",
            Self::NotBegun => "no answer has begun",
            Self::BodyTooLong => "the body of the answer is longer than announced",
            Self::BodyTooShort => "the body of the answer is shorter than announced",
            Self::BodyNotRead => "the body of the request was not read",
            Self::Header => "a header of the answer must not be sent",
        })
    }
}

impl error::Error for Misuse {}
