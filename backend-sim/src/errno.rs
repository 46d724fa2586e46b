//! The error numbers of Linux, so that errors look alike on every backend.

use std::io;

pub(crate) const ENOENT: i32 = 2;
pub(crate) const EIO: i32 = 5;
pub(crate) const EBADF: i32 = 9;
pub(crate) const EAGAIN: i32 = 11;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const ENOTDIR: i32 = 20;
pub(crate) const EISDIR: i32 = 21;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const EMFILE: i32 = 24;
pub(crate) const ENOSPC: i32 = 28;
pub(crate) const EPIPE: i32 = 32;
pub(crate) const ENOTEMPTY: i32 = 39;
pub(crate) const EADDRNOTAVAIL: i32 = 99;
pub(crate) const ECONNABORTED: i32 = 103;
pub(crate) const ECONNRESET: i32 = 104;
pub(crate) const ENOTCONN: i32 = 107;
pub(crate) const ETIMEDOUT: i32 = 110;
pub(crate) const ECONNREFUSED: i32 = 111;

pub(crate) fn error(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// The name of an error, for the trace.
pub(crate) const fn name(code: i32) -> &'static str {
    match code {
        ENOENT => "ENOENT",
        EIO => "EIO",
        EBADF => "EBADF",
        EAGAIN => "EAGAIN",
        EEXIST => "EEXIST",
        ENOTDIR => "ENOTDIR",
        EISDIR => "EISDIR",
        EINVAL => "EINVAL",
        EMFILE => "EMFILE",
        ENOSPC => "ENOSPC",
        EPIPE => "EPIPE",
        ENOTEMPTY => "ENOTEMPTY",
        EADDRNOTAVAIL => "EADDRNOTAVAIL",
        ECONNABORTED => "ECONNABORTED",
        ECONNRESET => "ECONNRESET",
        ENOTCONN => "ENOTCONN",
        ETIMEDOUT => "ETIMEDOUT",
        ECONNREFUSED => "ECONNREFUSED",
        _ => "an error",
    }
}
