//! What can be seen of a server from outside: its accept queue, its descriptors, how long it waits for a CPU, and what
//! its `/stalls` says.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::record::{self, Incident};
use super::scheduler::Threads;
use crate::matrix::program::on_core;

/// How often the server is looked at.
const SAMPLE: Duration = Duration::from_millis(50);

/// How often it is asked for its incidents.
const ASK: Duration = Duration::from_millis(500);

/// More samples are not kept. That is more than a run of 20 minutes has.
const SAMPLES_MAX: usize = 25_000;

/// What a server has at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sample {
    pub(crate) unix_ms: f64,
    /// Connections that wait for accept.
    pub(crate) queue: u32,
    pub(crate) descriptors: u32,
    /// How long its worker was ready to run and had no CPU, since the sample before. The first has that from its start.
    pub(crate) cpu_wait_ms: f64,
}

/// All that was seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) samples: Vec<Sample>,
    /// None if the server has no such page, or has not answered once.
    pub(crate) incidents: Option<Vec<Incident>>,
    /// It may have such a page, and has not answered once.
    pub(crate) is_mute: bool,
    /// How many clients the full accept queues of its network namespace dropped; none if that cannot be read.
    pub(crate) listen_overflows: Option<u64>,
}

/// Looks at a server from a thread of its own, until it is finished or dropped.
pub(crate) struct Watch {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Seen>>,
}

impl Watch {
    /// Begins to look at the process `pid`, which listens at `addr` and may have a page of incidents at `admin`. It
    /// runs on `core`, which is not that of the server.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(
        pid: u32,
        addr: SocketAddr,
        admin: Option<SocketAddr>,
        core: usize,
    ) -> io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&is_over);
        let watch = thread::Builder::new().name("watch".to_owned());
        let thread = on_core(core, || watch.spawn(move || look(pid, addr.port(), admin, &until)))?;
        Ok(Self { is_over, thread: Some(thread) })
    }

    /// Ends it, and returns what it has seen.
    pub(crate) fn finish(mut self) -> Seen {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<Seen> {
        self.is_over.store(true, Relaxed);
        self.thread.take()?.join().ok()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

fn look(pid: u32, port: u16, mut admin: Option<SocketAddr>, is_over: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    let mut threads = Threads::of(pid);
    let mut asked: Option<Instant> = None;
    let overflows_before = listen_overflows(pid);
    while !is_over.load(Relaxed) && seen.samples.len() < SAMPLES_MAX {
        seen.samples.push(Sample {
            unix_ms: unix_ms(),
            queue: queue(pid, port).unwrap_or(0),
            descriptors: descriptors(pid).unwrap_or(0),
            cpu_wait_ms: threads.waited_ms(),
        });
        if asked.is_none_or(|asked| asked.elapsed() >= ASK) {
            asked = Some(Instant::now());
            admin = admin.filter(|admin| ask(*admin, &mut seen.incidents));
        }
        thread::sleep(SAMPLE);
    }
    // What it found last.
    admin = admin.filter(|admin| ask(*admin, &mut seen.incidents));
    seen.is_mute = admin.is_some() && seen.incidents.is_none();
    let overflows = listen_overflows(pid).zip(overflows_before);
    seen.listen_overflows = overflows.map(|(now, before)| now.saturating_sub(before));
    seen
}

/// Asks for the incidents, and adds them to those that are known. False if the server has no such page.
fn ask(admin: SocketAddr, known: &mut Option<Vec<Incident>>) -> bool {
    match record::ask(admin) {
        Ok(Some(incidents)) => {
            let known = known.get_or_insert_default();
            for incident in incidents {
                record::add(known, incident, unix_ms());
            }
            true
        }
        Ok(None) => false,
        // It may be stalled.
        Err(_) => true,
    }
}

/// The accept queues of the listeners on `port`, in the network namespace of the process, together.
fn queue(pid: u32, port: u16) -> io::Result<u32> {
    let lines = BufReader::new(File::open(format!("/proc/{pid}/net/tcp"))?).lines();
    // The listeners are the first in the file, and there may be thousands of connections after them.
    let listeners = lines.skip(1).map_while(|line| listener(&line.ok()?));
    Ok(listeners.filter(|(of, _)| *of == port).map(|(_, queue)| queue).sum())
}

/// The port and the accept queue in a line of /proc/net/tcp; none if it is no listener.
fn listener(line: &str) -> Option<(u16, u32)> {
    const LISTEN: &str = "0A";
    let mut words = line.split_whitespace().skip(1);
    let (_, port) = words.next()?.rsplit_once(':')?;
    let state = words.nth(1)?;
    let (_, queue) = words.next()?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let queue = u32::from_str_radix(queue, 16).ok()?;
    (state == LISTEN).then_some((port, queue))
}

/// `ListenOverflows` of the network namespace of the process.
fn listen_overflows(pid: u32) -> Option<u64> {
    tcp_counter(&fs::read_to_string(format!("/proc/{pid}/net/netstat")).ok()?, "ListenOverflows")
}

/// A counter in a text like /proc/net/netstat, which has a line of names and below it one of values.
fn tcp_counter(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let column = lines.next()?.split(' ').position(|known| known == name)?;
    lines.next()?.split(' ').nth(column)?.parse().ok()
}

fn descriptors(pid: u32) -> io::Result<u32> {
    let folder = format!("/proc/{pid}/fd");
    // Since Linux 6.2 its size is the number of descriptors. To list thousands of them takes a millisecond.
    let count = match fs::metadata(&folder)?.len() {
        0 => fs::read_dir(&folder)?.count() as u64,
        count => count,
    };
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}

/// The time in ms since 1970.
pub(crate) fn unix_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::process;

    use socket2::{Domain, Socket, Type};

    use super::*;

    #[test]
    fn a_line_is_a_listener_or_none() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000011 00:00000000 00000000 0";
        assert_eq!(listener(line), Some((8080, 17)));
        assert_eq!(listener(&line.replace(" 0A ", " 01 ")), None);
        assert_eq!(listener("  sl  local_address rem_address   st tx_queue rx_queue"), None);
        assert_eq!(listener(""), None);
    }

    #[test]
    fn a_server_that_never_answers_is_no_server_without_the_page() {
        let mute = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = mute.local_addr().unwrap();
        let look = |admin| Watch::start(process::id(), addr, admin, 0).unwrap().finish().is_mute;
        assert!(look(Some(addr)) && !look(None));
    }

    #[test]
    fn who_is_not_accepted_waits_in_the_queue() {
        let waiting = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = waiting.local_addr().unwrap();
        let _clients = [TcpStream::connect(addr).unwrap(), TcpStream::connect(addr).unwrap()];
        let watch = Watch::start(process::id(), addr, None, 0).unwrap();
        thread::sleep(SAMPLE);
        let seen = watch.finish();
        assert_eq!(seen.samples[0].queue, 2);
        assert!(seen.samples[0].descriptors > 2 && seen.incidents.is_none());
    }

    #[test]
    fn who_finds_the_queue_full_is_counted() {
        let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let full = socket();
        full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        full.listen(0).unwrap();
        let addr = full.local_addr().unwrap();
        let watch = Watch::start(process::id(), addr.as_socket().unwrap(), None, 0).unwrap();
        thread::sleep(SAMPLE);
        // The queue has room for one.
        let clients: Vec<_> = (0..8).map(|_| socket()).collect();
        for client in &clients {
            client.set_nonblocking(true).unwrap();
            client.connect(&addr).unwrap_err(); // it is in progress
        }
        thread::sleep(SAMPLE);
        assert!(watch.finish().listen_overflows.unwrap() > 0);
    }

    #[test]
    fn a_counter_is_below_its_name() {
        let text = "TcpExt: A ListenOverflows\nTcpExt: 1 26\nIpExt: B\nIpExt: 9\n";
        assert_eq!(tcp_counter(text, "ListenOverflows"), Some(26));
        assert_eq!(tcp_counter(text, "B"), None);
        assert_eq!(tcp_counter("TcpExt: A B\nTcpExt: 1\n", "B"), None);
    }
}
