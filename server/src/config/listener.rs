//! [`Listener`]: what is served where.

use std::fmt;
use std::net::SocketAddr;

/// A listener: a service, an address, and TLS or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// What connections are served.
    pub service: Service,
    /// Where to listen. Port 0 lets the system choose one.
    pub addr: SocketAddr,
    /// Whether connections begin with a TLS handshake.
    pub is_over_tls: bool,
}

impl Listener {
    /// The name of its option, without dashes in front.
    pub const fn name(&self) -> &'static str {
        match (self.service, self.is_over_tls) {
            (Service::Echo, false) => "echo",
            (Service::Echo, true) => "echo-tls",
            (Service::Sink, false) => "sink",
            (Service::Sink, true) => "sink-tls",
            (Service::Source, false) => "source",
            (Service::Source, true) => "source-tls",
            (Service::Http, false) => "http",
            (Service::Http, true) => "https",
            (Service::Iggy, false) => "tcp",
            (Service::Iggy, true) => "tcp-tls",
            (Service::Admin, _) => "admin",
        }
    }
}

/// Its name and its address: `echo 127.0.0.1:7007`.
impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.addr)
    }
}

/// What a connection is served.
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
    /// See [`iggy`](crate::service::iggy).
    Iggy,
    /// See [`admin`](crate::service::admin). Never over TLS.
    Admin,
}

impl Service {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Echo, Self::Sink, Self::Source, Self::Http, Self::Iggy, Self::Admin];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Sink => "sink",
            Self::Source => "source",
            Self::Http => "http",
            Self::Iggy => "iggy",
            Self::Admin => "admin",
        }
    }
}

/// Refuses two listeners on one address: the error of the second would blame another socket. The kernel
/// refuses an address next to all addresses of the machine too, at the same port.
pub(super) fn refuse_shared_addresses(listeners: &[Listener]) -> Result<(), String> {
    for (index, second) in listeners.iter().enumerate() {
        let is_taken_by = |first: &&Listener| {
            let [ip, other] = [first, second].map(|listener| listener.addr.ip().to_canonical());
            let is_any = ip.is_unspecified() || other.is_unspecified();
            let are_alike = ip.is_ipv4() == other.is_ipv4();
            let are_same = ip == other && scope(first.addr) == scope(second.addr);
            let port = second.addr.port();
            port != 0 && first.addr.port() == port && (are_same || is_any && are_alike)
        };
        if let Some(first) = listeners[..index].iter().find(is_taken_by) {
            let ([first, second], addr) = ([first, second].map(Listener::name), second.addr);
            return Err(format!(
                "--{first} and --{second} are both to listen on {addr}: give each its own"
            ));
        }
    }
    Ok(())
}

/// The interface that a link-local address belongs to: each may have the same ones.
const fn scope(addr: SocketAddr) -> u32 {
    match addr {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(addr) => addr.scope_id(),
    }
}
