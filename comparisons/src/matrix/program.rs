//! Builds, starts and ends the programs that are measured.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::Failure;
use super::credentials::Credentials;
use super::data_folder::DataFolder;
use super::interrupt::Interrupt;
use super::objects_folder::ObjectsFolder;
use super::servers::{FOLDER, Server};

/// The load generator, which is built like the servers.
const LOAD: [&str; 6] = ["cargo", "build", "--release", "--quiet", "-p", "owned-io-comparisons"];

/// Where a server listens: on any free port. Its start-up line has the address.
const ADDR: &str = "127.0.0.1:0";

/// The file in the folder of a run that holds the stderr of the last server.
pub(crate) const SERVER_STDERR: &str = "server-stderr";

/// How long a server may take until it prints its address. The JVM's take a second or two.
const START: Duration = Duration::from_secs(30);

/// An ELF file has its program headers within so many bytes.
const HEAD_BYTES: u64 = 64 << 10;

/// At most this much is read of the line with the address.
const LINE_BYTES_MAX: u64 = 1024;

/// How long a server may take to end after SIGTERM; then it is killed.
const END: Duration = Duration::from_secs(5);

impl Server {
    /// How many bytes of its program are loaded when it starts; none for a script.
    pub(crate) fn program_bytes(&self) -> Option<u64> {
        // The headers are at the beginning.
        let mut head = Vec::new();
        let file = fs::File::open(self.program().ok()?).ok()?;
        file.take(HEAD_BYTES).read_to_end(&mut head).ok()?;
        loaded_bytes(&head)
    }

    pub(crate) fn program(&self) -> Result<PathBuf, Failure> {
        Ok(programs()?.join(&self.run[0]))
    }

    /// Whether it keeps data in a folder.
    fn has_data(&self) -> bool {
        self.run.iter().any(|word| word == "{data}")
    }

    /// Whether Iggy's clients have to log in.
    pub(crate) fn has_password(&self) -> bool {
        self.run.iter().any(|word| word == "{password}")
    }

    /// The arguments of its program. `data`: the folder that it is to keep its data in. `folder`: that of the run.
    pub(crate) fn args(
        &self,
        credentials: &Credentials,
        data: &Path,
        folder: &Path,
    ) -> impl Iterator<Item = OsString> {
        self.run[1..].iter().map(move |word| match &**word {
            "{addr}" => ADDR.into(),
            "{cert}" => credentials.chain().into(),
            "{key}" => credentials.key().into(),
            "{password}" => credentials.password().into(),
            "{data}" => data.into(),
            "{objects}" => ObjectsFolder::path(folder).into(),
            word => word.into(),
        })
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

/// The folder of all programs, which this one is in.
pub(crate) fn programs() -> Result<PathBuf, Failure> {
    let own = env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find this program's folder: {error}")))?;
    own.parent().map(Into::into).ok_or_else(|| Failure::new("this program has no parent folder"))
}

/// Builds what `servers` need and `load`, one command at a time: cargo joins the features of what is built
/// together, and then a program is not what its own manifest says.
///
/// # Errors
/// A program that cannot be built. If the server is optional, because its language may not be installed, that is
/// printed instead, and its rounds will be void for want of a program.
pub(crate) fn build(servers: &[&Server]) -> Result<(), Failure> {
    let load = LOAD.map(str::to_owned);
    build_one(&load).map_err(|why| Failure::new(format!("cannot build load: {why}")))?;
    let mut built: Vec<&[String]> = Vec::new();
    for server in servers {
        if built.contains(&&*server.build) {
            continue;
        }
        built.push(&server.build);
        let Err(why) = build_one(&server.build) else { continue };
        if !server.optional {
            return Err(Failure::new(format!("cannot build {}: {why}", server.name)));
        }
        eprintln!("cannot build {}: {why}: its rounds will be void", server.name);
        // A program of an earlier build must not be measured.
        let _ = fs::remove_file(server.program()?);
    }
    Ok(())
}

/// Runs one command, in the folder that `servers.toml` is in.
fn build_one(words: &[String]) -> Result<(), String> {
    let programs = programs().map_err(|failure| failure.to_string())?;
    let target = programs.parent().unwrap_or(&programs);
    let folders = [("{programs}", programs.display()), ("{target}", target.display())];
    let words = words.iter().map(|word| {
        folders.iter().fold(word.clone(), |word, (name, folder)| {
            if word.contains(name) { word.replace(name, &folder.to_string()) } else { word }
        })
    });
    let words: Vec<_> = words.collect();
    let mut command = match &*words[0] {
        "cargo" => Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into())),
        // `Command` does not define how a relative path and `current_dir` combine.
        script if script.contains('/') => Command::new(Path::new(FOLDER).join(script)),
        program => Command::new(program),
    };
    command.args(&words[1..]).current_dir(FOLDER);
    forget_package(&mut command);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}`: {status}", words.join(" "))),
        Err(error) => Err(format!("`{}`: {error}", words.join(" "))),
    }
}

/// Removes the variables that `cargo run` sets for this package. Some build scripts (ring's) would take them for a
/// change, and their dependants would be rebuilt each time.
fn forget_package(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let named = name.to_string_lossy();
        if named.starts_with("CARGO_PKG_") || named.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
}

/// The first core that a server runs on, how many it has, and the folder for its stderr.
#[derive(Clone, Copy)]
pub(crate) struct Placement<'a> {
    pub(crate) core: usize,
    pub(crate) cores: usize,
    pub(crate) folder: &'a Path,
}

/// A running server. Dropping this ends it.
pub(crate) struct Running {
    process: Child,
    pub(crate) addr: SocketAddr,
    /// All its addresses, this one first.
    pub(crate) addrs: Vec<SocketAddr>,
    /// The time from its start to its start-up line.
    pub(crate) startup: Duration,
    /// It is removed after the process has ended.
    data: Option<DataFolder>,
}

impl Running {
    /// Starts a server, which may open at most `open_files` files if that is given. It has the credentials, and a folder
    /// for its data in `folder`, if its command line names them.
    ///
    /// # Errors
    /// When it does not print its address in time, with the first line of its stderr.
    pub(crate) fn start(
        server: &Server,
        credentials: &Credentials,
        place: Placement<'_>,
        open_files: Option<u32>,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let program = server.program()?;
        let mut command = match open_files {
            None => Command::new(&program),
            Some(files) => {
                let [shell, words @ ..] = limited(files);
                let mut shell = Command::new(shell);
                shell.args(words).arg(&program);
                shell
            }
        };
        let cannot = |error: io::Error| Failure::new(format!("cannot make room for data: {error}"));
        let folder = place.folder;
        let data = server.has_data().then(|| DataFolder::within(folder));
        let data = data.transpose().map_err(cannot)?;
        let data_path = data.as_ref().map_or(folder, DataFolder::path);
        command.args(server.args(credentials, data_path, folder));
        let running = Self::spawn(command, &server.name, 1, place, interrupt)?;
        Ok(running.with_data(data))
    }

    /// Starts a server that prints so many lines with an address. Its stderr goes to a file in the folder.
    ///
    /// # Errors
    /// When it does not print them in time, with the first line of its stderr.
    pub(crate) fn spawn(
        mut command: Command,
        name: &str,
        lines: usize,
        Placement { core, cores, folder }: Placement<'_>,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let cannot = |why: String| Failure::new(format!("cannot start {name}: {why}"));
        let stderr_file = folder.join(SERVER_STDERR);
        // A server of this run that is alive may still write to the last one.
        let _ = fs::remove_file(&stderr_file);
        let stderr = fs::File::create(&stderr_file)
            .map_err(|error| cannot(format!("{}: {error}", stderr_file.display())))?;
        command.stderr(stderr);
        Self::spawn_logging(command, lines, core..core + cores, interrupt).map_err(|why| {
            let output = fs::read_to_string(&stderr_file).unwrap_or_default();
            cannot(output.lines().next().map_or(why, str::to_owned))
        })
    }

    /// The same, with the stderr that the command has.
    pub(crate) fn spawn_logging(
        mut command: Command,
        lines: usize,
        cores: Range<usize>,
        interrupt: &Interrupt,
    ) -> Result<Self, String> {
        command.stdout(Stdio::piped());
        let began = Instant::now();
        let mut process = on_cores(cores, || command.spawn())
            .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
        let stdout = process.stdout.take().expect("it is piped");
        let mut stdout = BufReader::new(stdout.take(LINE_BYTES_MAX * lines as u64));
        let mut addrs = Vec::new();
        while addrs.len() < lines {
            let Some(addr) = next_addr(&mut stdout, interrupt) else {
                let _ = process.kill();
                let _ = process.wait();
                return Err("it printed no address".to_owned());
            };
            addrs.push(addr);
        }
        Ok(Self { process, addr: addrs[0], addrs, startup: began.elapsed(), data: None })
    }

    fn with_data(mut self, data: Option<DataFolder>) -> Self {
        self.data = data;
        self
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Stops it until [`resume`](Self::resume).
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.id().cast_signed());
        // A server that has ended does not need it.
        let _ = pid.map(|pid| kill_process(pid, signal));
    }
}

impl Running {
    /// Tells it to end and waits until it has, at most [`END`]; then it is killed.
    pub(crate) fn end(&mut self) {
        if !matches!(self.process.try_wait(), Ok(None)) {
            return; // its number may be that of another process by now
        }
        self.signal(Signal::TERM);
        self.resume();
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

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// The address in the next line that has one, `listening NAME ADDR`; none when that does not come in time.
fn next_addr(
    stdout: &mut BufReader<io::Take<ChildStdout>>,
    interrupt: &Interrupt,
) -> Option<SocketAddr> {
    loop {
        // The server writes a line at once: what is readable is a whole line, or the end of stream.
        let is_there = !stdout.buffer().is_empty()
            || interrupt.wait_readable(stdout.get_ref().get_ref(), START).is_ok_and(|it| it);
        let mut line = String::new();
        if !is_there || stdout.read_line(&mut line).is_err() || line.is_empty() {
            return None;
        }
        if line.starts_with("listening ") {
            return line.split_whitespace().nth(2)?.parse().ok();
        }
    }
}

/// The words before a program's name that limit its open files.
pub(crate) fn limited(open_files: u32) -> [String; 3] {
    let limited = format!("ulimit -n {open_files} && exec \"$0\" \"$@\"");
    ["sh".to_owned(), "-c".to_owned(), limited]
}

/// Calls `start` on a core, which what it starts inherits.
pub(crate) fn on_core<T>(core: usize, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    on_cores(core..core + 1, start)
}

fn on_cores<T>(cores: Range<usize>, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = sched_getaffinity(None)?;
    let mut set = CpuSet::new();
    cores.for_each(|core| set.set(core));
    sched_setaffinity(None, &set)?;
    let started = start();
    sched_setaffinity(None, &before)?;
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaded_bytes_are_a_part_of_the_file() {
        let own = fs::read(env::current_exe().unwrap()).unwrap();
        let loaded = loaded_bytes(&own).unwrap();
        assert!(loaded > 100_000 && loaded < own.len() as u64, "{loaded} of {}", own.len());
        assert_eq!(loaded_bytes(b"#!/bin/sh"), None);
        assert_eq!(loaded_bytes(&own[..64]), Some(0));
    }
}
