//! [`Flags`] and [`Options`]: how the configuration is written, read and checked.

mod sizes;

use std::fmt;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
pub(super) use sizes::SECONDS_MAX;

#[cfg(feature = "kafka")]
use super::Store;
use super::iggy::IggyOptions;
use super::limits::connections_and_memory;
use super::listener::refuse_shared_addresses;
use super::objects::ObjectOptions;
use super::{
    AllowedOrigins, Balance, Config, Deflate, Engine, Level, Limits, Listener, Log, Ring, Service,
    Switch, SyncPolicy, WebSockets, file,
};
use crate::metrics::Exporter;
use crate::service::application::Placement;
use crate::stalls::Stalls;
use crate::ticker::Ticker;
use crate::tls::Tls;

const AFTER_HELP: &str = "\
Signals: SIGTERM and SIGINT drain, a second one ends at once; SIGHUP reads the certificates again.
Exit codes: 0: ended as asked; 1: an error, which stderr explains; 3: ended as asked, but connections
that had not ended in time were reset; 128 plus its number: a second signal.";

/// A streaming server that runs on any of several async runtimes.
#[derive(Debug, Parser)]
#[command(name = "owned-io-server", version, after_help = AFTER_HELP)]
pub struct Flags {
    /// TOML file with the same options, each named like its flag without the leading dashes; flags override. A regular
    /// file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// The options that the file may have too.
    #[command(flatten)]
    pub options: Options,
}

// A new option needs a field here, whose help ends with `[default: …]`, a line in `over`, and its
// value in `into_config`. A number that can be absurd needs a line in `check_sizes` too. The tests compare each default
// of the help with the one that applies, and try an absurd number on each option in `SECONDS`.
/// All options, each of which may be left out.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// Runtime to run on, of those compiled in; needed when there are several
    #[arg(long, value_name = "NAME")]
    pub runtime: Option<String>,

    /// Worker threads, each with its own runtime; at most 1024. The last one counts [default: the cores this process may
    /// use]
    #[arg(long, value_name = "N", overrides_with = "workers")]
    pub workers: Option<NonZeroUsize>,

    /// Pin the thread of each worker to one of the CPUs that this process may use: worker N to the N-th, and again from the
    /// first if there are more workers. Threads that a worker starts later use its CPU too [default: off]
    #[arg(long, value_name = "SWITCH", num_args = 0..=1, default_missing_value = "on")]
    pub pin: Option<Switch>,

    /// Which worker serves a connection: the one that the kernel sends it to, by a hash of its addresses, or the one that
    /// has the fewest connections, to which the other hands it over. With 1,000 connections, the fullest of 16 workers
    /// has 23 % more than the mean by a hash. The connections of --admin are never handed over [default: hash]
    #[arg(long, value_name = "HOW")]
    pub balance: Option<Balance>,

    /// Ring settings of the io_uring runtimes: the best for a server, which need Linux 6.1, or the runtime's own.
    /// The last one counts, so that a script can have a default of its own [default: tuned]
    #[arg(long, value_name = "SET", overrides_with = "ring")]
    pub ring: Option<Ring>,

    /// Serve echo over TCP
    #[arg(long, value_name = "ADDR")]
    pub echo: Option<SocketAddr>,

    /// Serve sink over TCP
    #[arg(long, value_name = "ADDR")]
    pub sink: Option<SocketAddr>,

    /// Serve source over TCP
    #[arg(long, value_name = "ADDR")]
    pub source: Option<SocketAddr>,

    /// Serve Iggy's clients over TCP; needs --iggy-password-file
    #[arg(long, value_name = "ADDR")]
    pub tcp: Option<SocketAddr>,

    /// Serve HTTP: /health, and the WebSockets /echo, /sink and /source; with --iggy-password-file also /, for Iggy's
    /// clients, /tail/STREAM/TOPIC/PARTITION, which pushes messages to browsers, and /events/STREAM/TOPIC, which appends
    /// what is posted; with --origin also /object/NAME
    #[arg(long, value_name = "ADDR")]
    pub http: Option<SocketAddr>,

    /// Serve a page at /, /health, /stalls and /metrics to operators, with a connection limit of its own: it answers even
    /// if all other connections are taken. For an address that clients cannot reach
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<SocketAddr>,

    /// Serve echo over TLS
    #[arg(long, value_name = "ADDR")]
    pub echo_tls: Option<SocketAddr>,

    /// Serve sink over TLS
    #[arg(long, value_name = "ADDR")]
    pub sink_tls: Option<SocketAddr>,

    /// Serve source over TLS
    #[arg(long, value_name = "ADDR")]
    pub source_tls: Option<SocketAddr>,

    /// Serve Iggy's clients over TLS; needs --iggy-password-file
    #[arg(long, value_name = "ADDR")]
    pub tcp_tls: Option<SocketAddr>,

    /// Serve HTTP over TLS
    #[arg(long, value_name = "ADDR")]
    pub https: Option<SocketAddr>,

    /// PEM file with the certificates for TLS, the server's own first; read again on SIGHUP. A regular file
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,

    /// PEM file with the key of the server's certificate; read again on SIGHUP. A regular file
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,

    /// User of Iggy's clients [default: iggy]
    #[arg(long, value_name = "NAME")]
    pub iggy_user: Option<String>,

    /// File with the password of Iggy's clients, in its first line. A regular file
    #[arg(long, value_name = "FILE")]
    pub iggy_password_file: Option<PathBuf>,

    /// Directory for the messages and streams of Iggy's clients. It is created if it is not there. One server at a time
    /// may use it. Without it, messages and streams are kept in memory, and lost when the server ends
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,

    /// When messages in --data are acknowledged: batch: when they are on the disk; never: when the system has them, so
    /// that a loss of power loses the last ones; interval:MS: the same, but they are on the disk within so many
    /// milliseconds [default: batch]
    #[arg(long, value_name = "POLICY")]
    #[serde(deserialize_with = "policy")]
    pub fsync: Option<SyncPolicy>,

    /// Bytes of messages that are kept for Iggy's clients in memory, over all streams. Without --data, messages that do
    /// not fit are refused; delete or purge topics to make room. With it, these are the recent ones, which are read
    /// without the disk. In a server with Kafka as its store, these are the ones that wait for Kafka's acknowledgement
    /// [default: 268435456]
    #[arg(long, value_name = "BYTES")]
    pub iggy_memory_max: Option<NonZeroUsize>,

    /// Where messages of Iggy's clients and events are kept: local: in --data, or in memory; kafka: in Kafka, which other
    /// servers may share [default: local]
    #[cfg(feature = "kafka")]
    #[arg(long, value_name = "NAME")]
    pub store: Option<Store>,

    /// Some of Kafka's brokers, like HOST:PORT,HOST:PORT. They name the others
    #[cfg(feature = "kafka")]
    #[arg(long, value_name = "LIST")]
    pub kafka_brokers: Option<String>,

    /// Seconds that messages may wait for Kafka's acknowledgement. Their client is told then that they may be stored or
    /// not [default: 30]
    #[cfg(feature = "kafka")]
    #[arg(long, value_name = "SECONDS")]
    pub kafka_seconds: Option<NonZeroU32>,

    /// Where the objects of /object/NAME come from: a server like http://host:80/path, whose name is resolved once, at
    /// the start, or a directory, whose regular files are the objects. They are cached in memory
    #[arg(long, value_name = "URL|DIR")]
    pub origin: Option<String>,

    /// Bytes of each chunk that objects are sent in, with Transfer-Encoding: chunked. 0: objects are sent with their
    /// length [default: 0]
    #[arg(long, value_name = "BYTES")]
    pub chunk: Option<u32>,

    /// Seconds that an object is fresh if its origin does not say [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub object_seconds: Option<u32>,

    /// Seconds that an object is used after that while a new one is fetched, or the origin fails, if its origin does
    /// not say [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub object_stale_seconds: Option<u32>,

    /// Bytes that objects take in memory, over all workers, those included that clients still receive
    /// [default: 268435456]
    #[arg(long, value_name = "BYTES")]
    pub object_memory_max: Option<NonZeroUsize>,

    /// Bytes of the longest object. A longer one is answered 502 [default: 16777216]
    #[arg(long, value_name = "BYTES")]
    pub object_bytes_max: Option<NonZeroU32>,

    /// Implementation of the WebSocket protocol [default: native]
    #[cfg(feature = "tungstenite")]
    #[arg(long, value_name = "NAME")]
    pub engine: Option<Engine>,

    /// How to compress WebSocket messages, for clients that can: not at all, each message by itself, or with
    /// what the connection has sent before, which takes 0.4 MB for each connection. Only the native engine
    /// compresses [default: off]
    #[arg(long, value_name = "HOW")]
    pub deflate: Option<Deflate>,

    /// Origins whose pages may open WebSockets and send events, separated by commas: a scheme, a host, and a port if it
    /// is not the scheme's default. Others are refused with 403. A browser lets any page connect anywhere, with its
    /// user's cookies, so without this a foreign page can act in the user's name. Clients that are not
    /// browsers send no origin, and are admitted [default: any]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub origins: Option<Vec<String>>,

    /// Connections that are served at once, for each worker; the workers share the sum. Further connections
    /// wait to be accepted [default: 16000, or as many as --memory-max has room for]
    #[arg(long, value_name = "N")]
    pub connections_max: Option<NonZeroUsize>,

    /// Connections that one address may have, over all workers; with IPv6, one network of 64 bits. Further
    /// connections are reset. 0: any number, as is right behind a proxy, whose address all clients have
    /// [default: 0]
    #[arg(long, value_name = "N")]
    pub connections_per_address_max: Option<usize>,

    /// Bytes of the largest message that is received or sent [default: 16777216]
    #[arg(long, value_name = "BYTES")]
    pub message_bytes_max: Option<NonZeroU32>,

    /// Bytes that clients can make a worker hold: messages received in part, answers that clients do not read.
    /// What the worker itself needs is extra [default: half of the memory of this machine, or of its cgroup,
    /// divided by the workers]
    #[arg(long, value_name = "BYTES")]
    pub memory_max: Option<NonZeroUsize>,

    /// Seconds that a message may take to arrive once it has begun, that a client may take nothing of what is sent to
    /// it, and that a message may wait for memory [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub message_seconds_max: Option<NonZeroU32>,

    /// Seconds that a connection of echo, sink, source or Iggy over TCP or TLS may be without a byte from its
    /// client; it is closed up to a third later. WebSockets are never closed for idleness. 0: for ever [default: 300]
    #[arg(long, value_name = "SECONDS")]
    pub idle_seconds_max: Option<u32>,

    /// Seconds that the server waits for a client to end the connection after the server's last byte, over HTTP,
    /// WebSocket and TLS, before it shuts the connection down [default: 5]
    #[arg(long, value_name = "SECONDS")]
    pub linger_seconds: Option<NonZeroU32>,

    /// Seconds that the server goes on after SIGTERM or SIGINT, with /health answering 503, so that load
    /// balancers send new clients elsewhere [default: 0]
    #[arg(long, value_name = "SECONDS")]
    pub drain_notice_seconds: Option<u32>,

    /// Seconds that connections may take to end after that, before they are reset; a second signal ends the
    /// server at once [default: 10]
    #[arg(long, value_name = "SECONDS")]
    pub drain_seconds: Option<u32>,

    /// Watch for workers that stall: log each stall with its cause, and show the last ones, with their stacks, at
    /// /stalls of --admin [default: on]
    #[arg(long, value_name = "SWITCH")]
    pub stalls: Option<Switch>,

    /// Milliseconds that a worker must be late for a stall; one that lasts 50 ms longer is found in any case
    /// [default: 100]
    #[arg(long, value_name = "MILLISECONDS")]
    pub stall_milliseconds_min: Option<NonZeroU32>,

    /// Seconds between two probes: the server connects to its own --admin, and asks for /health, to find out whether new
    /// clients are served. Without --admin it connects to --http, unless --connections-per-address-max is given. At most
    /// 3600. 0: none [default: 10]
    #[arg(long, value_name = "SECONDS")]
    pub stall_probe_seconds: Option<u32>,

    /// Format of logs [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log: Option<Log>,

    /// Least severe level that is logged [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<Level>,
}

impl Flags {
    /// Reads the file, if one is named. Flags override its options.
    ///
    /// # Errors
    /// A sentence that names the file, or the option, and the cause.
    pub fn into_config(self) -> Result<Config, String> {
        let file = self.config.as_deref().map_or_else(|| Ok(Options::default()), read)?;
        self.options.over(file).into_config()
    }
}

fn read(path: &Path) -> Result<Options, String> {
    let named =
        |error: &dyn fmt::Display| format!("--config: cannot read {}: {error}", path.display());
    let text = file::read(path).map_err(|error| named(&error))?;
    toml::from_str(&text).map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        named(&format_args!("line {line}: {}", error.message()))
    })
}

impl Options {
    fn over(self, file: Self) -> Self {
        Self {
            runtime: self.runtime.or(file.runtime),
            workers: self.workers.or(file.workers),
            pin: self.pin.or(file.pin),
            balance: self.balance.or(file.balance),
            ring: self.ring.or(file.ring),
            echo: self.echo.or(file.echo),
            sink: self.sink.or(file.sink),
            source: self.source.or(file.source),
            tcp: self.tcp.or(file.tcp),
            http: self.http.or(file.http),
            admin: self.admin.or(file.admin),
            echo_tls: self.echo_tls.or(file.echo_tls),
            sink_tls: self.sink_tls.or(file.sink_tls),
            source_tls: self.source_tls.or(file.source_tls),
            tcp_tls: self.tcp_tls.or(file.tcp_tls),
            https: self.https.or(file.https),
            tls_cert: self.tls_cert.or(file.tls_cert),
            tls_key: self.tls_key.or(file.tls_key),
            iggy_user: self.iggy_user.or(file.iggy_user),
            iggy_password_file: self.iggy_password_file.or(file.iggy_password_file),
            data: self.data.or(file.data),
            fsync: self.fsync.or(file.fsync),
            iggy_memory_max: self.iggy_memory_max.or(file.iggy_memory_max),
            #[cfg(feature = "kafka")]
            store: self.store.or(file.store),
            #[cfg(feature = "kafka")]
            kafka_brokers: self.kafka_brokers.or(file.kafka_brokers),
            #[cfg(feature = "kafka")]
            kafka_seconds: self.kafka_seconds.or(file.kafka_seconds),
            origin: self.origin.or(file.origin),
            chunk: self.chunk.or(file.chunk),
            object_seconds: self.object_seconds.or(file.object_seconds),
            object_stale_seconds: self.object_stale_seconds.or(file.object_stale_seconds),
            object_memory_max: self.object_memory_max.or(file.object_memory_max),
            object_bytes_max: self.object_bytes_max.or(file.object_bytes_max),
            #[cfg(feature = "tungstenite")]
            engine: self.engine.or(file.engine),
            deflate: self.deflate.or(file.deflate),
            origins: self.origins.or(file.origins),
            connections_max: self.connections_max.or(file.connections_max),
            connections_per_address_max: self
                .connections_per_address_max
                .or(file.connections_per_address_max),
            message_bytes_max: self.message_bytes_max.or(file.message_bytes_max),
            memory_max: self.memory_max.or(file.memory_max),
            message_seconds_max: self.message_seconds_max.or(file.message_seconds_max),
            idle_seconds_max: self.idle_seconds_max.or(file.idle_seconds_max),
            linger_seconds: self.linger_seconds.or(file.linger_seconds),
            drain_notice_seconds: self.drain_notice_seconds.or(file.drain_notice_seconds),
            drain_seconds: self.drain_seconds.or(file.drain_seconds),
            stalls: self.stalls.or(file.stalls),
            stall_milliseconds_min: self.stall_milliseconds_min.or(file.stall_milliseconds_min),
            stall_probe_seconds: self.stall_probe_seconds.or(file.stall_probe_seconds),
            log: self.log.or(file.log),
            log_level: self.log_level.or(file.log_level),
        }
    }

    fn into_config(self) -> Result<Config, String> {
        let mut listeners = self.listeners();
        if listeners.is_empty() {
            let services = "--echo, --sink, --source, --tcp or --http";
            return Err(format!("nothing to serve: give {services} an address"));
        }
        self.check_sizes()?;
        let admin = |addr| Listener { service: Service::Admin, addr, is_over_tls: false };
        listeners.extend(self.admin.map(admin));
        refuse_shared_addresses(&listeners)?;
        let stalls = self.stalls();
        let iggy = IggyOptions {
            user: self.iggy_user,
            password_file: self.iggy_password_file,
            memory_max: self.iggy_memory_max,
            data: self.data,
            fsync: self.fsync,
            #[cfg(feature = "kafka")]
            store: self.store,
            #[cfg(feature = "kafka")]
            kafka_brokers: self.kafka_brokers,
            #[cfg(feature = "kafka")]
            kafka_seconds: self.kafka_seconds,
        };
        let iggy = iggy.into_config(&listeners)?;
        let objects = ObjectOptions {
            origin: self.origin,
            chunk: self.chunk,
            fresh_seconds: self.object_seconds,
            stale_seconds: self.object_stale_seconds,
            memory_max: self.object_memory_max,
            object_bytes_max: self.object_bytes_max,
        };
        let objects = objects.into_config(&listeners)?;
        let defaults = Limits::default();
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let linger_time =
            self.linger_seconds.map_or(defaults.linger_time, |time| seconds(time.get()));
        let tls = tls(&listeners, self.tls_cert, self.tls_key, linger_time)?;
        #[cfg(feature = "tungstenite")]
        let engine = self.engine.unwrap_or_default();
        #[cfg(not(feature = "tungstenite"))]
        let engine = Engine::Native;
        let deflate = self.deflate.unwrap_or_default();
        if engine != Engine::Native && deflate != Deflate::Off {
            return Err("--deflate needs --engine native: tungstenite compresses nothing".into());
        }
        let origins =
            self.origins.map_or_else(|| Ok(AllowedOrigins::default()), AllowedOrigins::only)?;
        let workers = self.workers.unwrap_or_else(cores);
        let (connections_max, memory) =
            connections_and_memory(self.memory_max, workers, self.connections_max)?;
        let cpus = match self.pin.unwrap_or(Switch::Off) {
            Switch::On => owned_io_os::allowed_cpus().map_err(|error| format!("--pin: {error}"))?,
            Switch::Off => Vec::new(),
        };
        Ok(Config {
            runtime: self.runtime,
            workers,
            cpus,
            balance: self.balance.unwrap_or_default(),
            memory,
            ring: self.ring.unwrap_or_default(),
            listeners,
            tls,
            websockets: WebSockets { engine, deflate, origins },
            iggy,
            objects,
            limits: Limits {
                connections_max,
                message_bytes_max: self
                    .message_bytes_max
                    .map_or(defaults.message_bytes_max, |bytes| bytes.get() as usize),
                message_time_max: self
                    .message_seconds_max
                    .map_or(defaults.message_time_max, |limit| seconds(limit.get())),
                tcp_idle_time_max: match self.idle_seconds_max {
                    None => defaults.tcp_idle_time_max,
                    Some(0) => None,
                    Some(limit) => Some(seconds(limit)),
                },
                linger_time,
            },
            ticker: Ticker::default(),
            stalls,
            exporter: Exporter::default(),
            application: Placement::default(),
            measures_usage: false,
            connections_per_address_max: self
                .connections_per_address_max
                .and_then(NonZeroUsize::new),
            drain_notice: seconds(self.drain_notice_seconds.unwrap_or(DRAIN_NOTICE_SECONDS)),
            drain: seconds(self.drain_seconds.unwrap_or(DRAIN_SECONDS)),
            log: self.log.unwrap_or_default(),
            log_level: self.log_level.unwrap_or_default(),
        })
    }

    fn stalls(&self) -> Stalls {
        match self.stalls.unwrap_or_default() {
            Switch::Off => Stalls::default(),
            Switch::On => {
                let milliseconds =
                    self.stall_milliseconds_min.map_or(STALL_MILLISECONDS, u32::from);
                let probe = self.stall_probe_seconds.unwrap_or(STALL_PROBE_SECONDS);
                let probe = (probe > 0).then(|| Duration::from_secs(probe.into()));
                Stalls::new(Duration::from_millis(milliseconds.into())).with_probe(probe)
            }
        }
    }

    /// The listeners of clients: all but the admin's.
    fn listeners(&self) -> Vec<Listener> {
        let plain = [
            (Service::Echo, self.echo),
            (Service::Sink, self.sink),
            (Service::Source, self.source),
            (Service::Iggy, self.tcp),
            (Service::Http, self.http),
        ];
        let over_tls = [
            (Service::Echo, self.echo_tls),
            (Service::Sink, self.sink_tls),
            (Service::Source, self.source_tls),
            (Service::Iggy, self.tcp_tls),
            (Service::Http, self.https),
        ];
        let mut listeners = Vec::new();
        for (is_over_tls, options) in [(false, plain), (true, over_tls)] {
            for (service, addr) in options {
                listeners.extend(addr.map(|addr| Listener { service, addr, is_over_tls }));
            }
        }
        listeners
    }
}

/// The certificates, if a listener is over TLS. Refuses listeners without certificates, and certificates without a listener.
fn tls(
    listeners: &[Listener],
    chain: Option<PathBuf>,
    key: Option<PathBuf>,
    linger_time: Duration,
) -> Result<Option<Tls>, String> {
    let over_tls = listeners.iter().find(|listener| listener.is_over_tls);
    match (over_tls, chain, key) {
        (Some(_), Some(chain), Some(key)) => Tls::load(chain, key, linger_time).map(Some),
        (Some(listener), ..) => {
            let name = listener.name();
            Err(format!("--{name} is over TLS: it needs --tls-cert and --tls-key"))
        }
        (None, None, None) => Ok(None),
        (None, ..) => {
            let services = "--https, --echo-tls, --sink-tls, --source-tls or --tcp-tls";
            Err(format!("nothing to serve over TLS: give {services} an address"))
        }
    }
}

/// A policy in the file: a string, as on the command line.
fn policy<'de, D: Deserializer<'de>>(file: D) -> Result<Option<SyncPolicy>, D::Error> {
    let text = String::deserialize(file)?;
    text.parse().map(Some).map_err(|error| D::Error::custom(format!("fsync: {error}")))
}

/// Time for answers in progress, and less than the 30 s after which supervisors usually kill a process.
const DRAIN_SECONDS: u32 = 10;

/// None, unless a load balancer needs it.
const DRAIN_NOTICE_SECONDS: u32 = 0;

/// A worker that serves thousands of busy connections needs some 30 ms until each has had its turn. On a machine that is
/// busy with other programs it waits that long for a CPU, too.
const STALL_MILLISECONDS: u32 = 100;

/// As often as load balancers ask, and as the detector inspects connections. Two probes in a row that fail are evidence
/// of lost clients, which are found within half a minute if there is one worker.
const STALL_PROBE_SECONDS: u32 = 10;

fn cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

#[cfg(test)]
mod tests;
