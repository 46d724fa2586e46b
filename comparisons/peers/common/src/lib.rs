//! Shared code of the hand-written echo servers: the command line, the core to run on, the listening socket and the
//! lines they print. Their own files contain only what differs with the runtime.

#![forbid(unsafe_code)]

mod aligned;
pub mod objects;
pub mod zero_copy;

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Once;
use std::time::Duration;
use std::{env, io, thread};

pub use aligned::AlignedBytes;
use rustix::thread::{CpuSet, sched_setaffinity};
use socket2::{Domain, Protocol, Socket, Type};

/// By how many bytes a read should be shorter than a multiple of the page size.
/// `owned_io::PoolConfig::SHORT_OF_PAGE_BYTES` says why.
pub const SHORT_OF_PAGE_BYTES: usize = 96;

/// The size of a connection's buffer: that of this project's server, so that programs are compared and not sizes.
pub const BUF_BYTES: usize = 64 * 1024 - SHORT_OF_PAGE_BYTES;

/// The distance between the starts of buffers that are beside each other, in bytes.
pub const BUF_STRIDE_BYTES: usize = BUF_BYTES.next_multiple_of(AlignedBytes::ALIGN);

/// How long to wait after a failed accept.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How many clients may wait to be accepted.
pub const BACKLOG: i32 = 1024;

/// The option of a server besides the address and `--core`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraOption {
    /// None.
    None,
    /// `--ring default|tuned`.
    Ring,
    /// `--runtime NAME`, and `--ring`.
    Runtime,
    /// `--workers N`.
    Workers,
    /// `--tls-cert FILE --tls-key FILE`, both needed.
    Tls,
    /// `--fault none|slow|slower|corrupt`.
    Fault,
    /// `--objects DIR`, which is needed, and `--chunk BYTES`.
    Objects,
    /// Those of `Runtime` and of `Objects`, and `--http hyper|owned-io`.
    RuntimeObjects,
    /// Those of [`Objects`](Self::Objects), and `--zero-copy`.
    ZeroCopyObjects,
    /// `--websocket`.
    WebSocket,
    /// `--brokers HOST:PORT,…` and `--topic NAME`, both needed.
    Kafka,
}

impl ExtraOption {
    fn has_ring(self) -> bool {
        self == Self::Ring || self.has_runtime()
    }

    fn has_runtime(self) -> bool {
        matches!(self, Self::Runtime | Self::RuntimeObjects)
    }

    fn has_objects(self) -> bool {
        matches!(self, Self::Objects | Self::RuntimeObjects | Self::ZeroCopyObjects)
    }
}

/// A fault on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    None,
    /// The server spins for each message.
    Slow,
    /// Messages take 3 % more CPU time.
    Slower,
    /// Some echoes have a wrong byte.
    Corrupt,
}

/// The settings of an io_uring runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// The runtime's own settings.
    Default,
    /// The settings of `tuned()` of the runtime's backend of owned-io.
    Tuned,
}

/// Who speaks HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    /// hyper.
    Hyper,
    /// `owned-io-http`.
    OwnedIo,
}

/// The command line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Args {
    /// Where to listen.
    pub addr: SocketAddr,
    /// `--runtime`. Default: tokio.
    pub runtime: String,
    /// `--ring`. Default: the runtime's own.
    pub ring: Ring,
    /// `--http`. Default: hyper.
    pub http: Http,
    /// `--core`. Default: the kernel chooses.
    pub core: Option<usize>,
    /// `--fault`. Default: none.
    pub fault: Fault,
    /// `--workers`. Default: one with `--core`, otherwise the number of cores.
    pub workers: NonZero<usize>,
    /// `--tls-cert` and `--tls-key`, for a server that takes them.
    pub tls: Option<[PathBuf; 2]>,
    /// `--objects`, for a server that takes it: the folder of the objects. Otherwise empty.
    pub objects: PathBuf,
    /// `--chunk`: the bytes of each chunk of a body. Default: bodies are sent with their length.
    pub chunk_bytes: Option<NonZero<usize>>,
    /// `--zero-copy`: the kernel is asked not to copy what is sent. Default: it copies.
    pub zero_copy: bool,
    /// `--websocket`: echo over WebSocket. Default: over TCP.
    pub websocket: bool,
    /// `--brokers`, for a server that takes it: those of Kafka. Otherwise empty.
    pub brokers: String,
    /// `--topic`, for a server that takes it: the topic of Kafka. Otherwise empty.
    pub topic: String,
}

/// A server's `main`. Reads the command line, moves this thread and its later threads to the core, and serves. It
/// prints an error as one sentence. The exit code is 2 for bad arguments, and 1 for other errors.
pub fn main(
    name: &str,
    extra: ExtraOption,
    serve: impl FnOnce(Args) -> io::Result<()>,
) -> ExitCode {
    let args = parse(name, extra, env::args().skip(1)).and_then(|args| pin(&args).map(|()| args));
    let (why, code) = match args.map(serve) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(error)) => (error.to_string(), 1),
        Err(why) => (why, 2),
    };
    let _ = writeln!(io::stderr(), "{name}: {why}");
    ExitCode::from(code)
}

/// A blocking listening socket. Accepted connections inherit TCP_NODELAY.
///
/// # Errors
/// Those of the socket calls, naming the address.
pub fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    listen_with_backlog(addr, BACKLOG)
}

/// The same, with another number of clients that may wait to be accepted.
///
/// # Errors
/// Those of the socket calls, naming the address.
pub fn listen_with_backlog(addr: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let listen = || {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_tcp_nodelay(true)?;
        socket.bind(&addr.into())?;
        socket.listen(backlog)?;
        Ok(socket.into())
    };
    listen().map_err(|error| no_listener(addr, error))
}

/// Prints that a server of echo listens, with its address.
pub fn print_listening(addr: SocketAddr) {
    print_service("echo", addr);
}

/// The same for a server of something else.
pub fn print_service(name: &str, addr: SocketAddr) {
    let mut stdout = io::stdout().lock();
    // The reader may have closed the pipe.
    let _ = writeln!(stdout, "listening {name} {addr}").and_then(|()| stdout.flush());
}

/// Prints the first error of accept. The caller then waits for [`ACCEPT_PAUSE`].
pub fn print_accept_error(error: &io::Error) {
    static FIRST: Once = Once::new();
    FIRST.call_once(|| {
        let _ = writeln!(io::stderr(), "cannot accept: {error}; trying again every 50 ms");
    });
}

/// Adds the failed step to an error of building a runtime.
pub fn no_runtime(error: io::Error) -> io::Error {
    cannot("set up the runtime", error)
}

/// Adds the address to an error of listening.
pub fn no_listener(addr: SocketAddr, error: io::Error) -> io::Error {
    cannot(&format!("listen on {addr}"), error)
}

fn cannot(what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {what}: {error}"))
}

fn parse(
    name: &str,
    extra: ExtraOption,
    mut words: impl Iterator<Item = String>,
) -> Result<Args, String> {
    let option = match extra {
        ExtraOption::None => "",
        ExtraOption::Ring => " [--ring default|tuned]",
        ExtraOption::Runtime => " [--runtime NAME] [--ring default|tuned]",
        ExtraOption::Workers => " [--workers N]",
        ExtraOption::Tls => " --tls-cert FILE --tls-key FILE",
        ExtraOption::Fault => " [--fault none|slow|slower|corrupt]",
        ExtraOption::Objects => " --objects DIR [--chunk BYTES]",
        ExtraOption::RuntimeObjects => {
            " --objects DIR [--chunk BYTES] [--runtime NAME] [--ring default|tuned] [--http hyper|owned-io]"
        }
        ExtraOption::ZeroCopyObjects => " --objects DIR [--chunk BYTES] [--zero-copy]",
        ExtraOption::WebSocket => " [--websocket]",
        ExtraOption::Kafka => " --brokers HOST:PORT,… --topic NAME",
    };
    let wrong = |what: String| format!("{what}; usage: {name} ADDR{option} [--core N]");
    let (mut addr, mut ring, mut core, mut workers) = (None, Ring::Default, None, None);
    let mut http = Http::Hyper;
    let (mut chain, mut key) = (None, None);
    let (mut objects, mut chunk_bytes, mut zero_copy) = (None, None, false);
    let (mut brokers, mut topic) = (None, None);
    let (mut runtime, mut fault, mut websocket) = ("tokio".to_owned(), Fault::None, false);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| wrong(format!("{word} needs a value")));
        match (word.as_str(), extra) {
            ("--core", _) => {
                let value = value()?;
                let number = value.parse().ok().filter(|number| *number < CpuSet::MAX_CPU);
                core = Some(number.ok_or_else(|| wrong(format!("there is no core {value:?}")))?);
            }
            ("--runtime", _) if extra.has_runtime() => runtime = value()?,
            ("--ring", _) if extra.has_ring() => {
                ring = match value()?.as_str() {
                    "default" => Ring::Default,
                    "tuned" => Ring::Tuned,
                    other => return Err(wrong(format!("there is no ring setting {other:?}"))),
                }
            }
            ("--http", ExtraOption::RuntimeObjects) => {
                http = match value()?.as_str() {
                    "hyper" => Http::Hyper,
                    "owned-io" => Http::OwnedIo,
                    other => return Err(wrong(format!("there is no HTTP by {other:?}"))),
                }
            }
            ("--fault", ExtraOption::Fault) => {
                fault = match value()?.as_str() {
                    "none" => Fault::None,
                    "slow" => Fault::Slow,
                    "slower" => Fault::Slower,
                    "corrupt" => Fault::Corrupt,
                    other => return Err(wrong(format!("there is no fault {other:?}"))),
                }
            }
            ("--workers", ExtraOption::Workers) => {
                let value = value()?;
                let number = value.parse().ok();
                workers =
                    Some(number.ok_or_else(|| wrong(format!("cannot run {value:?} workers")))?);
            }
            ("--tls-cert", ExtraOption::Tls) => chain = Some(PathBuf::from(value()?)),
            ("--tls-key", ExtraOption::Tls) => key = Some(PathBuf::from(value()?)),
            ("--objects", _) if extra.has_objects() => objects = Some(PathBuf::from(value()?)),
            ("--chunk", _) if extra.has_objects() => {
                let value = value()?;
                let number = value.parse().ok();
                chunk_bytes =
                    Some(number.ok_or_else(|| wrong(format!("no chunk has {value:?} bytes")))?);
            }
            ("--zero-copy", ExtraOption::ZeroCopyObjects) => zero_copy = true,
            ("--websocket", ExtraOption::WebSocket) => websocket = true,
            ("--brokers", ExtraOption::Kafka) => brokers = Some(value()?),
            ("--topic", ExtraOption::Kafka) => topic = Some(value()?),
            (text, _) if addr.is_none() && !text.starts_with('-') => {
                let parsed = text.parse().map_err(|_| wrong(format!("{text:?} is not IP:PORT")))?;
                addr = Some(parsed);
            }
            (other, _) => return Err(wrong(format!("{other:?} is not understood"))),
        }
    }
    let one = NonZero::<usize>::MIN;
    let cores = || thread::available_parallelism().unwrap_or(one);
    let workers = workers.unwrap_or_else(|| if core.is_some() { one } else { cores() });
    let addr = addr.ok_or_else(|| wrong("an address is missing".to_owned()))?;
    let tls = chain.zip(key).map(|(chain, key)| [chain, key]);
    if extra == ExtraOption::Tls && tls.is_none() {
        return Err(wrong("a certificate or a key is missing".to_owned()));
    }
    if extra.has_objects() && objects.is_none() {
        return Err(wrong("the folder of the objects is missing".to_owned()));
    }
    let objects = objects.unwrap_or_default();
    if extra == ExtraOption::Kafka && (brokers.is_none() || topic.is_none()) {
        return Err(wrong("the brokers or the topic are missing".to_owned()));
    }
    Ok(Args {
        addr,
        runtime,
        ring,
        http,
        core,
        fault,
        workers,
        tls,
        objects,
        chunk_bytes,
        zero_copy,
        websocket,
        brokers: brokers.unwrap_or_default(),
        topic: topic.unwrap_or_default(),
    })
}

/// Moves this thread to its cores: one core for each worker, from `core` on. Later threads inherit them.
fn pin(args: &Args) -> Result<(), String> {
    let Some(core) = args.core else { return Ok(()) };
    let mut cores = CpuSet::new();
    for core in (core..CpuSet::MAX_CPU).take(args.workers.get()) {
        cores.set(core);
    }
    sched_setaffinity(None, &cores).map_err(|error| format!("cannot run on core {core}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(extra: ExtraOption, line: &str) -> Result<Args, String> {
        parse("name", extra, line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn objects_are_served_on_the_runtime_that_is_named() {
        let line = "127.0.0.1:0 --runtime compio --ring tuned --objects folder --chunk 16384";
        let args = parsed(ExtraOption::RuntimeObjects, line).unwrap();
        assert_eq!((&*args.runtime, args.ring, args.http), ("compio", Ring::Tuned, Http::Hyper));
        assert_eq!(args.objects, PathBuf::from("folder"));
        assert_eq!(args.chunk_bytes, NonZero::new(16_384));
        let ours = parsed(ExtraOption::RuntimeObjects, &format!("{line} --http owned-io")).unwrap();
        assert_eq!(ours.http, Http::OwnedIo);
        let error = parsed(ExtraOption::RuntimeObjects, "127.0.0.1:0").unwrap_err();
        assert!(error.contains("the folder of the objects is missing"), "{error}");
        for (extra, what) in
            [(ExtraOption::Objects, "--runtime"), (ExtraOption::Runtime, "--objects")]
        {
            let error = parsed(extra, line).unwrap_err();
            assert!(error.contains(&format!("{what:?} is not understood")), "{error}");
        }
    }

    #[test]
    fn only_servers_that_can_take_zero_copy() {
        let line = "127.0.0.1:0 --objects a --chunk 7 --zero-copy";
        let args = parsed(ExtraOption::ZeroCopyObjects, line).unwrap();
        assert!(args.zero_copy && args.objects == *"a" && args.chunk_bytes == NonZero::new(7));
        let refused = parsed(ExtraOption::Objects, line).unwrap_err();
        assert!(refused.starts_with("\"--zero-copy\" is not understood"), "{refused}");
    }
}
