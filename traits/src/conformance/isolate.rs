//! Processes: one for a case that changes limits or counts descriptors, one for its peers. Both are
//! the test binary again, which finds the same test and is told by its environment what to be.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use super::peer;
use super::support::{SOON, within};
use crate::Runtime;

/// Which case this process is to run.
const CASE: &str = "OWNED_IO_CASE";
/// Which peer this process is to be.
const PEER: &str = "OWNED_IO_PEER";
/// The test that leads here, as the test harness names it.
const TEST: &str = "OWNED_IO_TEST";

/// What a line to the parent begins with, because the harness writes to the same pipe.
const LINE: &str = "@";

/// What the line begins with that says why a case failed.
const WHY: &str = "@why: ";

/// More than a case may take: by then its process has ended itself.
const PROCESS_TAKES_MAX: Duration = Duration::from_secs(180);

/// The user that may do the least; by convention the same number everywhere.
const NOBODY: u32 = 65_534;

/// Runs `case` in a process of its own, or as the peer that this process is; false when this is
/// the case's process, and the case still to be run.
///
/// # Panics
/// If the case failed.
pub(super) fn run_in_process<R: Runtime>(case: &str, module: &str, config: &R::Config) -> bool {
    if let Ok(role) = env::var(PEER) {
        peer::run::<R>(&role, config);
        return true;
    }
    if env::var(CASE).is_ok_and(|this| this == case) {
        return false;
    }
    let (_crate, module) = module.split_once("::").expect("a module within a crate");
    let name = case.rsplit("::").next().expect("a name");
    let test = format!("{module}::{name}");
    let mut command = test_command(env::current_exe().expect("our own path"), &test);
    let child = command.env(CASE, case).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Process(child.spawn().expect("to start a process"));
    let (stdout, stderr) = (child.0.stdout.take(), child.0.stderr.take());
    let stdout = thread::spawn(move || std::io::read_to_string(stdout.expect("piped")));
    let stderr = thread::spawn(move || std::io::read_to_string(stderr.expect("piped")));
    let deadline = Instant::now() + PROCESS_TAKES_MAX;
    let status = loop {
        if let Some(status) = child.0.try_wait().expect("our own child") {
            break status;
        }
        assert!(Instant::now() < deadline, "{case}: its process did not end");
        thread::sleep(Duration::from_millis(10));
    };
    let output = |thread: thread::JoinHandle<std::io::Result<String>>| {
        thread.join().expect("no panic").unwrap_or_default()
    };
    let (stdout, stderr) = (output(stdout), output(stderr));
    if !status.success() {
        let why = stdout.lines().find_map(|line| line.split_once(WHY));
        let why = why.map_or("its process ended without saying why", |(_, why)| why);
        panic!(
            "{why}\n{case}: its process ended with {status}, and this output:\n{stdout}{stderr}"
        );
    }
    assert!(stdout.contains("1 passed"), "{case}: its process ran no test\n{stdout}{stderr}");
    true
}

/// A peer of the case, in a process of its own. Ended when dropped.
pub(super) struct Peer {
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    _process: Process,
    _program: Option<Program>,
}

impl Peer {
    /// Starts the peer of this name; see [`peer::run`].
    pub(super) fn start(role: &str) -> Self {
        Self::spawn(test_command(env::current_exe().expect("our own path"), &test()), role, None)
    }

    /// The same, as a user without privileges where this process is root.
    pub(super) fn start_as_nobody(role: &str) -> Self {
        // The binary may be in a folder that this user cannot enter.
        let program = Program::copied();
        let mut command = test_command(program.0.clone(), &test());
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.current_dir("/");
        Self::spawn(command, role, Some(program))
    }

    fn spawn(mut command: Command, role: &str, program: Option<Program>) -> Self {
        command.env_remove(CASE).env(PEER, role).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process(command.spawn().expect("to start a process"));
        let stdin = process.0.stdin.take();
        let stdout = BufReader::new(process.0.stdout.take().expect("piped"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // The harness does not end its own line before the test begins.
                if let Some((_, line)) = line.split_once(LINE)
                    && sender.send(line.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        Self { stdin, lines, _process: process, _program: program }
    }

    /// Gives the peer a command.
    pub(super) fn send(&mut self, command: &str) {
        let stdin = self.stdin.as_mut().expect("not closed");
        writeln!(stdin, "{command}").expect("the peer lives");
    }

    /// The peer's next line, while the runtime goes on; `limit` is how long it may take.
    pub(super) async fn receive<R: Runtime>(&mut self, limit: Duration) -> String {
        let heard = within::<R, _>(limit, async {
            loop {
                match self.lines.try_recv() {
                    Ok(line) => return line,
                    Err(TryRecvError::Empty) => R::sleep(Duration::from_millis(2)).await,
                    Err(TryRecvError::Disconnected) => panic!("the peer has ended"),
                }
            }
        });
        heard.await.unwrap_or_else(|| panic!("the peer said nothing in {limit:?}"))
    }

    /// The peer's next line, where no runtime runs.
    pub(super) fn receive_blocking(&mut self) -> String {
        self.lines.recv_timeout(SOON).expect("the peer says something")
    }

    /// Gives a command and waits for the answer.
    pub(super) async fn request<R: Runtime>(&mut self, command: &str) -> String {
        self.send(command);
        self.receive::<R>(super::CASE_TAKES_MAX / 2).await
    }
}

/// Says why the case failed, on one line, to the process that started this one.
pub(super) fn report_failure(why: &str) {
    println!("{WHY}{}", why.lines().map(str::trim).collect::<Vec<_>>().join("; "));
}

/// Says a line to the process that started this one.
pub(super) fn send_line(line: &str) {
    println!("{LINE}{line}");
}

fn test() -> String {
    env::var(TEST).expect("within an isolated case")
}

fn test_command(program: PathBuf, test: &str) -> Command {
    let mut command = Command::new(program);
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(TEST, test);
    command
}

/// Killed, and waited for, when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A copy of this binary that everybody may run. Removed when dropped.
struct Program(PathBuf);

impl Program {
    fn copied() -> Self {
        let copy = env::temp_dir().join(format!("owned-io-peer-{}", std::process::id()));
        fs::copy(env::current_exe().expect("our own path"), &copy).expect("to copy the binary");
        Self(copy)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
