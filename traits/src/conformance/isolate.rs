//! Processes: one for each case that changes limits or counts descriptors, and one for its peers. Both run the
//! test binary with the same test, and an environment variable selects the role.

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

/// Environment variable: the case that this process runs.
const CASE: &str = "OWNED_IO_CASE";
/// Environment variable: the role of this peer process.
const PEER: &str = "OWNED_IO_PEER";
/// Environment variable: the name of the test in the test harness.
const TEST: &str = "OWNED_IO_TEST";

/// The prefix of lines to the parent. The harness writes to the same pipe.
const LINE: &str = "@";

/// The prefix of the line with the reason of a failure.
const WHY: &str = "@why: ";

/// Longer than the time limit of a case, so its process normally ends itself.
const PROCESS_TAKES_MAX: Duration = Duration::from_secs(180);

/// The unprivileged user `nobody`, which has the same id everywhere by convention.
const NOBODY: u32 = 65_534;

/// Runs `case` in its own process, or runs the peer if this is a peer process. Returns false if this is the
/// process of the case: then the caller has to run the case.
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
    let mut child = Process(child.spawn().expect("expected to start a process"));
    let (stdout, stderr) = (child.0.stdout.take(), child.0.stderr.take());
    let stdout = thread::spawn(move || std::io::read_to_string(stdout.expect("piped")));
    let stderr = thread::spawn(move || std::io::read_to_string(stderr.expect("piped")));
    let deadline = Instant::now() + PROCESS_TAKES_MAX;
    let status = loop {
        if let Some(status) = child.0.try_wait().expect("our own child") {
            break status;
        }
        assert!(
            Instant::now() < deadline,
            "expected the process of {case} to end within {PROCESS_TAKES_MAX:?}; seen: it runs"
        );
        thread::sleep(Duration::from_millis(10));
    };
    let output = |thread: thread::JoinHandle<std::io::Result<String>>| {
        thread.join().expect("no panic").unwrap_or_default()
    };
    let (stdout, stderr) = (output(stdout), output(stderr));
    if !status.success() {
        let why = stdout.lines().find_map(|line| line.split_once(WHY));
        let why = why.map_or("its process ended without a reason", |(_, why)| why);
        panic!(
            "{why}\n{case}: its process ended with {status}, and this output:\n{stdout}{stderr}"
        );
    }
    assert!(stdout.contains("1 passed"), "{case}: its process ran no test\n{stdout}{stderr}");
    true
}

/// A peer of the case, in its own process. Dropping it ends the process.
pub(super) struct Peer {
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    _process: Process,
    _program: Option<Program>,
}

impl Peer {
    /// Starts the peer of this role. See [`peer::run`].
    pub(super) fn start(role: &str) -> Self {
        Self::spawn(test_command(env::current_exe().expect("our own path"), &test()), role, None)
    }

    /// Starts the peer of this role. If this process is root, the peer runs as an unprivileged user.
    pub(super) fn start_unprivileged(role: &str) -> Self {
        // The binary may be in a directory that this user cannot enter.
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
        let mut process = Process(command.spawn().expect("expected to start a process"));
        let stdin = process.0.stdin.take();
        let stdout = BufReader::new(process.0.stdout.take().expect("piped"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // The harness does not end its own line before the test starts.
                if let Some((_, line)) = line.split_once(LINE)
                    && sender.send(line.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        Self { stdin, lines, _process: process, _program: program }
    }

    /// Sends a command to the peer.
    pub(super) fn send(&mut self, command: &str) {
        let stdin = self.stdin.as_mut().expect("not closed");
        writeln!(stdin, "{command}").expect("the peer lives");
    }

    /// Waits up to `limit` for the next line of the peer. The runtime continues.
    pub(super) async fn receive<R: Runtime>(&mut self, limit: Duration) -> String {
        let heard = within::<R, _>(limit, async {
            loop {
                match self.lines.try_recv() {
                    Ok(line) => return line,
                    Err(TryRecvError::Empty) => R::sleep(Duration::from_millis(2)).await,
                    Err(TryRecvError::Disconnected) => {
                        panic!("expected a line of the peer; seen: it has ended")
                    }
                }
            }
        });
        heard
            .await
            .unwrap_or_else(|| panic!("expected a line of the peer within {limit:?}; seen: none"))
    }

    /// Waits for the next line of the peer, without a runtime.
    pub(super) fn receive_blocking(&mut self) -> String {
        self.lines.recv_timeout(SOON).expect("expected a line of the peer")
    }

    /// Sends a command and waits for the answer.
    pub(super) async fn request<R: Runtime>(&mut self, command: &str) -> String {
        self.send(command);
        self.receive::<R>(super::CASE_TAKES_MAX / 2).await
    }
}

/// Prints the reason of a failure on one line, for the parent process.
pub(super) fn report_failure(why: &str) {
    println!("{WHY}{}", why.lines().map(str::trim).collect::<Vec<_>>().join("; "));
}

/// Prints a line for the parent process.
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

/// Dropping it kills the process and waits for its end.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A copy of this binary that every user can execute. Dropping it removes the file.
struct Program(PathBuf);

impl Program {
    fn copied() -> Self {
        let copy = env::temp_dir().join(format!("owned-io-peer-{}", std::process::id()));
        fs::copy(env::current_exe().expect("our own path"), &copy)
            .expect("expected to copy the binary");
        Self(copy)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
