//! The configuration: from flags, from a TOML file, or from both, where flags win.

mod choices;
mod file;
mod iggy;
mod limits;
mod listener;
mod objects;
mod options;
mod origins;

use std::num::NonZeroUsize;
use std::time::Duration;

#[cfg(feature = "kafka")]
pub use choices::Store;
pub use choices::{Balance, Deflate, Engine, Level, Log, Ring, Switch};
pub use iggy::{DataConfig, IggyConfig};
pub use limits::Limits;
pub use listener::{Listener, Service};
pub use options::{Flags, Options};
pub use origins::AllowedOrigins;
pub use owned_io_log::SyncPolicy;

use crate::memory::Memory;
use crate::metrics::Exporter;
use crate::object::ObjectsConfig;
use crate::service::application::Placement;
use crate::stalls::Stalls;
use crate::ticker::Ticker;
use crate::tls::Tls;

/// The configuration of a server: [`Options`], checked, with every default filled in.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The name of the runtime, if one was chosen.
    pub runtime: Option<String>,
    /// The number of workers.
    pub workers: NonZeroUsize,
    /// The CPUs that workers are pinned to, in turn. Empty: they are not.
    pub cpus: Vec<usize>,
    /// Which worker serves a connection.
    pub balance: Balance,
    /// The memory of each worker that clients can make it hold.
    pub memory: Memory,
    /// The settings of io_uring.
    pub ring: Ring,
    /// What is served where. At least one listener.
    pub listeners: Vec<Listener>,
    /// The certificates, if a listener is over TLS.
    pub tls: Option<Tls>,
    /// The options of WebSockets.
    pub websockets: WebSockets,
    /// The streams of Iggy's clients, if there are any.
    pub iggy: Option<IggyConfig>,
    /// The options of objects, if there is an origin.
    pub objects: Option<ObjectsConfig>,
    /// What a connection may use.
    pub limits: Limits,
    /// Wakes the workers' [`watch`](crate::watch::watch).
    pub ticker: Ticker,
    /// Whether workers are watched for stalls, once the program has started it.
    pub stalls: Stalls,
    /// Makes the text of `/metrics`.
    pub exporter: Exporter,
    /// Where the application of [echo with hops](crate::service::application) runs. The program sets it to a thread.
    pub application: Placement,
    /// Whether Iggy's clients are told what this process and its machine use. The program sets it: a simulation repeats
    /// without it.
    pub measures_usage: bool,
    /// How many connections an address may have. None: any number.
    pub connections_per_address_max: Option<NonZeroUsize>,
    /// How long the server goes on after it was asked to end, with `/health` answering 503.
    pub drain_notice: Duration,
    /// How long connections may take to end after that.
    pub drain: Duration,
    /// The format of logs.
    pub log: Log,
    /// The least severe level that is logged.
    pub log_level: Level,
}

impl Config {
    /// How many connections all workers together serve at once.
    pub const fn connections_max(&self) -> usize {
        self.workers.get().saturating_mul(self.limits.connections_max)
    }
}

/// The options of WebSockets.
#[derive(Clone, Debug, Default)]
pub struct WebSockets {
    /// Which implementation of the protocol.
    pub engine: Engine,
    /// How messages are compressed. Only the native engine can.
    pub deflate: Deflate,
    /// Which pages may open a WebSocket, and send events.
    pub origins: AllowedOrigins,
}
