//! A network namespace for one run: its own loopback and local ports, which nothing else on the machine uses.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::Failure;
use super::plan::Network;
use crate::matrix::interrupt::Interrupt;

/// How long it may take to set it up.
const SET_UP: Duration = Duration::from_secs(5);

/// What keeps the namespace ends by itself after so many seconds, if nobody ends it.
const KEPT_SECONDS: u32 = 3_600;

/// At most this much is read of the line that says that it is there.
const LINE_BYTES_MAX: u64 = 64;

/// A slow link sends so many bytes at once: a packet of loopback.
const BURST_BYTES: u32 = 128 << 10;

/// So many bytes may wait for a slow link: more than the connections of a scenario send before an answer.
const QUEUE_BYTES: u32 = 64 << 20;

/// A namespace. Dropping this ends what keeps it; it is gone with the last process in it.
pub(crate) struct Namespace {
    keeper: Child,
}

impl Namespace {
    /// Creates it, in a user namespace of its own, so that this needs no privilege.
    ///
    /// # Errors
    /// When the kernel does not permit it, or `unshare` (util-linux) `ip` or `tc` (iproute2) is missing.
    pub(crate) fn create(network: Network, interrupt: &Interrupt) -> Result<Self, Failure> {
        let cannot = |why: String| {
            Failure::new(format!(
                "cannot set up a network namespace, which needs unshare, ip, tc and permission for user \
                 namespaces: {why}"
            ))
        };
        let Network { first_port, last_port, mbit_per_s } = network;
        let slow = mbit_per_s.map_or_else(String::new, |mbit| {
            // A token bucket, which no packet is lost in.
            format!("tc qdisc add dev lo root tbf rate {mbit}mbit burst {BURST_BYTES} limit {QUEUE_BYTES} && ")
        });
        let script = format!(
            "{slow}ip link set lo up && echo '{first_port} {last_port}' >/proc/sys/net/ipv4/ip_local_port_range \
             && echo ready && exec sleep {KEPT_SECONDS}"
        );
        let mut keeper = Command::new("unshare")
            .args(["--user", "--map-root-user", "--net", "sh", "-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| cannot(error.to_string()))?;
        let stdout = keeper.stdout.take().expect("it is piped");
        let namespace = Self { keeper };
        let is_readable = interrupt.wait_readable(&stdout, SET_UP);
        let mut line = String::new();
        let read = BufReader::new(stdout.take(LINE_BYTES_MAX));
        match is_readable.and_then(|it| if it { { read }.read_line(&mut line) } else { Ok(0) }) {
            Ok(_) if line == "ready\n" => Ok(namespace),
            Ok(_) => Err(cannot("it is not ready".to_owned())),
            Err(error) => Err(cannot(error.to_string())),
        }
    }

    /// The words before a program's name that run it there.
    pub(crate) fn entered(&self) -> [String; 6] {
        let target = self.keeper.id().to_string();
        ["nsenter", "--target", &target, "--user", "--net", "--preserve-credentials"]
            .map(str::to_owned)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_its_ports_or_says_what_it_needs() {
        let network =
            Network { first_port: 40_000, last_port: 40_009, mbit_per_s: 1_000.try_into().ok() };
        match Namespace::create(network, &Interrupt::never()) {
            Ok(namespace) => {
                let [enter, words @ ..] = namespace.entered();
                let range = "/proc/sys/net/ipv4/ip_local_port_range";
                let output = Command::new(enter).args(words).args(["cat", range]).output().unwrap();
                let text = String::from_utf8(output.stdout).unwrap();
                let ports: Vec<_> = text.split_whitespace().collect();
                assert_eq!(ports, ["40000", "40009"]);
            }
            Err(why) => {
                let why = why.to_string();
                assert!(why.contains("permission for user namespaces"), "{why}");
            }
        }
    }
}
