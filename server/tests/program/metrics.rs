//! `/metrics` of `--admin`: its format, its values, and who may see it.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use iggy_binary_protocol::codes::*;
use tungstenite::{ClientRequestBuilder, Message, WebSocket};

use super::events::events;
use super::iggy::{BASIC, Client, Directory, LOGIN, batch, password_file};
use super::server::{PATIENCE, RUNTIMES, Server, announce, assert_closed, echoed};

/// The values by their names and labels: `name{key="value",…}`, with the labels in order.
pub(super) type Values = BTreeMap<String, f64>;

/// The head and the body of an answer.
fn request(server: &Server, service: usize, method: &str) -> (String, String) {
    let request = format!("{method} /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = server.ask(service, &request);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// The metrics, by the service of the admin.
pub(super) fn scrape(server: &Server, admin: usize) -> Values {
    let until = Instant::now() + PATIENCE;
    loop {
        let (head, body) = request(server, admin, "GET");
        if head.starts_with("HTTP/1.1 503 ") {
            assert!(Instant::now() < until, "{body}");
            thread::sleep(Duration::from_millis(20)); // it is being set up
            continue;
        }
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let content_type = "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n";
        assert!(head.contains(content_type), "{head}");
        return parse(&body);
    }
}

/// Asks again until the values are what they are to be: they are made twice a second.
fn wait_for(server: &Server, admin: usize, expected: &[(&str, f64)]) -> Values {
    let until = Instant::now() + PATIENCE;
    loop {
        let values = scrape(server, admin);
        let differing = expected.iter().find(|(name, value)| values.get(*name) != Some(value));
        let Some((name, value)) = differing else { return values };
        assert!(Instant::now() < until, "{name} is to be {value}: {values:#?}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Parses each line. Each family has its help and its type before its samples, once, and is documented.
fn parse(text: &str) -> Values {
    assert!(text.ends_with('\n'));
    let documentation = include_str!("../../../docs/metrics.md");
    let mut values = Values::new();
    let (mut help, mut family) = (String::new(), (String::new(), String::new()));
    let mut families = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            rest.split_once(' ').unwrap().0.clone_into(&mut help);
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, help, "{line}");
            let row = format!("| `{name}` | {kind} |");
            assert!(documentation.contains(&row), "{row} is not documented");
            assert!(!families.contains(&name), "{line}: a second time");
            families.push(name);
            family = (name.to_owned(), kind.to_owned());
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').unwrap()),
            None => (series, ""),
        };
        let suffix = name.strip_prefix(&*family.0).unwrap_or_else(|| panic!("{line}"));
        match &*family.1 {
            "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}"),
            _ => assert_eq!(suffix, "", "{line}"),
        }
        let mut labels: Vec<_> = labels.split(',').filter(|label| !label.is_empty()).collect();
        for label in &labels {
            let (_, value) = label.split_once('=').unwrap();
            assert!(value.len() > 2 && value.starts_with('"') && value.ends_with('"'), "{line}");
        }
        labels.sort_unstable();
        let series = match labels.is_empty() {
            true => name.to_owned(),
            false => format!("{name}{{{}}}", labels.join(",")),
        };
        let value: f64 = value.parse().unwrap();
        assert!(values.insert(series, value).is_none(), "{line}: a second time");
    }
    values
}

#[test]
fn what_clients_do_is_counted() {
    for runtime in RUNTIMES {
        println!("{runtime}"); // shown when it fails
        let services =
            ["--echo", "127.0.0.1:0", "--sink", "127.0.0.1:0", "--source", "127.0.0.1:0"];
        let more = ["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let server = Server::start(runtime, &[&services[..], &more].concat());
        let mut echo = server.connect(0);
        (0..7).for_each(|_| echoed(&mut echo, &[7; 1_000]));
        let mut gone = server.connect(0);
        echoed(&mut gone, b"bye");
        drop(gone);

        let mut sink = server.connect(1);
        for len in [5, 70_000_u32] {
            announce(&mut sink, len, &vec![7; len as usize]);
            std::io::Read::read_exact(&mut sink, &mut [0; 8]).unwrap();
        }
        let mut source = server.connect(2);
        for number in [10_u32, 100, 3] {
            std::io::Write::write_all(&mut source, &number.to_le_bytes()).unwrap();
        }
        std::io::Read::read_exact(&mut source, &mut [0; 10 * 104]).unwrap();

        let mut sockets = ["/echo", "/echo?hops=app", "/sink"].map(|path| server.upgrade(3, path));
        for socket in &mut sockets {
            for len in [0, 100, 70_000] {
                socket.send(Message::binary(vec![1; len])).unwrap();
                socket.read().unwrap();
            }
        }
        let health = server.health(3);
        assert_eq!(health, "200");

        let of = |name: &str, service: &str, transport: &str| {
            format!("owned_io_{name}_total{{service=\"{service}\",transport=\"{transport}\"}}")
        };
        let at = |name: &str, listener: &str, more: &str| {
            format!("owned_io_{name}{{{more}listener=\"{listener}\",service=\"{listener}\"}}")
        };
        let mut expected = Vec::new();
        for (service, transport, messages, bytes) in [
            ("echo", "websocket", [3.0, 3.0], [70_100.0, 70_100.0]),
            ("echo-app", "websocket", [3.0, 3.0], [70_100.0, 70_100.0]),
            ("sink", "websocket", [3.0, 3.0], [70_100.0, 24.0]),
            ("sink", "tcp", [2.0, 2.0], [70_013.0, 16.0]),
            ("source", "tcp", [1.0, 10.0], [12.0, 1_040.0]),
        ] {
            for (name, value) in [
                ("received_messages", messages[0]),
                ("sent_messages", messages[1]),
                ("received_bytes", bytes[0]),
                ("sent_bytes", bytes[1]),
            ] {
                expected.push((of(name, service, transport), value));
            }
        }
        expected.push((of("received_bytes", "echo", "tcp"), 7_003.0));
        expected.push((of("sent_bytes", "echo", "tcp"), 7_003.0));
        for (listener, accepted, open) in
            [("echo", 2.0, 1.0), ("sink", 1.0, 1.0), ("http", 4.0, 3.0)]
        {
            expected.push((at("connections_accepted_total", listener, ""), accepted));
            expected.push((at("connections_open", listener, ""), open));
            let ended = at("connections_closed_total", listener, "cause=\"ended\",");
            expected.push((ended, accepted - open));
        }
        expected.push(("owned_io_workers".to_owned(), 2.0));
        let expected: Vec<_> = expected.iter().map(|(name, value)| (&**name, *value)).collect();
        let values = wait_for(&server, 4, &expected);
        assert!(!values.contains_key(&of("received_messages", "echo", "tcp")));
        let version = env!("CARGO_PKG_VERSION");
        let build = format!("owned_io_build_info{{runtime=\"{runtime}\",version=\"{version}\"}}");
        assert_eq!(values[&build], 1.0);
        assert!(values["process_start_time_seconds"] > 1.7e9);
        for worker in ["0", "1"] {
            let held = values[&format!("owned_io_memory_held_bytes{{worker=\"{worker}\"}}")];
            let limit = values[&format!("owned_io_memory_limit_bytes{{worker=\"{worker}\"}}")];
            assert!(held <= limit && limit > 0.0, "{held} of {limit}");
        }
    }
}

#[test]
fn refused_connections_are_counted_by_their_reason() {
    let limits = ["--connections-per-address-max", "3"];
    let services = ["--echo", "127.0.0.1:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let server = Server::start(RUNTIMES[0], &[&services[..], &limits].concat());
    let answer = server.ask(1, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"); // no upgrade
    assert!(answer.starts_with("HTTP/1.1 426 "), "{answer}");
    let refused = |listener: &str, reason: &str| {
        let labels = format!("listener=\"{listener}\",reason=\"{reason}\",service=\"{listener}\"");
        format!("owned_io_connections_refused_total{{{labels}}}")
    };
    let no_upgrade = refused("http", "upgrade");
    let open = "owned_io_connections_open{listener=\"http\",service=\"http\"}";
    wait_for(&server, 2, &[(&*no_upgrade, 1.0), (open, 0.0)]);
    let mut clients = [(); 3].map(|()| server.connect(0));
    clients.iter_mut().for_each(|client| echoed(client, b"one of three"));
    assert_closed(&mut server.connect(0));
    wait_for(&server, 2, &[(&*refused("echo", "address_limit"), 1.0), (&*no_upgrade, 1.0)]);
}

/// Clients see nothing of it, and operators see it as long as they see `/health`.
#[test]
fn metrics_are_for_operators_alone() {
    for runtime in RUNTIMES {
        let services = ["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let notice = ["--drain-notice-seconds", "3"];
        let server = Server::start(runtime, &[&services[..], &notice].concat());
        scrape(&server, 1);
        for (service, method, status) in [(0, "GET", 404), (1, "POST", 405), (1, "HEAD", 200)] {
            let (head, body) = request(&server, service, method);
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
            assert!(method != "HEAD" || body.is_empty() && !head.contains("Content-Length: 0"));
        }
        server.signal("-TERM");
        let signalled = Instant::now();
        while server.health(1) != "503" {
            assert!(signalled.elapsed() < Duration::from_secs(2), "{runtime}: no notice");
        }
        scrape(&server, 1);
        assert_eq!(server.wait(), 0, "{runtime}");
    }
}

#[test]
fn commands_and_the_log_are_counted() {
    let password = password_file("metrics");
    let dir = std::env::temp_dir().join(format!("owned-io-server-{}-metrics", std::process::id()));
    let dir = Directory(dir);
    for runtime in RUNTIMES {
        println!("{runtime}"); // shown when it fails
        let options = [
            ["--iggy-password-file", password.0.to_str().unwrap()],
            ["--data", dir.0.to_str().unwrap()],
            ["--tcp", "127.0.0.1:0"],
            ["--http", "127.0.0.1:0"],
            ["--admin", "127.0.0.1:0"],
        ];
        let server = Server::start(runtime, &options.concat());
        let mut client = Client::Tcp(server.connect(0));
        assert_eq!(client.ask(GET_STREAMS_CODE, &[]).0, 40); // without a login
        client.ask(LOGIN_USER_CODE, LOGIN);
        client.create();
        let mut tails = vec![tail(&server, ""), tail(&server, "")];
        let payloads: Vec<_> = (0..5_u8).map(|n| vec![n; 1_000]).collect();
        for payload in &payloads {
            assert_eq!(client.ask(SEND_MESSAGES_CODE, &batch(payload)).0, 0);
        }
        assert!(client.poll_all(payloads.len()) == payloads);
        for (status, authorization) in [(401, ""), (200, BASIC)] {
            let lines = events("Content-Type: application/x-ndjson", authorization, "one\ntwo");
            let answer = server.ask(1, &lines);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
        tails.push(tail(&server, "?from=first")); // what is in the log
        for tail in &mut tails {
            (0..7).for_each(|_| assert!(tail.read().unwrap().is_text()));
        }
        let command = |command: &str, outcome: &str| {
            let labels = format!("command=\"{command}\",outcome=\"{outcome}\"");
            format!("owned_io_iggy_commands_total{{{labels}}}")
        };
        let expected = [
            (command("stream.list", "refused"), 1.0),
            (command("message.send", "ok"), 5.0),
            (command("message.send", "refused"), 0.0),
            ("owned_io_iggy_refusals_total{status=\"40\"}".to_owned(), 1.0),
            ("owned_io_iggy_appended_messages_total".to_owned(), 7.0),
            ("owned_io_events_requests_total{status=\"200\"}".to_owned(), 1.0),
            ("owned_io_events_requests_total{status=\"401\"}".to_owned(), 1.0),
            ("owned_io_events_requests_total{status=\"507\"}".to_owned(), 0.0),
            ("owned_io_events_appended_total".to_owned(), 2.0),
            ("owned_io_events_appended_bytes_total".to_owned(), 6.0),
            ("owned_io_iggy_append_seconds_count".to_owned(), 6.0), // with the events, which are one batch
            (
                "owned_io_sent_messages_total{service=\"tail\",transport=\"websocket\"}".to_owned(),
                21.0,
            ),
            ("owned_io_iggy_polled_messages_total".to_owned(), 5.0),
            ("owned_io_iggy_clients".to_owned(), 1.0),
            ("owned_io_iggy_partitions".to_owned(), 1.0),
            ("owned_io_iggy_stored_messages".to_owned(), 7.0),
            ("owned_io_iggy_hop_queue_length".to_owned(), 0.0),
            ("owned_io_log_sync_failures_total".to_owned(), 0.0),
            ("owned_io_log_catalogue_failed".to_owned(), 0.0),
        ];
        let expected = expected.each_ref().map(|(name, value)| (&**name, *value));
        let values = wait_for(&server, 2, &expected);
        assert!(values["owned_io_iggy_appended_bytes_total"] >= 5_000.0, "{values:#?}");
        assert!(values["owned_io_log_written_bytes_total"] >= 5_000.0, "{values:#?}");
        // Five batches, one after the other, and the records of what was created.
        for (name, count_min) in [
            ("owned_io_log_group_batches", 6.0),
            ("owned_io_log_sync_seconds", 6.0),
            ("owned_io_iggy_append_seconds", 6.0),
            ("owned_io_iggy_poll_seconds", 1.0),
        ] {
            assert!(values[&format!("{name}_count")] >= count_min, "{values:#?}");
            assert!(values[&format!("{name}_sum")] > 0.0, "{values:#?}");
            let all = values[&format!("{name}_bucket{{le=\"+Inf\"}}")];
            assert_eq!(all, values[&format!("{name}_count")]);
        }
        drop((client, tails, server));
        std::fs::remove_dir_all(&dir.0).unwrap();
    }
}

/// A subscriber of the partition that [`Client::create`] makes.
fn tail(server: &Server, query: &str) -> WebSocket<TcpStream> {
    let uri = format!("ws://{}/tail/s/t/0{query}", server.addr(1)).parse().unwrap();
    let request = ClientRequestBuilder::new(uri).with_header("Authorization", BASIC);
    tungstenite::client(request, server.connect(1)).unwrap().0
}
