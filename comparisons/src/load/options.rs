//! The options that commands share, and what is done with them before a run.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustls::ClientConfig;

use super::exchange::Wire;
use super::perf::Perf;
use super::upgrade::Upgrade;
use super::{Failure, dial, transport};

/// The options of every command.
#[derive(Args, Clone, Debug)]
pub struct Common {
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
    /// Let a `perf stat --delay -1 --control fifo:CONTROL,ACK` count in the measured window.
    #[arg(long, value_name = "CONTROL,ACK", value_parser = Perf::parse)]
    pub(crate) perf: Option<Perf>,
    /// Whether the messages of the WebSocket are compressed.
    #[arg(skip)]
    pub(crate) compressed: bool,
}

impl Common {
    /// The request for a WebSocket, if that is what is spoken.
    pub(crate) fn upgrade(&self) -> Option<Upgrade> {
        let path = self.websocket.as_ref()?;
        Some(Upgrade::new(self.addr, path, self.compressed))
    }

    /// How TLS is spoken, if it is.
    pub(crate) fn tls(&self) -> Result<Option<Arc<ClientConfig>>, Failure> {
        let trusting = |file: &PathBuf| transport::trusting(file, self.tls_resume);
        self.tls.as_ref().map(trusting).transpose()
    }

    pub(crate) fn wire(&self) -> Wire {
        if self.websocket.is_some() { Wire::WebSocket } else { Wire::Tcp }
    }

    /// Pins the process, makes room for so many connections.
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

/// The options of a steady load: `echo`, `deflate`, `fetch` and `sink`.
#[derive(Args, Clone, Debug)]
pub struct Steady {
    #[command(flatten)]
    pub(crate) common: Common,
    /// The length of a message (of `fetch`, of the answer), before it is framed or compressed.
    #[arg(long, value_name = "BYTES", value_parser = payload)]
    pub payload: u32,
    /// How many connections.
    #[arg(long, value_name = "N", value_parser = connections)]
    pub connections: usize,
    /// The most messages that a connection has sent and not been answered.
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub in_flight: u32,
    /// Opens the connections evenly over so long, before the warm-up.
    #[arg(long, value_name = "S", default_value = "0", value_parser = seconds_or_none)]
    pub ramp: Duration,
    /// The measured window.
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub seconds: Duration,
    /// The time before it.
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds_or_none)]
    pub warm_up: Duration,
    /// Open loop: so many messages a second over all connections, come what may.
    #[arg(long, value_name = "MSG_PER_S", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub rate: Option<u64>,
    /// How long to wait for what is missing.
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub patience: Duration,
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

/// How many connections one run may ask for.
pub(crate) fn connections(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=1_000_000) => Ok(count),
        _ => Err("expected a number from 1 to 1000000".to_owned()),
    }
}

/// The same, or none.
pub(crate) fn connections_or_none(text: &str) -> Result<usize, String> {
    if text == "0" { Ok(0) } else { connections(text) }
}

/// The length of a message, at most a gigabyte: it is held in memory.
pub(crate) fn payload(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes @ 1..=0x4000_0000) => Ok(bytes),
        _ => Err("expected a number of bytes from 1 to 1073741824".to_owned()),
    }
}

/// A length of time, at most a week.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    match seconds_or_none(text) {
        Ok(Duration::ZERO) => Err("expected more than 0".to_owned()),
        result => result,
    }
}

pub(crate) fn seconds_or_none(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=604_800.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected seconds, such as 2 or 0.5".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_finite_and_not_negative() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "NaN", "inf", "1e9", "", "1s"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        assert_eq!(seconds_or_none("0"), Ok(Duration::ZERO));
    }
}
