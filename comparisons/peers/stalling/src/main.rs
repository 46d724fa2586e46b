//! A naive TCP echo on each runtime: a plain accept loop, a task for each connection, and one fault on command.
//!
//! The stall detector is embedded as its README says. What it finds goes to a file of JSON lines, with the times of
//! the fault and the lateness of the event loop, so that the stall lab can compare verdict and truth.

#![forbid(unsafe_code)]

mod drain;
mod fault;
mod host;
mod on_compio;
mod on_glommio;
mod on_monoio;
mod on_tokio;
mod on_tokio_multi;
mod on_tokio_uring;
mod record;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use fault::Fault;

/// A naive TCP echo that stalls on command. It ends by a signal.
#[derive(Clone, Debug, Parser)]
#[command(name = "stalling", version)]
struct Args {
    /// Where to listen, IP:PORT.
    addr: SocketAddr,
    /// The runtime.
    #[arg(long)]
    runtime: RuntimeName,
    /// The fault.
    #[arg(long, default_value = "none")]
    fault: Fault,
    /// When the fault begins, in ms after the server listens.
    #[arg(long, value_name = "MS", default_value_t = 2_000)]
    after_ms: u64,
    /// How long the fault lasts, in ms.
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    lasts_ms: u64,
    /// Write what happens to this file, as JSON lines.
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// How many clients may wait to be accepted; glommio has 1,024 in any case.
    #[arg(long, value_name = "N", default_value_t = peers_common::BACKLOG)]
    backlog: i32,
    /// How many entries the ring has, on tokio-uring [default: the runtime's own].
    #[arg(long, value_name = "N")]
    entries: Option<u32>,
    /// How it accepts.
    #[arg(long, default_value = "plain", conflicts_with = "fault")]
    accept: AcceptLoop,
    /// Whether the detector runs: without it, the server shows what the detector costs.
    #[arg(long, default_value = "on", conflicts_with_all = ["fault", "events"])]
    detector: Switch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// How a server accepts clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AcceptLoop {
    /// One accept is pending.
    Plain,
    /// 64 accepts are pending, on tokio, tokio-uring and monoio.
    Many,
    /// Wait until a client is there, and accept until none is left, on tokio and tokio-uring.
    Drain,
}

impl AcceptLoop {
    /// How many accepts are pending at a time.
    const fn pending(self) -> usize {
        match self {
            Self::Many => 64,
            Self::Plain | Self::Drain => 1,
        }
    }

    fn is_on(self, runtime: RuntimeName) -> bool {
        use RuntimeName::{Monoio, Tokio, TokioUring};
        match self {
            Self::Plain => true,
            Self::Many => matches!(runtime, Tokio | TokioUring | Monoio),
            Self::Drain => matches!(runtime, Tokio | TokioUring),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RuntimeName {
    Tokio,
    TokioMulti,
    TokioUring,
    Compio,
    Monoio,
    Glommio,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "stalling: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: Args) -> io::Result<()> {
    let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    if args.entries.is_some() && args.runtime != RuntimeName::TokioUring {
        return refused("--entries is for --runtime tokio-uring");
    }
    if !args.accept.is_on(args.runtime) {
        return refused("this runtime does not have that --accept");
    }
    if args.runtime == RuntimeName::TokioMulti && !args.fault.is_on_any_thread() {
        return refused("--runtime tokio-multi has --fault none, block and compute");
    }
    match args.runtime {
        RuntimeName::Tokio => on_tokio::serve(args),
        RuntimeName::TokioMulti => on_tokio_multi::serve(args),
        RuntimeName::TokioUring => on_tokio_uring::serve(args),
        RuntimeName::Compio => on_compio::serve(args),
        RuntimeName::Monoio => on_monoio::serve(args),
        RuntimeName::Glommio => on_glommio::serve(args),
    }
}
