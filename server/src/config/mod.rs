//! What the server is told: by flags, by a TOML file, or by both, flags first.

mod choices;
mod limits;
mod options;
mod service;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

pub use choices::{Deflate, Engine, Log, Ring};
pub use limits::Limits;
pub use options::{Flags, Options};
pub use service::Service;

use crate::tls::Tls;

/// What the server does: [`Options`] with nothing left open.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Name of the runtime, if one was chosen.
    pub runtime: Option<String>,
    /// How many workers.
    pub workers: NonZeroUsize,
    /// Which ring settings.
    pub ring: Ring,
    /// Where to serve what; at least one.
    pub listeners: Vec<(Service, SocketAddr)>,
    /// Who the server is, where a service is over TLS.
    pub tls: Option<Tls>,
    /// What speaks the protocol of WebSockets.
    pub engine: Engine,
    /// How it compresses their messages: not at all, unless it is the native one.
    pub deflate: Deflate,
    /// What connections may use.
    pub limits: Limits,
    /// How long connections have to finish.
    pub drain: Duration,
    /// How to write logs.
    pub log: Log,
}
