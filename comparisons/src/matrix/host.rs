//! The machine and the versions that were measured.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;
use std::thread;

use serde::{Deserialize, Serialize};

use super::servers::Server;
use super::versions;

/// Where Linux says which congestion control new TCP connections have (tcp(7)).
const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// The machine, the kernel, the compiler, the code and what it is compared with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Host {
    processor: String,
    cores: usize,
    kernel: String,
    /// The congestion control of new TCP connections. Empty in results of before 2026-11-28, which lack it.
    #[serde(default)]
    congestion_control: String,
    compiler: String,
    commit: String,
    versions: Vec<String>,
    pub(crate) date: String,
}

impl Host {
    /// This machine, and what is measured on it.
    pub(crate) fn of(servers: &[&Server]) -> Self {
        let unknown = || "unknown".to_owned();
        let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = processors.lines().find_map(|line| line.strip_prefix("model name"));
        Self {
            processor: processor
                .map_or_else(unknown, |name| name.trim_start_matches([':', ' ', '\t']).to_owned()),
            cores: thread::available_parallelism().map_or(0, usize::from),
            kernel: output_of("uname", &["-sr"]),
            congestion_control: fs::read_to_string(CONGESTION_CONTROL)
                .map_or_else(|_| unknown(), |name| name.trim().to_owned()),
            compiler: output_of("rustc", &["--version"]),
            commit: commit(),
            versions: versions::of(servers),
            date: output_of("date", &["-u", "+%Y-%m-%dT%H-%M-%SZ"]),
        }
    }

    /// Whether all but the date is equal.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        *self == Self { date: self.date.clone(), ..other.clone() }
    }

    /// What on this machine makes figures less certain than they could be.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        (self.congestion_control == "bbr").then_some(
            "TCP's congestion control is bbr, which paces what is sent: large messages cost up to 2.5 times as much, and \
             differ more from start to start. `sysctl -w net.ipv4.tcp_congestion_control=cubic` avoids that.",
        )
    }

    pub(crate) fn sentence(&self) -> String {
        let Self { processor, cores, kernel, compiler, commit, date, .. } = self;
        let tcp = match self.congestion_control.as_str() {
            "" => String::new(),
            name => format!(", TCP {name}"),
        };
        format!("{date}, commit {commit}, {compiler}, {kernel}{tcp}, {cores} cores of {processor}")
    }

    /// The versions of what is compared and of what builds it.
    pub(crate) fn versions(&self) -> String {
        self.versions.join(", ")
    }

    /// Each known fact by its name.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![
            ("Measured", self.date.clone()),
            ("Commit", self.commit.clone()),
            ("Compiler", self.compiler.clone()),
            ("Kernel", self.kernel.clone()),
            ("TCP congestion control", self.congestion_control.clone()),
            ("Processor", self.processor.clone()),
            ("Cores", self.cores.to_string()),
            ("Versions", self.versions()),
        ];
        facts.retain(|(_, fact)| !fact.is_empty());
        facts
    }
}

/// The commit, with a hash of uncommitted changes: a run with other changes measures other code.
fn commit() -> String {
    let described = output_of("git", &["describe", "--always", "--dirty"]);
    if !described.ends_with("-dirty") {
        return described;
    }
    let mut changes = DefaultHasher::new();
    output_of("git", &["diff", "HEAD"]).hash(&mut changes);
    format!("{described}-{:08x}", changes.finish() as u32)
}

/// The output of a program, or "unknown".
fn output_of(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let output = output.ok().filter(|output| output.status.success());
    output.map_or_else(
        || "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}
