//! Why the program does not start: one sentence, no panic, an exit code that is not 0.

use std::fs::{self, File, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use iggy_binary_protocol::codes::{LOGIN_USER_CODE, SEND_MESSAGES_CODE};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

use super::iggy::{Client, Directory, LOGIN, batch, password_file};
use super::server::{RUNTIMES, Server, echoed, ended, program};

/// The user without privileges. By convention it has this number everywhere.
const NOBODY: u32 = 65_534;

/// All runtimes that can be compiled in.
const ALL_RUNTIMES: [&str; 5] = ["tokio", "tokio-uring", "compio", "monoio", "glommio"];

const PROGRAM: &str = env!("CARGO_BIN_EXE_owned-io-server");

#[test]
fn a_refusal_to_start_is_one_sentence() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let file = std::env::temp_dir().join(format!("owned-io-server-{}.toml", std::process::id()));
    fs::write(&file, "echo = \"127.0.0.1:0\"\nworker = 3\n").unwrap();
    let file = file.to_str().unwrap();
    let long = format!("{file}.long");
    File::create(&long).unwrap().set_len(1 << 40).unwrap(); // of zeros, which take no space
    let runtime = RUNTIMES[0];
    for (args, sentence) in [
        (vec!["--echo", "127.0.0.1:0", "--runtime", "fusion"], "there is no runtime fusion"),
        (vec!["--runtime", runtime], "nothing to serve"),
        (vec!["--echo", "127.0.0.1:0", "--frob"], "unexpected argument '--frob'"),
        (vec!["--echo", "nowhere"], "invalid value 'nowhere'"),
        (
            vec!["--echo", "127.0.0.1:0", "--workers", "18446744073709551615"],
            "--workers is 18446744073709551615, and may be at most 1024",
        ),
        (vec!["--tcp", "127.0.0.1:0"], "--tcp needs --iggy-password-file"),
        (
            vec!["--echo", "127.0.0.1:0", "--iggy-password-file", "/dev/null"],
            "--iggy-password-file: nobody is asked for it",
        ),
        (
            vec!["--tcp", "127.0.0.1:0", "--iggy-password-file", "/dev/null"],
            "--iggy-password-file: cannot read /dev/null: it is not a regular file",
        ),
        (
            vec!["--tcp", "127.0.0.1:0", "--iggy-password-file", file, "--iggy-user", ""],
            "each is 1 to 255 bytes long",
        ),
        (vec!["--echo", "127.0.0.1:0", "--data", "x"], "--data: nobody has messages to keep"),
        (vec!["--echo", "127.0.0.1:0", "--fsync", "never"], "--fsync needs --data"),
        (vec!["--echo", "127.0.0.1:0", "--fsync", "now"], "invalid value 'now'"),
        (
            vec![
                "--runtime",
                runtime,
                "--tcp",
                "127.0.0.1:0",
                "--iggy-password-file",
                file,
                "--data",
                "/proc/version/data",
            ],
            "--data: cannot open /proc/version/data/catalogue: Not a directory",
        ),
        (vec!["--http", "127.0.0.1:0", "--origins", "a.example"], "\"a.example\" is not an origin"),
        #[cfg(feature = "tungstenite")]
        (vec!["--engine", "steam"], "invalid value 'steam'"),
        #[cfg(feature = "tungstenite")]
        (
            vec!["--http", "127.0.0.1:0", "--deflate", "shared", "--engine", "tungstenite-fixed"],
            "--deflate needs --engine native",
        ),
        (vec!["--config", file], "line 2: unknown field `worker`"),
        (vec!["--config", "/no/such/file"], "--config: cannot read /no/such/file"),
        (vec!["--config", "/dev/zero"], "--config: cannot read /dev/zero: it is not a regular"),
        (vec!["--config", &long], "it is longer than 1048576 bytes"),
        (vec!["--runtime", runtime, "--echo", &taken], "another socket has it"),
        (vec!["--runtime", runtime, "--echo", "192.0.2.1:0"], "cannot listen on 192.0.2.1:0"),
    ] {
        let said = self::sentence(program(&args));
        assert!(said.contains(sentence), "{args:?}: {said}");
    }
    fs::remove_file(file).unwrap();
    fs::remove_file(&long).unwrap();

    // With all features no runtime is absent; with the default features four are.
    for absent in ALL_RUNTIMES.iter().filter(|name| !RUNTIMES.contains(name)) {
        let said = sentence(program(&["--runtime", absent, "--echo", "127.0.0.1:0"]));
        assert!(said.contains(&format!("build with --features {absent}")), "{absent}: {said}");
    }
}

#[test]
fn a_data_directory_without_permission_is_refused() {
    let program = Program::for_nobody();
    let password = password_file("permission");
    let dir = Directory(program.0.with_extension("data"));
    fs::DirBuilder::new().mode(0o000).create(&dir.0).unwrap();
    for runtime in RUNTIMES {
        let args = [
            ["--runtime", runtime],
            ["--tcp", "127.0.0.1:0"],
            ["--iggy-password-file", password.0.to_str().unwrap()],
            ["--data", dir.0.to_str().unwrap()],
        ];
        let said = sentence(program.command(r#"exec "$0" "$@""#, args.as_flattened()));
        let culprit =
            format!("--data: cannot open {}/catalogue: Permission denied", dir.0.display());
        assert!(said.contains(&culprit), "{runtime}: {said}");
    }
}

#[test]
fn a_file_of_the_data_without_permission_is_named() {
    let program = Program::for_nobody();
    let password = password_file("permission-of-files");
    let dir = Directory(program.0.with_extension("files"));
    let options = [
        ["--tcp", "127.0.0.1:0"],
        ["--iggy-password-file", password.0.to_str().unwrap()],
        ["--data", dir.0.to_str().unwrap()],
    ];
    let options = options.as_flattened();
    let server = Server::start(RUNTIMES[0], options);
    let mut client = Client::Tcp(server.connect(0));
    assert_eq!(client.ask(LOGIN_USER_CODE, LOGIN), (0, vec![0; 4]));
    client.create();
    assert_eq!(client.ask(SEND_MESSAGES_CODE, &batch(b"kept")), (0, vec![]));
    drop(client);
    server.signal("-TERM");
    assert_eq!(server.wait(), 0);
    // The program is run by another user.
    let opened = Command::new("chmod").args(["-R", "a+rwX"]).arg(&dir.0).status();
    assert!(opened.unwrap().success());
    for runtime in RUNTIMES {
        for file in [
            "catalogue/00000000000000000000.log",
            "partitions/0",
            "partitions/0/00000000000000000000.log",
        ] {
            let path = dir.0.join(file);
            let before = fs::metadata(&path).unwrap().permissions();
            fs::set_permissions(&path, Permissions::from_mode(0o000)).unwrap();
            let args = [&["--runtime", runtime], options].concat();
            let said = sentence(program.command(r#"exec "$0" "$@""#, &args));
            let culprit = format!("--data: cannot open {}", path.display());
            let is_named = said.contains(&culprit) && said.contains(": Permission denied");
            assert!(is_named, "{runtime}: {said}");
            fs::set_permissions(&path, before).unwrap();
        }
    }
}

#[cfg(not(feature = "tls"))]
#[test]
fn tls_options_are_refused_where_tls_is_not_compiled_in() {
    let files = ["--tls-cert", "cert.pem", "--tls-key", "key.pem"];
    let said = sentence(program(&[&["--https", "127.0.0.1:0"], &files[..]].concat()));
    assert!(said.contains("build with --features tls"), "{said}");
}

/// Because a disk is full, for example.
#[test]
fn a_stderr_that_cannot_be_written_causes_no_panic() {
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let mut refused = program(&["--frob"]);
    assert_eq!(refused.stderr(full()).status().unwrap().code(), Some(1));

    let args = ["--runtime", RUNTIMES[0], "--echo", "127.0.0.1:0"];
    let server = Server::start_logging_to(full(), program(&args), &args);
    echoed(&mut server.connect(0), b"unheard");
    server.signal("-TERM");
    assert_eq!(server.wait(), 0);
}

/// As in containers whose policy forbids the system call, or pretends that there is none.
#[test]
fn a_refused_io_uring_is_explained() {
    for runtime in RUNTIMES {
        for errno in [libc::EPERM, libc::ENOSYS] {
            // A filter applies to its thread and its children, and cannot be removed.
            let thread = thread::spawn(move || {
                refuse_io_uring(errno);
                if *runtime == "tokio" {
                    let server = Server::start(runtime, &["--echo", "127.0.0.1:0"]);
                    return echoed(&mut server.connect(0), b"without io_uring");
                }
                let said = sentence(program(&["--runtime", runtime, "--echo", "127.0.0.1:0"]));
                assert!(said.contains("cannot set up io_uring: "), "{runtime}: {said}");
                assert!(said.contains(&format!("(os error {errno})")), "{runtime}: {said}");
                assert!(said.contains("run on tokio"), "{runtime}: {said}");
            });
            thread.join().unwrap();
        }
    }
}

/// As on a kernel before 6.1: settings that it does not know are invalid. A filter cannot see flags, but entries.
#[test]
fn a_kernel_that_is_too_old_for_the_tuned_ring_is_explained() {
    const TUNED_ENTRIES: u64 = 4096;
    // glommio's rings have the same flags and entries, tuned or not.
    for runtime in RUNTIMES.iter().filter(|runtime| !["tokio", "glommio"].contains(runtime)) {
        let thread = thread::spawn(move || {
            let (entries, op) = (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq);
            let condition = SeccompCondition::new(0, entries, op, TUNED_ENTRIES).unwrap();
            refuse_rings(libc::EINVAL, vec![SeccompRule::new(vec![condition]).unwrap()]);
            let said = sentence(program(&["--runtime", runtime, "--echo", "127.0.0.1:0"]));
            assert!(said.contains("too old for the ring settings"), "{runtime}: {said}");
            assert!(said.ends_with("--ring default"), "{runtime}: {said}");
            let untuned = ["--echo", "127.0.0.1:0", "--ring", "default"];
            let server = Server::start(runtime, &untuned);
            echoed(&mut server.connect(0), b"with the runtime's own ring");
        });
        thread.join().unwrap();
    }
}

#[test]
fn a_limit_on_locked_memory_that_is_too_small_is_explained() {
    let program = Program::for_nobody();
    for runtime in RUNTIMES {
        let args = ["--runtime", runtime, "--workers", "1", "--echo", "127.0.0.1:0"];
        let command = program.command("ulimit -l 0 && exec \"$0\" \"$@\"", &args);
        if *runtime == "tokio" {
            let server = Server::start_as(command, &args);
            echoed(&mut server.connect(0), b"without locked memory");
            continue;
        }
        let said = sentence(command);
        assert!(said.contains("the limit on locked memory is too small"), "{runtime}: {said}");
        assert!(said.contains("ulimit -l"), "{runtime}: {said}");
    }
}

#[test]
fn a_port_that_is_not_permitted_is_explained() {
    let first_free = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    let first_free: u16 = first_free.trim().parse().unwrap();
    assert!(first_free > 79, "needs the sysctl net.ipv4.ip_unprivileged_port_start over 79");
    let program = Program::for_nobody();
    for runtime in RUNTIMES {
        let args = ["--runtime", runtime, "--echo", "127.0.0.1:79"];
        let said = sentence(program.command("exec \"$0\" \"$@\"", &args));
        assert!(said.contains("cannot listen on 127.0.0.1:79: "), "{runtime}: {said}");
        assert!(said.contains("CAP_NET_BIND_SERVICE"), "{runtime}: {said}");
    }
}

/// What the program writes instead of starting.
fn refusal(mut command: Command) -> String {
    let command = command.env("RUST_BACKTRACE", "1").stdout(Stdio::null()).stderr(Stdio::piped());
    let (code, stderr) = ended(command.spawn().unwrap());
    assert!(code.is_some_and(|code| code != 0), "{stderr}");
    for word in ["panicked", "backtrace"] {
        assert!(!stderr.contains(word), "{stderr}");
    }
    stderr
}

/// As [`refusal`], which must be one line besides the logs.
fn sentence(command: Command) -> String {
    let stderr = refusal(command);
    let mut lines = stderr.lines().filter(|line| !line.contains(" INFO "));
    let said = lines.next().unwrap_or_default();
    assert!(said.starts_with("owned-io-server: ") && lines.next().is_none(), "{stderr}");
    said.to_owned()
}

/// Makes io_uring_setup(2) fail on this thread, and in the processes that it starts.
fn refuse_io_uring(errno: i32) {
    refuse_rings(errno, vec![]);
}

/// As [`refuse_io_uring`], for calls that one of these rules describes; without any, for all.
fn refuse_rings(errno: i32, rules: Vec<SeccompRule>) {
    let refused = SeccompAction::Errno(errno.cast_unsigned());
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let rules = [(libc::SYS_io_uring_setup, rules)].into();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    apply_filter(&program).unwrap();
}

/// A copy of the program that every user may run: the program itself may be in a folder that not every user can
/// enter. Removed when dropped.
struct Program(PathBuf);

impl Program {
    fn for_nobody() -> Self {
        static COPIES: AtomicU32 = AtomicU32::new(0);
        let number = COPIES.fetch_add(1, Ordering::Relaxed);
        let name = format!("owned-io-server-{}-{number}", std::process::id());
        let copy = Self(std::env::temp_dir().join(name));
        // Copied by another process: a child that this one starts meanwhile would inherit the copy open for writing.
        assert!(Command::new("cp").arg(PROGRAM).arg(&copy.0).status().unwrap().success());
        copy
    }

    /// Runs it by `script`, as a user without privileges where this process is root.
    fn command(&self, script: &str, args: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&self.0).args(args).current_dir("/");
        if fs::metadata("/proc/self").unwrap().uid() == 0 {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
