//! [`Service`]: what a listener serves.

use std::fmt;

/// What a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// See [`echo`](crate::service::echo).
    Echo,
    /// See [`sink`](crate::service::sink).
    Sink,
    /// See [`source`](crate::service::source).
    Source,
    /// See [`http`](crate::service::http).
    Http,
    /// As echo, over TLS.
    EchoTls,
    /// As sink, over TLS.
    SinkTls,
    /// As source, over TLS.
    SourceTls,
    /// As http, over TLS.
    Https,
    /// See [`admin`](crate::service::admin).
    Admin,
}

impl Service {
    /// Whether it is one of those over TLS.
    pub(crate) const fn is_over_tls(self) -> bool {
        matches!(self, Self::EchoTls | Self::SinkTls | Self::SourceTls | Self::Https)
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Echo => "echo",
            Self::Sink => "sink",
            Self::Source => "source",
            Self::Http => "http",
            Self::EchoTls => "echo-tls",
            Self::SinkTls => "sink-tls",
            Self::SourceTls => "source-tls",
            Self::Https => "https",
            Self::Admin => "admin",
        })
    }
}
