//! Iggy's protocol by raw bytes, on each runtime and each engine. `server/iggy/run` runs Iggy's own client.

use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{io, thread};

use bytes::BytesMut;
use iggy_binary_protocol::codes::*;
use iggy_binary_protocol::requests::messages::{
    PollMessagesRequest, RawMessage, SendMessagesEncoder,
};
use iggy_binary_protocol::responses::messages::PollMessagesResponse;
use iggy_binary_protocol::responses::system::StatsResponse;
use iggy_binary_protocol::{
    RequestFrame, ResponseFrame, WireConsumer, WireDecode, WireEncode, WireIdentifier,
    WirePartitioning, WirePollingStrategy,
};
use tungstenite::{ClientRequestBuilder, Message, WebSocket};

use super::metrics::scrape;
use super::server::{ENGINES, PATIENCE, RUNTIMES, Server, assert_closed, ended, program};

/// Several workers, so that some connections are not at the worker with the broker.
#[test]
fn messages_are_sent_and_polled() {
    let password = password_file("program");
    let always = ["--iggy-password-file", password.0.to_str().unwrap()];
    for (runtime, engine) in
        RUNTIMES.iter().flat_map(|runtime| ENGINES.iter().map(move |engine| (runtime, engine)))
    {
        println!("{runtime}, {engine:?}"); // shown when it fails
        let services = ["--tcp", "127.0.0.1:0", "--http", "127.0.0.1:0"];
        let server = Server::start(runtime, &[&always[..], &services, engine].concat());
        let mut payloads = Vec::new();
        let mut clients: Vec<Client> = (0..6).map(|_| Client::Tcp(server.connect(0))).collect();
        clients.extend((0..6).map(|_| Client::WebSocket(server.upgrade(1, "/").into())));
        assert_eq!(clients[0].ask(GET_STREAMS_CODE, &[]), (40, vec![]), "without a login");
        for client in &mut clients {
            assert_eq!(client.ask(LOGIN_USER_CODE, LOGIN), (0, vec![0; 4]));
        }
        clients[5].create();
        for (n, client) in clients.iter_mut().enumerate() {
            let payload = vec![n as u8; 100 + n * 50_000];
            assert_eq!(client.ask(SEND_MESSAGES_CODE, &batch(&payload)), (0, vec![]), "{engine:?}");
            payloads.push(payload);
        }
        for client in &mut clients {
            assert!(client.poll_all(payloads.len()) == payloads, "{runtime}, {engine:?}");
        }
        let mut too_long = server.connect(0);
        too_long.write_all(&[255; 8]).unwrap();
        let mut answer = [0; 8];
        too_long.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [40, 0, 0, 0, 0, 0, 0, 0]);
        assert_closed(&mut too_long);
        assert_eq!(clients[0].ask(PING_CODE, &[]), (0, vec![]));
        drop(clients);
        server.signal("-TERM");
        assert_eq!(server.wait(), 0, "{runtime}, {engine:?}");
    }
}

/// On both workers, as text and in binary. A client without the password gets nothing.
#[test]
fn messages_are_pushed() {
    let password = password_file("tail");
    for (runtime, engine) in
        RUNTIMES.iter().flat_map(|runtime| ENGINES.iter().map(move |engine| (runtime, engine)))
    {
        println!("{runtime}, {engine:?}"); // shown when it fails
        let options = [
            ["--iggy-password-file", password.0.to_str().unwrap()],
            ["--tcp", "127.0.0.1:0"],
            ["--http", "127.0.0.1:0"],
        ];
        let server = Server::start(runtime, &[&options.concat()[..], engine].concat());
        let mut producer = Client::Tcp(server.connect(0));
        assert_eq!(producer.ask(LOGIN_USER_CODE, LOGIN), (0, vec![0; 4]));
        producer.create();
        let uri = format!("ws://{}/tail/s/t/0", server.addr(1)).parse().unwrap();
        let request = ClientRequestBuilder::new(uri);
        let refused = tungstenite::client(request.clone(), server.connect(1));
        assert!(refused.err().unwrap().to_string().contains("401"));
        let request = request.with_header("Authorization", BASIC);
        let binary = request.clone().with_sub_protocol("owned-io.tail.binary.v1");
        let mut listening: Vec<_> = (0..16)
            .map(|n| if n % 2 == 0 { request.clone() } else { binary.clone() })
            .map(|request| tungstenite::client(request, server.connect(1)).unwrap().0)
            .collect();
        for n in 0..100_usize {
            let payload = vec![b'a'; 1 + n * 100];
            assert_eq!(producer.ask(SEND_MESSAGES_CODE, &batch(&payload)), (0, vec![]));
        }
        for socket in &mut listening {
            for n in 0..100_usize {
                let (len, start) = (1 + n * 100, format!("{{\"offset\":{n},\"timestamp\":"));
                match socket.read().unwrap() {
                    Message::Text(text) => {
                        let end = format!("\"payload\":\"{}\"}}", "a".repeat(len));
                        assert!(text.starts_with(&start) && text.ends_with(&end), "{text}");
                    }
                    Message::Binary(bytes) => {
                        assert_eq!(bytes[..8], (n as u64).to_le_bytes());
                        assert!(bytes[16..] == vec![b'a'; len]);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        server.signal("-TERM");
        for socket in &mut listening {
            match socket.read().unwrap() {
                Message::Close(Some(frame)) => assert_eq!(u16::from(frame.code), 1001),
                other => panic!("{other:?}"),
            }
            let _ = socket.flush(); // the answer
        }
        drop((listening, producer));
        assert_eq!(server.wait(), 0, "{runtime}, {engine:?}");
    }
}

/// With each policy. A second server on the directory is refused meanwhile.
#[test]
fn messages_are_there_after_a_restart() {
    let password = password_file("restart");
    let dir = std::env::temp_dir().join(format!("owned-io-server-{}-data", std::process::id()));
    let dir = Directory(dir);
    for runtime in RUNTIMES {
        let mut expected = Vec::new();
        for (round, policy) in (0..).zip(["batch", "never", "interval:20", "batch"]) {
            println!("{runtime}, {policy}"); // shown when it fails
            let options = [
                ["--iggy-password-file", password.0.to_str().unwrap()],
                ["--data", dir.0.to_str().unwrap()],
                ["--fsync", policy],
                ["--tcp", "127.0.0.1:0"],
            ]
            .concat();
            let server = Server::start(runtime, &options);
            let mut clients: Vec<_> = (0..4).map(|_| Client::Tcp(server.connect(0))).collect();
            for client in &mut clients {
                assert_eq!(client.ask(LOGIN_USER_CODE, LOGIN), (0, vec![0; 4]));
            }
            if round == 0 {
                clients[0].create();
            }
            for (n, client) in (0..).zip(&mut clients) {
                let payload = vec![round * 10 + n; 100 + usize::from(n) * 300_000];
                assert_eq!(client.ask(SEND_MESSAGES_CODE, &batch(&payload)), (0, vec![]));
                expected.push(payload);
                assert!(client.poll_all(expected.len()) == expected);
            }
            let second = program(&[&["--runtime", runtime], &options[..]].concat())
                .stderr(Stdio::piped())
                .stdout(Stdio::null())
                .spawn();
            let (code, said) = ended(second.unwrap());
            assert_eq!(code, Some(1));
            let culprit = format!("--data: {} is in use", dir.0.join("catalogue").display());
            assert!(said.contains(&culprit), "{said}");
            drop(clients);
            if round % 2 == 0 {
                server.signal("-TERM");
                assert_eq!(server.wait(), 0);
            } else {
                drop(server); // kills it
            }
        }
        assert_private(&dir.0);
        std::fs::remove_dir_all(&dir.0).unwrap();
    }
}

/// Panics unless a directory, and everything in it, is for its owner alone.
fn assert_private(path: &Path) {
    let metadata = std::fs::metadata(path).unwrap();
    let mode = metadata.permissions().mode() & 0o777;
    let expected = if metadata.is_dir() { 0o700 } else { 0o600 };
    assert_eq!(mode, expected, "{mode:o}: {}", path.display());
    if metadata.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            assert_private(&entry.unwrap().path());
        }
    }
}

/// It takes none of the descriptors, and the server goes on.
#[test]
fn a_topic_for_which_there_are_no_descriptors_is_refused() {
    let password = password_file("descriptors");
    let dir = std::env::temp_dir().join(format!("owned-io-server-{}-many", std::process::id()));
    let dir = Directory(dir);
    for runtime in RUNTIMES {
        println!("{runtime}"); // shown when it fails
        let options = [
            ["--runtime", runtime],
            ["--workers", "1"],
            ["--iggy-password-file", password.0.to_str().unwrap()],
            ["--data", dir.0.to_str().unwrap()],
            ["--tcp", "127.0.0.1:0"],
        ]
        .concat();
        let server = program(&options);
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 400; exec \"$0\" \"$@\""]);
        command.arg(server.get_program()).args(server.get_args());
        let mut server = Server::start_logging_to(Stdio::piped(), command, &options);
        let mut client = Client::Tcp(server.connect(0));
        assert_eq!(client.ask(LOGIN_USER_CODE, LOGIN), (0, vec![0; 4]));
        client.create();
        assert_eq!(client.create_topic(b'u', 1_000), 2015); // too many partitions
        assert_eq!(client.create_topic(b'v', 10), 0);
        let mut another = Client::Tcp(server.connect(0));
        assert_eq!(another.ask(LOGIN_USER_CODE, LOGIN), (0, vec![0; 4]));
        assert_eq!(another.ask(SEND_MESSAGES_CODE, &batch(b"still")), (0, vec![]));
        drop((client, another));
        let log = server.stderr();
        server.signal("-TERM");
        assert_eq!(server.wait(), 0);
        let log = io::read_to_string(log).unwrap();
        assert!(log.contains("`ulimit -n` is too low for the partitions of --data"), "{log}");
        std::fs::remove_dir_all(&dir.0).unwrap();
    }
}

/// How many connections append to the partition at once.
const WRITERS: usize = 3;

/// Each connection sends its numbers, one after the other, until the server is killed at a random moment. Their batches
/// share writes and syncs. `KILLS` says how often, on each runtime: 5 times without it.
#[test]
fn what_was_acknowledged_is_there_after_a_kill() {
    let kills = std::env::var("KILLS").map_or(5, |kills| kills.parse().expect("KILLS is a number"));
    let password = password_file("kill");
    let dir = std::env::temp_dir().join(format!("owned-io-server-{}-kill", std::process::id()));
    let dir = Directory(dir);
    for runtime in RUNTIMES {
        let options = [
            ["--iggy-password-file", password.0.to_str().unwrap()],
            ["--data", dir.0.to_str().unwrap()],
            ["--tcp", "127.0.0.1:0"],
            ["--admin", "127.0.0.1:0"],
        ]
        .concat();
        // How many messages of each connection are there, and how many were acknowledged over all rounds.
        let (mut stored, mut acknowledged) = ([0; WRITERS], [0; WRITERS]);
        for round in 0..kills {
            // All messages are read after each kill: not too many.
            let is_new = round % 10 == 0;
            if is_new && round > 0 {
                std::fs::remove_dir_all(&dir.0).unwrap();
                stored = [0; WRITERS];
            }
            let server = Server::start(runtime, &options);
            let mut clients = [(); WRITERS].map(|()| Client::Tcp(server.connect(0)));
            for client in &mut clients {
                assert_eq!(client.ask(LOGIN_USER_CODE, LOGIN), (0, vec![0; 4]));
            }
            if is_new {
                clients[0].create();
            }
            let sending: Vec<_> = clients
                .into_iter()
                .enumerate()
                .map(|(writer, client)| thread::spawn(move || send(client, writer, stored[writer])))
                .collect();
            if round == 0 {
                wait_for_a_shared_write(&server);
            }
            let delay = Duration::from_micros(RandomState::new().hash_one(round) % 200_000);
            thread::sleep(delay);
            drop(server); // kills it
            let refused: Vec<_> = sending.into_iter().map(|it| it.join().unwrap()).collect();

            let server = Server::start(runtime, &options);
            let mut client = Client::Tcp(server.connect(0));
            assert_eq!(client.ask(LOGIN_USER_CODE, LOGIN), (0, vec![0; 4]));
            let mut found = [0; WRITERS];
            for payload in client.poll_to_end() {
                let writer = usize::from(payload[0]);
                assert!(payload == numbered(writer, found[writer]), "not {found:?}");
                found[writer] += 1;
            }
            // Shown when it fails.
            println!(
                "{runtime}: killed after {delay:?}, {refused:?} acknowledged, {found:?} there"
            );
            for (writer, refused) in refused.into_iter().enumerate() {
                assert!((refused..=refused + 1).contains(&found[writer]));
                acknowledged[writer] += refused - stored[writer];
            }
            stored = found;
        }
        assert!(acknowledged.iter().all(|&count| count > 0), "{runtime}: {acknowledged:?}");
        std::fs::remove_dir_all(&dir.0).unwrap();
    }
}

/// Sends messages from this number on. Returns the first number that is not acknowledged.
fn send(mut client: Client, writer: usize, first: u64) -> u64 {
    let is_lost = |&n: &u64| match client.try_ask(SEND_MESSAGES_CODE, &batch(&numbered(writer, n)))
    {
        Ok(answer) => {
            assert_eq!(answer, (0, vec![]), "{n} is refused");
            false
        }
        Err(_) => true,
    };
    (first..).find(is_lost).expect("the server is killed")
}

/// The message of a connection with this number. It begins with both.
fn numbered(writer: usize, n: u64) -> Vec<u8> {
    let len = 9 + n as usize * 7_919 % 60_000;
    let head = [&[writer as u8][..], &n.to_le_bytes()].concat();
    let mut payload = head.repeat(len.div_ceil(head.len()));
    payload.truncate(len);
    payload
}

/// Waits until one write, and one sync, has served several batches: otherwise the kills prove nothing about that.
fn wait_for_a_shared_write(server: &Server) {
    let until = Instant::now() + PATIENCE;
    loop {
        let values = scrape(server, 1);
        let groups = |of: &str| values[&format!("owned_io_log_group_batches_{of}")];
        if groups("bucket{le=\"1\"}") < groups("count") {
            return;
        }
        assert!(Instant::now() < until, "each batch has a write of its own");
        thread::sleep(Duration::from_millis(20));
    }
}

/// As the kernel says of the process.
#[test]
fn clients_are_told_what_the_server_uses() {
    let password = password_file("stats");
    let dir = std::env::temp_dir().join(format!("owned-io-server-{}-stats", std::process::id()));
    let dir = Directory(dir);
    for runtime in RUNTIMES {
        println!("{runtime}"); // shown when it fails
        let options = [
            ["--iggy-password-file", password.0.to_str().unwrap()],
            ["--data", dir.0.to_str().unwrap()],
            ["--tcp", "127.0.0.1:0"],
        ]
        .concat();
        let server = Server::start(runtime, &options);
        let mut client = Client::Tcp(server.connect(0));
        assert_eq!(client.ask(LOGIN_USER_CODE, LOGIN), (0, vec![0; 4]));
        let mut stats = || {
            let (status, stats) = client.ask(GET_STATS_CODE, &[]);
            assert_eq!(status, 0);
            StatsResponse::decode_from(&stats).unwrap()
        };
        let asked = Instant::now();
        let first = stats();
        let kernel = |file: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{file}"));
        assert_eq!(first.hostname, kernel("hostname").unwrap().trim_end());
        assert_eq!(first.kernel_version, kernel("osrelease").unwrap().trim_end());
        let (resident, _) = server.memory();
        assert!((resident / 2..resident * 2).contains(&first.memory_usage), "{first:?}");
        let percent_max = 100.0 * thread::available_parallelism().unwrap().get() as f32;
        assert!((0.001..2.0 * percent_max).contains(&first.cpu_usage), "{first:?}");
        for (free, total) in [
            (first.available_memory, first.total_memory),
            (first.free_disk_space, first.total_disk_space),
        ] {
            assert!(1 << 20 < free && free <= total, "{first:?}");
        }
        // It is measured once a second.
        assert!(stats().cpu_usage == first.cpu_usage || asked.elapsed() > Duration::from_secs(1));
        drop(server);
        std::fs::remove_dir_all(&dir.0).unwrap();
    }
}

#[test]
fn there_is_no_iggy_without_a_password() {
    let server = Server::start(RUNTIMES[0], &["--http", "127.0.0.1:0"]);
    let request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert!(server.ask(0, request).starts_with("HTTP/1.1 404 "));
}

/// Over TCP, or over TLS where `S` is a stream of it.
pub(super) enum Client<S = TcpStream> {
    Tcp(S),
    WebSocket(Box<WebSocket<S>>),
}

impl<S: Read + Write> Client<S> {
    /// Creates stream 0 with topic 0 of one partition.
    pub(super) fn create(&mut self) {
        assert_eq!(self.ask(CREATE_STREAM_CODE, b"\x01s").0, 0);
        assert_eq!(self.create_topic(b't', 1), 0);
    }

    /// Creates a topic in stream 0. Returns the status.
    fn create_topic(&mut self, name: u8, partitions: u32) -> u32 {
        let mut topic = vec![1, 4, 0, 0, 0, 0];
        topic.extend(partitions.to_le_bytes());
        topic.push(1);
        topic.extend([255; 16]);
        topic.extend([1, 1, name]);
        self.ask(CREATE_TOPIC_CODE, &topic).0
    }

    /// The payloads of all messages, of which there are `count`.
    pub(super) fn poll_all(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut polled = Vec::new();
        while polled.len() < count {
            let (status, answer) = self.ask(POLL_MESSAGES_CODE, &poll(polled.len() as u64));
            let answer = PollMessagesResponse::decode(&answer).unwrap();
            assert_eq!((status, answer.header.current_offset), (0, count as u64 - 1));
            polled.extend(answer.messages.map(|view| view.unwrap().payload().to_vec()));
        }
        polled
    }

    /// The payloads of all messages.
    fn poll_to_end(&mut self) -> Vec<Vec<u8>> {
        let mut polled = Vec::new();
        loop {
            let (status, answer) = self.ask(POLL_MESSAGES_CODE, &poll(polled.len() as u64));
            let answer = PollMessagesResponse::decode(&answer).unwrap();
            assert_eq!(status, 0);
            let before = polled.len();
            polled.extend(answer.messages.map(|view| view.unwrap().payload().to_vec()));
            if polled.len() == before {
                return polled;
            }
        }
    }

    pub(super) fn ask(&mut self, code: u32, payload: &[u8]) -> (u32, Vec<u8>) {
        self.try_ask(code, payload).unwrap()
    }

    /// An error if the connection ends.
    fn try_ask(&mut self, code: u32, payload: &[u8]) -> io::Result<(u32, Vec<u8>)> {
        let mut request = BytesMut::new();
        RequestFrame::encode(code, payload, &mut request).unwrap();
        match self {
            Self::Tcp(stream) => {
                stream.write_all(&request)?;
                let mut header = [0; 8];
                stream.read_exact(&mut header)?;
                let len = u32::from_le_bytes(header[4..].try_into().unwrap());
                let mut payload = vec![0; len as usize];
                stream.read_exact(&mut payload)?;
                Ok((u32::from_le_bytes(header[..4].try_into().unwrap()), payload))
            }
            Self::WebSocket(socket) => {
                socket.send(Message::binary(request.freeze())).map_err(io::Error::other)?;
                let answer = socket.read().map_err(io::Error::other)?.into_data();
                let (answer, len) = ResponseFrame::decode(&answer).unwrap();
                assert_eq!(len, 8 + answer.payload.len());
                Ok((answer.status, answer.payload.to_vec()))
            }
        }
    }
}

/// The password in HTTP.
pub(super) const BASIC: &str = "Basic aWdneTpvcGVuIHNlc2FtZQ==";

pub(super) const LOGIN: &[u8] = b"\x04iggy\x0bopen sesame\0\0\0\0\0\0\0\0";

pub(super) fn batch(payload: &[u8]) -> BytesMut {
    let (zero, to) = (WireIdentifier::numeric(0), WirePartitioning::Balanced);
    let message = RawMessage { id: 0, origin_timestamp: 0, headers: None, payload };
    let mut request = BytesMut::new();
    SendMessagesEncoder::encode(&mut request, &zero, &zero, &to, &[message]);
    request
}

fn poll(offset: u64) -> BytesMut {
    let poll = PollMessagesRequest {
        consumer: WireConsumer::consumer(WireIdentifier::numeric(1)),
        stream_id: WireIdentifier::numeric(0),
        topic_id: WireIdentifier::numeric(0),
        partition_id: Some(0),
        strategy: WirePollingStrategy::offset(offset),
        count: 100,
        auto_commit: true,
    };
    let mut request = BytesMut::new();
    poll.encode(&mut request);
    request
}

/// A directory that is removed when this is dropped.
pub(super) struct Directory(pub(super) PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A file that is removed when this is dropped.
pub(super) struct File(pub(super) PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(super) fn password_file(name: &str) -> File {
    let file = format!("owned-io-server-{}-{name}.password", std::process::id());
    let file = std::env::temp_dir().join(file);
    std::fs::write(&file, "open sesame\n").unwrap();
    File(file)
}
