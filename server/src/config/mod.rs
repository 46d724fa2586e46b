//! What the server is told: by flags, by a TOML file, or by both, flags first.

mod choices;
mod limits;
mod listener;
mod options;

use std::num::NonZeroUsize;
use std::time::Duration;

pub use choices::{Deflate, Engine, Level, Log, Ring};
pub use limits::Limits;
pub use listener::{Listener, Service};
pub use options::{Flags, Options};

use crate::memory::Memory;
use crate::origins::AllowedOrigins;
use crate::tls::Tls;

/// What the server does: [`Options`] with nothing left open.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Name of the runtime, if one was chosen.
    pub runtime: Option<String>,
    /// How many workers.
    pub workers: NonZeroUsize,
    /// What clients can make each of them hold.
    pub memory: Memory,
    /// Which ring settings.
    pub ring: Ring,
    /// Where to serve what; at least one.
    pub listeners: Vec<Listener>,
    /// Who the server is, where a service is over TLS.
    pub tls: Option<Tls>,
    /// What WebSockets are like.
    pub sockets: WebSockets,
    /// What connections may use.
    pub limits: Limits,
    /// How many connections an address may have; none: any number.
    pub connections_per_address_max: Option<NonZeroUsize>,
    /// How long the server goes on as ever, but for `/health`, once it was asked to end.
    pub drain_notice: Duration,
    /// How long connections have to finish after that.
    pub drain: Duration,
    /// How to write logs.
    pub log: Log,
    /// What to log.
    pub log_level: Level,
}

impl Config {
    /// The connections that are served at once, by all workers.
    pub const fn connections_max(&self) -> usize {
        self.workers.get().saturating_mul(self.limits.connections_max)
    }
}

/// What WebSockets are like.
#[derive(Clone, Debug, Default)]
pub struct WebSockets {
    /// What speaks their protocol.
    pub engine: Engine,
    /// How it compresses their messages: not at all, unless it is the native one.
    pub deflate: Deflate,
    /// Whose pages may open one.
    pub origins: AllowedOrigins,
}
