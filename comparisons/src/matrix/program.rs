//! The programs that are measured: how to build them, start them and end them.

use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use super::Failure;
use super::certificate::Certificate;
use super::interrupt::Interrupt;
use super::workload::Service;

const RUNTIMES: [&str; 5] = ["tokio", "tokio-uring", "compio", "monoio", "glommio"];

/// The program of our server.
const OURS: &str = "owned-io-server";

/// Servers written by hand that are not on one of these.
const OTHER_PEERS: [&str; 5] =
    ["echo-tokio-multi", TLS_PEER, "echo-epoll", "echo-uring", "ws-faulty"];

/// The one that speaks TLS.
const TLS_PEER: &str = "echo-tokio-rustls";

/// WebSocket on other people's libraries: in Rust, a workspace of its own; and those with a script.
const LIBRARIES: [&str; 7] = [
    "ws-tokio-tungstenite",
    "ws-fastwebsockets",
    "ws-tokio-websockets",
    "ws-sockudo",
    "ws-sockudo-compio",
    "ws-compio",
    "ws-monoio-tungstenite",
];
const SCRIPTED: [&str; 4] = ["ws-uwebsockets", "ws-gws", "ws-babl", "ws-vertx"];

/// Where the peers are.
const PEERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");

/// How the names of peers begin that speak WebSocket.
const WS: &str = "ws-";

/// What may follow a name.
const TUNED: &str = "/tuned";
const FAULTS: [&str; 2] = ["/slow", "/corrupt"];
const WEBSOCKET: &str = "/websocket";
const TLS: &str = "/tls";
const BRIDGES: [&str; 3] =
    ["/tungstenite-fixed", "/tungstenite-linear", "/tungstenite-exponential"];

/// What the server that ran last said on stderr, in the folder of a run.
pub(crate) const SERVER_SAID: &str = "server-said";

/// How long a server may take to say where it listens: the JVM's take a second or two.
const START: Duration = Duration::from_secs(30);

/// The most that is read of the line that says it.
const LINE_BYTES_MAX: u64 = 1024;

/// How long a server may take to end once it is told to; it is killed then.
const END: Duration = Duration::from_secs(5);

/// A server: a runtime's name for ours, that of its program for a peer (`echo-tokio`), `traits-` and
/// the runtime's name for the peer that is written on the traits; followed by `/tuned` for the tuned
/// ring settings, and then, for ours, by `/websocket` or `/tls` for what it serves over that instead of
/// TCP, or by the name of another engine that speaks WebSocket (`/tungstenite-linear`).
/// `ws-faulty` may be followed by what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Server {
    name: String,
}

impl TryFrom<String> for Server {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let server = Self { name };
        let runtime = server.runtime();
        if let Some(protocol) = server.protocol()
            && server.program() != OURS
        {
            return Err(format!("{} has no {protocol}: that is ours", server.without_settings()));
        }
        let others = [&OTHER_PEERS[..], &LIBRARIES, &SCRIPTED].concat();
        if RUNTIMES.contains(&runtime) || others.contains(&server.program()) {
            Ok(server)
        } else {
            Err(format!(
                "there is no server {runtime}: choose one of {}, their peers (echo-…), or {}",
                RUNTIMES.join(", "),
                others.join(", ")
            ))
        }
    }
}

impl From<Server> for String {
    fn from(server: Server) -> Self {
        server.name
    }
}

impl Server {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn runtime(&self) -> &str {
        let name = self.without_settings();
        ["echo-", "traits-"].iter().find_map(|kind| name.strip_prefix(kind)).unwrap_or(name)
    }

    /// The hand-written one on the same runtime.
    pub(crate) fn peer(&self) -> Self {
        Self { name: format!("echo-{}", self.name.strip_prefix("traits-").unwrap_or(&self.name)) }
    }

    pub(crate) fn is_peer(&self) -> bool {
        self.name.starts_with("echo-") || self.name.starts_with(WS)
    }

    /// The same over TCP.
    pub(crate) fn over_tcp(&self) -> Self {
        Self { name: self.without_protocol().to_owned() }
    }

    /// The same over WebSocket, on our own engine.
    pub(crate) fn on_native_engine(&self) -> Self {
        Self { name: format!("{}{WEBSOCKET}", self.without_protocol()) }
    }

    /// What speaks WebSocket, if that is not our own engine.
    pub(crate) fn bridge(&self) -> Option<&'static str> {
        BRIDGES.into_iter().find(|bridge| self.name.ends_with(bridge))?.strip_prefix('/')
    }

    pub(crate) fn speaks_websocket(&self) -> bool {
        self.protocol().is_some_and(|protocol| protocol != TLS) || self.name.starts_with(WS)
    }

    pub(crate) fn speaks_tls(&self) -> bool {
        self.protocol() == Some(TLS) || self.program() == TLS_PEER
    }

    fn program(&self) -> &str {
        if self.is_peer() {
            self.without_settings()
        } else if self.is_on_traits() {
            "echo-through-traits"
        } else {
            OURS
        }
    }

    fn without_settings(&self) -> &str {
        let name = self.without_protocol();
        let settings = [TUNED].into_iter().chain(FAULTS);
        settings.into_iter().find_map(|it| name.strip_suffix(it)).unwrap_or(name)
    }

    /// What it does wrong on purpose.
    fn fault(&self) -> Option<&'static str> {
        let fault = FAULTS.into_iter().find(|fault| self.name.ends_with(fault))?;
        fault.strip_prefix('/')
    }

    fn without_protocol(&self) -> &str {
        let protocol = self.protocol().unwrap_or_default();
        self.name.strip_suffix(protocol).unwrap_or(&self.name)
    }

    /// None: TCP, or all that the program speaks.
    pub(crate) fn protocol(&self) -> Option<&'static str> {
        [WEBSOCKET, TLS].into_iter().chain(BRIDGES).find(|protocol| self.name.ends_with(protocol))
    }

    fn is_on_traits(&self) -> bool {
        self.name.starts_with("traits-")
    }

    /// What of its program is loaded when it starts; none where that is a script, or none.
    pub(crate) fn program_bytes(&self) -> Option<u64> {
        loaded_bytes(&fs::read(programs().ok()?.join(self.program())).ok()?)
    }

    fn args(&self, service: Service) -> Vec<&str> {
        let any_port = "127.0.0.1:0";
        let mut args = if self.is_peer() {
            vec![any_port]
        } else if self.is_on_traits() {
            vec![any_port, "--runtime", self.runtime()]
        } else {
            let flag = match self.protocol() {
                None => service.flag(),
                Some(TLS) => service.tls_flag(),
                Some(_) => "--http",
            };
            vec!["--runtime", self.runtime(), "--workers", "1", flag, any_port]
        };
        if self.without_protocol().ends_with(TUNED) {
            args.extend(["--ring", "tuned"]);
        }
        if let Some(bridge) = self.bridge() {
            args.extend(["--engine", bridge]);
        }
        if let Some(fault) = self.fault() {
            args.extend(["--fault", fault]);
        }
        if service == Service::Deflate {
            args.push("--deflate");
            args.extend((!self.is_peer()).then_some("shared"));
        }
        args
    }
}

/// How many bytes of an ELF file the kernel maps (elf(5)): neither symbols nor line tables.
fn loaded_bytes(elf: &[u8]) -> Option<u64> {
    const PT_LOAD: [u8; 4] = 1_u32.to_le_bytes();
    let bytes = |at: usize, count: usize| elf.get(at..)?.get(..count);
    let field = |at: usize| Some(u64::from_le_bytes(bytes(at, 8)?.try_into().ok()?));
    let half = |at: usize| Some(u16::from_le_bytes(bytes(at, 2)?.try_into().ok()?));
    // 64 bits, little-endian.
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (first, size, count) = (usize::try_from(field(32)?).ok()?, half(54)?, half(56)?);
    let heads =
        (0..usize::from(count)).map(|index| elf.get(first..)?.get(index * usize::from(size)..));
    let loaded = heads.flatten().filter(|head| head.starts_with(&PT_LOAD));
    loaded.map(|head| Some(u64::from_le_bytes(head.get(32..40)?.try_into().ok()?))).sum()
}

/// Where the programs are: beside this one.
pub(crate) fn programs() -> Result<PathBuf, Failure> {
    let own = env::current_exe().map_err(|error| Failure::new(format!("where am I? {error}")))?;
    own.parent().map(Into::into).ok_or_else(|| Failure::new("the program is in no folder"))
}

/// Builds what `servers` need, one package at a time: cargo joins the features of what is built
/// together, and then a peer is not what its own manifest says.
///
/// # Errors
/// What cargo cannot build. A peer whose script fails, as it does where its language is not installed,
/// is said to and leaves no program, which makes its rounds void.
pub(crate) fn build(servers: &[Server]) -> Result<(), Failure> {
    let mut packages: Vec<_> = servers.iter().map(Server::program).collect();
    packages.push("owned-io-comparisons");
    packages.sort_unstable();
    packages.dedup();
    let programs = programs()?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    for package in packages {
        let scripted = SCRIPTED.contains(&package);
        let mut command;
        if scripted {
            command = Command::new(format!("{PEERS}/{package}/build"));
            command.arg(programs.join(package));
        } else {
            command = Command::new(&cargo);
            command.args(["build", "--release", "--quiet", "-p", package]);
        }
        if LIBRARIES.contains(&package) {
            command.args(["--manifest-path", &format!("{PEERS}/websocket/Cargo.toml")]);
            command.arg("--target-dir").args(programs.parent());
        }
        if package == OURS {
            command.arg("--all-features");
        }
        forget_package(&mut command);
        if command.status().is_ok_and(|status| status.success()) {
            continue;
        }
        if !scripted {
            return Err(Failure::new(format!("cannot build {package}")));
        }
        eprintln!("cannot build {package}: its rounds will be void");
        // None may be left from before, as it is mostly not.
        let _ = fs::remove_file(programs.join(package));
    }
    Ok(())
}

/// Leaves out what `cargo run` says of this package. Some build scripts (ring's) would take it for a change
/// of theirs, and everything that needs them would be built anew each time.
fn forget_package(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let named = name.to_string_lossy();
        if named.starts_with("CARGO_PKG_") || named.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
}

/// Where a server runs, and where there is room for what it says.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) core: usize,
    pub(crate) folder: &'a Path,
}

/// A server that runs, until this is dropped.
pub(crate) struct Running {
    process: Child,
    pub(crate) addr: SocketAddr,
    /// From its start to its start-up line.
    pub(crate) startup: Duration,
}

impl Running {
    /// Starts a server, with at most `open_files` of them if that is given. Over TLS it is who the
    /// certificate says.
    ///
    /// # Errors
    /// When it does not say in time where it listens, with what it says of that.
    pub(crate) fn start(
        server: &Server,
        service: Service,
        certificate: &Certificate,
        Place { core, folder }: Place<'_>,
        open_files: Option<u32>,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let program = programs()?.join(server.program());
        let cannot = |why: String| Failure::new(format!("cannot start {}: {why}", server.name()));
        let mut command = match open_files {
            None => Command::new(&program),
            Some(files) => {
                let mut shell = Command::new("sh");
                let limited = format!("ulimit -n {files} && exec \"$0\" \"$@\"");
                shell.args(["-c", &limited]).arg(&program);
                shell
            }
        };
        let said = folder.join(SERVER_SAID);
        let stderr = fs::File::create(&said)
            .map_err(|error| cannot(format!("{}: {error}", said.display())))?;
        command.args(server.args(service)).stdout(Stdio::piped()).stderr(stderr);
        if server.speaks_tls() {
            command.args(certificate.for_server());
        }
        let began = Instant::now();
        let mut process = on_core(core, || command.spawn())
            .map_err(|error| cannot(format!("{}: {error}", program.display())))?;
        let mut line = String::new();
        let stdout = process.stdout.take().expect("it is piped");
        // The line is written at once: what is readable is all of it, or the end.
        let read = match interrupt.wait_to_read(&stdout, START) {
            Ok(true) => BufReader::new(stdout.take(LINE_BYTES_MAX)).read_line(&mut line),
            Ok(false) => Err(io::ErrorKind::TimedOut.into()),
            Err(error) => Err(error),
        };
        let startup = began.elapsed();
        let addr = line.split_whitespace().nth(2).and_then(|addr| addr.parse().ok());
        match (read, addr) {
            (Ok(_), Some(addr)) => Ok(Self { process, addr, startup }),
            _ => {
                let _ = process.kill();
                let _ = process.wait();
                let said = fs::read_to_string(&said).unwrap_or_default();
                Err(cannot(match said.lines().next() {
                    None => "it does not say where it listens".to_owned(),
                    Some(why) => why.to_owned(),
                }))
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.process.id().cast_signed());
        // It may have ended by itself; then it is only waited for.
        let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
        let until = Instant::now() + END;
        while Instant::now() < until {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Does `start` on a core; what it starts stays there.
fn on_core<T>(core: usize, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = sched_getaffinity(None)?;
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores)?;
    let started = start();
    sched_setaffinity(None, &before)?;
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_loaded_of_a_program_is_some_of_it() {
        let own = fs::read(env::current_exe().unwrap()).unwrap();
        let loaded = loaded_bytes(&own).unwrap();
        assert!(loaded > 100_000 && loaded < own.len() as u64, "{loaded} of {}", own.len());
        assert_eq!(loaded_bytes(b"#!/bin/sh"), None);
        assert_eq!(loaded_bytes(&own[..64]), Some(0));
    }
}
