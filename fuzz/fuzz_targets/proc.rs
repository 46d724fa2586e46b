//! The parsers of /proc and netlink do not panic whatever they read, and neither does the verdict on the result.
#![no_main]

use libfuzzer_sys::fuzz_target;
use owned_io_stalls::evidence::{Evidence, Look, Thread};
use owned_io_stalls::judge;
use owned_io_stalls::proc::{machine, maps, net, ring, socket, thread};

fuzz_target!(|bytes: &[u8]| {
    let mut sockets = Vec::new();
    let _ = socket::parse(bytes, &mut sockets);
    assert!(sockets.len() * 72 <= bytes.len());

    let text = String::from_utf8_lossy(bytes);
    let _ = thread::parse_stat(&text);
    let times = thread::parse_schedstat(&text);
    let syscall = thread::parse_syscall(&text);
    assert!(thread::parse_kernel_stack(&text).len() <= 32);
    assert!(maps::parse(&text).count() <= text.lines().count());
    let counter = net::parse_netstat(&text, "TcpExt", "ListenOverflows");
    let _ = (net::parse_time_wait(&text), net::parse_local_ports(&text));
    let _ = (machine::parse_pressure(&text), machine::parse_steal(&text), machine::parse_throttled(&text));
    let _ = machine::parse_cgroup(&text, "cpu");
    let ring = ring::parse(0, &text);
    assert!(ring.as_ref().is_none_or(|ring| ring.unsubmitted.len() <= 16));

    let mut found = Thread::default();
    (found.ran_ms, found.waited_ms, found.syscall) = (times.map(|it| it.0), times.map(|it| it.1), syscall);
    let mut look = Look::default();
    (look.listen_overflows, look.rings) = (counter, ring.into_iter().collect());
    let mut evidence = Evidence::default();
    (evidence.late_ms, evidence.threads) = (counter, vec![found]);
    evidence.looks = vec![Look::default(), look];
    assert!(!judge(&evidence).findings.is_empty());
});
