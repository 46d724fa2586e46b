//! What the figures were measured on.

use std::fs;
use std::process::Command;
use std::thread;

use serde::{Deserialize, Serialize};

/// The machine, the kernel, the compiler and the code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Host {
    processor: String,
    cores: usize,
    kernel: String,
    compiler: String,
    commit: String,
    pub(crate) date: String,
}

impl Host {
    pub(crate) fn here() -> Self {
        let unknown = || "unknown".to_owned();
        let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = processors.lines().find_map(|line| line.strip_prefix("model name"));
        Self {
            processor: processor
                .map_or_else(unknown, |name| name.trim_start_matches([':', ' ', '\t']).to_owned()),
            cores: thread::available_parallelism().map_or(0, usize::from),
            kernel: said("uname", &["-sr"]),
            compiler: said("rustc", &["--version"]),
            commit: said("git", &["describe", "--always", "--dirty"]),
            date: said("date", &["-u", "+%Y-%m-%dT%H-%M-%SZ"]),
        }
    }

    /// All but the date.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        *self == Self { date: self.date.clone(), ..other.clone() }
    }

    pub(crate) fn sentence(&self) -> String {
        let Self { processor, cores, kernel, compiler, commit, date } = self;
        format!("{date}, commit {commit}, {compiler}, {kernel}, {cores} cores of {processor}")
    }

    /// Each fact by its name.
    pub(crate) fn facts(&self) -> [(&'static str, String); 6] {
        [
            ("Measured", self.date.clone()),
            ("Commit", self.commit.clone()),
            ("Compiler", self.compiler.clone()),
            ("Kernel", self.kernel.clone()),
            ("Processor", self.processor.clone()),
            ("Cores", self.cores.to_string()),
        ]
    }
}

/// What a program says, on one line.
fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let said = output.ok().filter(|output| output.status.success());
    said.map_or_else(
        || "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}
