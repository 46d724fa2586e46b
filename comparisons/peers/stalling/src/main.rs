//! A naive TCP echo on each runtime: a plain accept loop, a task for each connection, and one fault on command.
//!
//! The stall detector is embedded as its README says. What it finds goes to a file of JSON lines, with the times of
//! the fault and the lateness of the event loop, so that the stall lab can compare verdict and truth.

#![forbid(unsafe_code)]

mod fault;
mod host;
mod on_compio;
mod on_glommio;
mod on_monoio;
mod on_tokio;
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RuntimeName {
    Tokio,
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
    if args.entries.is_some() && args.runtime != RuntimeName::TokioUring {
        let why = "--entries is for --runtime tokio-uring";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    match args.runtime {
        RuntimeName::Tokio => on_tokio::serve(args),
        RuntimeName::TokioUring => on_tokio_uring::serve(args),
        RuntimeName::Compio => on_compio::serve(args),
        RuntimeName::Monoio => on_monoio::serve(args),
        RuntimeName::Glommio => on_glommio::serve(args),
    }
}
