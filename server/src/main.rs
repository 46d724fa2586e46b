//! The server's program: options, logs, signals, and the one line that picks the runtime.

mod backends;

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::{io, thread};

use clap::Parser;
use owned_io::StopSignal;
use owned_io_server::config::{Config, Flags, Log, Service};
use owned_io_server::tls::Tls;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{info, warn};

/// Descriptors besides connections: listeners, rings, standard streams, a few for each worker.
const DESCRIPTORS_SPARE: usize = 256;

fn main() -> ExitCode {
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        // Help, or the version: what was asked for.
        Err(usage) if !usage.use_stderr() => {
            let _ = usage.print();
            return ExitCode::SUCCESS;
        }
        Err(usage) => return refuse(&in_one_sentence(&usage)),
    };
    match flags.into_config().and_then(|config| run(&config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => refuse(&why),
    }
}

fn refuse(why: &str) -> ExitCode {
    // Whoever started the server may not read it; `eprintln!` would panic of that.
    let _ = writeln!(io::stderr(), "owned-io-server: {why}");
    ExitCode::FAILURE
}

/// The first line of what clap says, which names the culprit; the rest is in the help.
fn in_one_sentence(usage: &clap::Error) -> String {
    let said = usage.to_string();
    let first = said.lines().next().unwrap_or_default();
    format!("{}; --help lists the options", first.strip_prefix("error: ").unwrap_or(first))
}

fn run(config: &Config) -> Result<(), String> {
    let backend = backends::choose(config.runtime.as_deref())?;
    start_logs(config.log);
    // Before there are threads: afterwards each of them would wait for it.
    let descriptors = config.workers.get().saturating_mul(config.limits.connections_max);
    owned_io_os::reserve_descriptors(descriptors.saturating_add(DESCRIPTORS_SPARE))
        .map_err(|error| format!("cannot make room for descriptors: {error}"))?;
    let stop = StopSignal::new();
    handle_signals(stop.clone(), config.tls.clone())
        .map_err(|error| format!("cannot handle signals: {error}"))?;
    info!(runtime = backend.name, workers = config.workers, ring = ?config.ring, "starting");
    (backend.run)(config, stop, say_listening).map_err(|error| error.to_string())
}

fn say_listening(service: Service, addr: SocketAddr) {
    // Whoever started the server may not read it.
    let _ = writeln!(io::stdout(), "listening {service} {addr}");
}

fn start_logs(log: Log) {
    let logs = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_max_level(tracing::Level::INFO)
        .log_internal_errors(false) // to stderr as well, by a macro that panics when that fails
        .with_target(false);
    match log {
        Log::Text => logs.init(),
        Log::Json => logs.json().init(),
    }
}

/// The first SIGTERM or SIGINT drains, the second ends at once. SIGHUP has the certificates read anew,
/// where there are any; where there are none it ends, as ever.
fn handle_signals(stop: StopSignal, tls: Option<Tls>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    if tls.is_some() {
        signals.add_signal(SIGHUP)?;
    }
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            match &tls {
                Some(tls) if signal == SIGHUP => match tls.reload() {
                    Ok(()) => info!("certificates are read anew"),
                    Err(why) => warn!(why, "certificates stay as they are"),
                },
                _ if stop.is_stopped() => std::process::exit(128 + signal),
                _ => stop.stop(),
            }
        }
    })?;
    Ok(())
}
