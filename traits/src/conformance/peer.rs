//! The peer process of an isolated case: blocking sockets of the standard library, controlled by one command
//! per line.

use std::collections::VecDeque;
use std::io::{Read, Write, stdin};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

use super::isolate::send_line;
use super::support::loopback;
use crate::Runtime;

/// The time limit of each read and write, so that a peer ends in any case.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the peer of this role until its standard input is closed:
///
/// - `clients ADDR`: opens connections by command. See [`Clients::execute`].
/// - `listener`: listens on a port with `SO_REUSEPORT`, and prints its address.
/// - `block_on`: sets the limit on locked memory to zero, starts the runtime, and prints the result.
/// - `bind ADDR`: binds the address through the runtime, and prints the result.
pub(super) fn run<R: Runtime>(role: &str, config: &R::Config) {
    match role.split_once(' ').unwrap_or((role, "")) {
        ("clients", addr) => {
            let mut clients =
                Clients { addr: addr.parse().expect("an address"), open: VecDeque::new() };
            for command in stdin().lines() {
                let Ok(command) = command else { return };
                clients.execute(&command);
            }
        }
        ("listener", _) => {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            socket.set_reuse_port(true).expect("expected to share the port");
            socket.bind(&loopback().addr.into()).expect("a free port");
            socket.listen(1).expect("expected to listen");
            let addr = socket.local_addr().expect("bound").as_socket().expect("an IP address");
            send_line(&addr.to_string());
            let _ = std::io::read_to_string(stdin());
        }
        ("block_on", _) => {
            use rustix::process::{Resource, Rlimit, setrlimit};
            let none = Rlimit { current: Some(0), maximum: Some(0) };
            setrlimit(Resource::Memlock, none).expect("a limit may always be lowered");
            let outcome = R::block_on(config.clone(), async {});
            let ok = if may_lock_memory() { "ok, with CAP_IPC_LOCK" } else { "ok" };
            send_line(&outcome.map_or_else(|error| error.to_string(), |()| ok.to_owned()));
        }
        ("bind", addr) => {
            let mut options = loopback();
            options.addr = addr.parse().expect("an address");
            let outcome = R::bind(options);
            send_line(
                &outcome.map_or_else(
                    |error| format!("{:?}: {error}", error.kind()),
                    |_| "ok".to_owned(),
                ),
            );
        }
        (role, _) => panic!("there is no peer {role}"),
    }
}

/// Whether this process has `CAP_IPC_LOCK` (bit 14), so that no limit on locked memory applies.
fn may_lock_memory() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = u64::from_str_radix(effective.expect("capabilities").trim(), 16);
    effective.expect("a mask") & 1 << 14 != 0
}

struct Clients {
    addr: SocketAddr,
    /// The oldest first.
    open: VecDeque<TcpStream>,
}

impl Clients {
    /// - `connect N`: opens N more connections, one after the other.
    /// - `burst N`: opens N more connections at once, and waits for the echo of a byte on each.
    /// - `echo N`: waits for the echo of eight bytes on each of the oldest N connections.
    /// - `close N`: closes the oldest N connections.
    /// - `reset`: sends some bytes on the oldest connection, then resets it.
    /// - `flood`: writes to the oldest connection until a write fails.
    ///
    /// Prints the command again when it is done.
    fn execute(&mut self, command: &str) {
        let (verb, count) = command.split_once(' ').unwrap_or((command, "0"));
        let count: usize = count.parse().expect("a count");
        match verb {
            "connect" => {
                for _ in 0..count {
                    let stream = TcpStream::connect(self.addr).expect("expected to connect");
                    self.add_stream(stream);
                }
            }
            "burst" => self.burst(count),
            "echo" => {
                for (n, stream) in self.open.iter_mut().take(count).enumerate() {
                    echoed(stream, &n.to_le_bytes());
                }
            }
            "close" => drop(self.open.drain(..count)),
            "reset" => {
                let mut stream = self.open.pop_front().expect("a connection");
                stream.write_all(b"the middle of").expect("expected to write");
                SockRef::from(&stream)
                    .set_linger(Some(Duration::ZERO))
                    .expect("expected to set linger");
            }
            "flood" => {
                let mut stream = self.open.pop_front().expect("a connection");
                while stream.write_all(&[9; 256 * 1024]).is_ok() {}
            }
            verb => panic!("there is no command {verb}"),
        }
        send_line(command);
    }

    fn burst(&mut self, count: usize) {
        let sockets: Vec<_> = (0..count)
            .map(|_| {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
                socket.set_nonblocking(true).expect("expected to set O_NONBLOCK");
                // Usually in progress. A failure shows at the first write.
                let _ = socket.connect(&self.addr.into());
                socket
            })
            .collect();
        for socket in sockets {
            socket.set_nonblocking(false).expect("expected to clear O_NONBLOCK");
            self.add_stream(socket.into());
            let stream = self.open.back_mut().expect("just added");
            // A blocking write waits for the handshake.
            echoed(stream, b"!");
        }
    }

    fn add_stream(&mut self, stream: TcpStream) {
        stream.set_read_timeout(Some(PATIENCE)).expect("expected to set a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("expected to set a timeout");
        self.open.push_back(stream);
    }
}

fn echoed(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).expect("expected to write");
    let mut answer = [0; 8];
    stream.read_exact(&mut answer[..bytes.len()]).expect("expected an echo");
    assert_eq!(&answer[..bytes.len()], bytes, "the bytes of an echo");
}
