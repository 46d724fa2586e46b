//! The server's program: options, logs, signals, and the one line that picks the runtime.
//!
//! The exit code is 0 if the server ended as it was asked to, 1 after an error, and [`CUT_OFF`] if connections had to
//! be cut off. A second signal ends the process with 128 plus the number of the signal.

mod backends;
mod logs;
mod signals;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use clap::Parser;
use owned_io::WorkerError;
use owned_io_os::uring::RingError;
use owned_io_server::config::{Config, Flags, Listener, Ring, Service};
use owned_io_server::drain::DrainSignal;
use owned_io_server::iggy::storage;
use owned_io_server::metrics::Exporter;
use owned_io_server::object;
use owned_io_server::server::Outcome;
use owned_io_server::service::application::Placement;
use owned_io_server::ticker::Ticker;
use owned_io_server::watch;
use tracing::{info, warn};

/// Descriptors that are not connections: listeners, rings, standard streams, a few for each worker.
const DESCRIPTORS_SPARE: usize = 256;

/// The exit code if the drain had to cut off connections that had not ended in time.
const CUT_OFF: u8 = 3;

fn main() -> ExitCode {
    if let Err(error) = signals::outlive_file_size_limit() {
        return fail(&format!("cannot handle signals: {error}"));
    }
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        // The user asked for the help or the version.
        Err(usage) if !usage.use_stderr() => {
            let _ = usage.print();
            return ExitCode::SUCCESS;
        }
        Err(usage) => return fail(&in_one_sentence(&usage)),
    };
    match flags.into_config().and_then(run) {
        Ok(Outcome { cut_off: 0 }) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(CUT_OFF),
        Err(why) => fail(&why),
    }
}

fn fail(why: &str) -> ExitCode {
    logs::print_error(why);
    ExitCode::FAILURE
}

/// The first line of clap's message, which names the culprit. The rest is in the help.
fn in_one_sentence(usage: &clap::Error) -> String {
    let message = usage.to_string();
    let first = message.lines().next().unwrap_or_default();
    format!("{}; --help lists the options", first.strip_prefix("error: ").unwrap_or(first))
}

fn run(mut config: Config) -> Result<Outcome, String> {
    let backend = backends::choose(config.runtime.as_deref())?;
    // Before threads are started: afterwards each of them would have to wait for this.
    let descriptors = config.connections_max().saturating_add(files_max(&config));
    owned_io_os::reserve_descriptors(descriptors.saturating_add(DESCRIPTORS_SPARE))
        .map_err(|error| format!("cannot make room for descriptors: {error}"))?;
    let _logs = logs::start(config.log, config.log_level); // dropped last, so that all lines are written
    let drain = DrainSignal::default();
    signals::handle(drain.clone(), config.drain_notice, config.tls.clone())
        .map_err(|error| format!("cannot handle signals: {error}"))?;
    config.ticker = Ticker::start(watch::period(config.limits))
        .map_err(|error| format!("cannot start the ticker: {error}"))?;
    config.application = Placement::Thread;
    config.measures_usage = true;
    // Before the detector of stalls, whose figures it gets.
    if config.listeners.iter().any(|listener| listener.service == Service::Admin) {
        config.exporter = Exporter::start()
            .map_err(|error| format!("cannot start the exporter of metrics: {error}"))?;
    }
    if let Err(error) = config.stalls.start() {
        warn!(%error, "nobody watches for stalls: the detector cannot start");
    }
    info!(runtime = backend.name, workers = config.workers, ring = ?config.ring, "starting");
    let outcome = (backend.run)(&config, drain, print_listening)
        .map_err(|error| explain(&error, config.ring))?;
    match outcome.cut_off {
        0 => info!("drained"),
        cut_off => warn!(cut_off, "drained, and reset connections that had not ended in time"),
    }
    Ok(outcome)
}

/// The descriptors that the log may keep, and those of the origin of objects. On monoio a file has two.
fn files_max(config: &Config) -> usize {
    let log = match config.iggy.as_ref().and_then(|iggy| iggy.data.as_ref()) {
        Some(_) => 2 * storage::OPEN_FILES_MAX,
        None => 0,
    };
    let origin = if config.objects.is_some() { 2 * object::CONNECTIONS_MAX } else { 0 };
    log + origin
}

/// Adds a remedy if the kernel refuses the tuned ring, but perhaps not the one that the runtime would set up.
fn explain(error: &io::Error, ring: Ring) -> String {
    // An older kernel does not know the settings; a small limit on locked memory has no room for the entries.
    let is_about_settings = ring_error(error).is_some_and(|ring_error| {
        matches!(ring_error.cause().kind(), ErrorKind::InvalidInput | ErrorKind::OutOfMemory)
    });
    match ring {
        Ring::Tuned if is_about_settings => format!("{error}; or try --ring default"),
        _ => error.to_string(),
    }
}

fn ring_error(error: &io::Error) -> Option<&RingError> {
    let inner = error.get_ref()?;
    let inner = match inner.downcast_ref::<WorkerError>() {
        Some(worker) => worker.cause().get_ref()?,
        None => inner,
    };
    inner.downcast_ref()
}

fn print_listening(listener: &Listener) {
    // An error means that nobody reads standard output.
    let _ = writeln!(io::stdout(), "listening {listener}");
}
