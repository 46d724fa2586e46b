//! The options that commands share, and the set-up of a run.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};

use super::bounds::{Connections, InFlight, MessageRate, NonZeroSeconds, Payload, Seconds};
use super::exchange::Wire;
use super::perf::Perf;
use super::upgrade::Upgrade;
use super::{Failure, dial, transport};

/// Where the server is, which protocol it speaks, and where `load` runs: the options that every command has, and that
/// are not in a plan.
#[derive(Args, Clone, Debug)]
pub struct Target {
    /// The server's address, host:port.
    #[arg(value_parser = address)]
    pub addr: SocketAddr,
    /// Speak WebSocket, at this path of an HTTP server.
    #[arg(long, value_name = "PATH", value_parser = path)]
    pub websocket: Option<String>,
    /// Speak TLS with a server for localhost whose certificate is in this PEM file.
    #[arg(long, value_name = "FILE")]
    pub tls: Option<PathBuf>,
    /// Resume TLS sessions, of which the last eight are kept.
    #[arg(long, requires = "tls")]
    pub tls_resume: bool,
    /// Run on this core only.
    #[arg(long, value_name = "N")]
    pub core: Option<usize>,
    /// Write the report to this file too, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Report what this process, the server, uses.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub server_pid: Option<u32>,
    /// Keep the connections, and measure a closed loop for each line `window MS` on stdin.
    #[arg(long, conflicts_with_all = ["json", "perf"])]
    pub windows: bool,
    /// Let a `perf stat --delay -1 --control fifo:CONTROL,ACK` count in the measured window.
    #[arg(long, value_name = "CONTROL,ACK", value_parser = Perf::parse)]
    pub(crate) perf: Option<Perf>,
    /// Whether the messages of the WebSocket are compressed.
    #[arg(skip)]
    pub(crate) compressed: bool,
}

impl Target {
    /// The upgrade request, if the target speaks WebSocket.
    pub(crate) fn upgrade(&self) -> Option<Upgrade> {
        let path = self.websocket.as_ref()?;
        Some(Upgrade::new(self.addr, path, self.compressed))
    }

    /// The configuration of TLS, if the target speaks it.
    pub(crate) fn tls(&self) -> Result<Option<Arc<ClientConfig>>, Failure> {
        let trusting = |file: &PathBuf| transport::trusting(file, self.tls_resume);
        self.tls.as_ref().map(trusting).transpose()
    }

    pub(crate) fn wire(&self) -> Wire {
        if self.websocket.is_some() { Wire::WebSocket } else { Wire::Tcp }
    }

    /// Pins the process to its core and raises the limit of open files.
    pub(crate) fn prepare(&self, connections: usize) -> Result<(), Failure> {
        dial::make_room(connections)?;
        let Some(core) = self.core else { return Ok(()) };
        if core >= CpuSet::MAX_CPU {
            return Err(Failure::new(format!("there is no core {core}")));
        }
        let mut cores = CpuSet::new();
        cores.set(core);
        sched_setaffinity(None, &cores)
            .map_err(|error| Failure::new(format!("cannot run on core {core}: {error}")))
    }
}

/// The options of a steady load: `echo`, `deflate`, `fetch`, `object` and `sink`.
#[derive(Args, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Steady {
    /// The length of a message (of `fetch`, of the answer; of `object`, of the object), before it is framed or
    /// compressed.
    #[arg(long, value_name = "BYTES")]
    pub(crate) payload: Payload,
    /// How many connections.
    #[arg(long, value_name = "N")]
    pub(crate) connections: Connections,
    /// The most messages that a connection has sent and not been answered.
    #[arg(long, value_name = "K", default_value_t = InFlight::of::<1>())]
    #[serde(default = "InFlight::of::<1>")]
    pub(crate) in_flight: InFlight,
    /// Spreads the opening of the connections over this time, before the warm-up.
    #[arg(long, value_name = "S", default_value_t = NO_TIME)]
    #[serde(default = "no_time")]
    pub(crate) ramp: Seconds,
    /// The measured window.
    #[arg(long, value_name = "S")]
    pub(crate) seconds: NonZeroSeconds,
    /// The time before it.
    #[arg(long, value_name = "S", default_value_t = WARM_UP)]
    #[serde(default = "warm_up")]
    pub(crate) warm_up: Seconds,
    /// Open loop: so many messages a second over all connections, however fast answers arrive.
    #[arg(long, value_name = "MSG_PER_S")]
    pub(crate) rate: Option<MessageRate>,
    /// How long to wait for missing answers.
    #[arg(long, value_name = "S", default_value_t = PATIENCE)]
    #[serde(default = "patience")]
    pub(crate) patience: NonZeroSeconds,
}

/// Defaults.
pub(crate) const NO_TIME: Seconds = Seconds::of(0);
pub(crate) const WARM_UP: Seconds = Seconds::of(1);
pub(crate) const PATIENCE: NonZeroSeconds = NonZeroSeconds::of::<10>();

/// The same, as serde asks for it.
pub(crate) const fn no_time() -> Seconds {
    NO_TIME
}

pub(crate) const fn warm_up() -> Seconds {
    WARM_UP
}

pub(crate) const fn patience() -> NonZeroSeconds {
    PATIENCE
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let mut found = text.to_socket_addrs().map_err(|error| error.to_string())?;
    found.next().ok_or_else(|| "the name has no address".to_owned())
}

fn path(text: &str) -> Result<String, String> {
    if text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        Err("expected a path such as /echo, of visible ASCII".to_owned())
    }
}
