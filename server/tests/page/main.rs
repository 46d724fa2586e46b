//! The page of operators, on a whole server of two workers in the simulation: who gets it, what it is told, and what it
//! cannot do. `server/page` looks at it in a browser.

mod server;

use std::time::Duration;

use owned_io::Clock;
use owned_io_server::service::page::{MESSAGE_BYTES_MAX, VIEWS_MAX};
use owned_io_sim::{Sim, SimStream};
use owned_io_websocket::stream::{Message, WebSocket};
use owned_io_websocket::{CloseCode, CloseFrame};
use serde_json::{Value, json};
use server::{
    ADMIN, HTTP, Producer, Viewer, ask, closed, meanwhile, next, open, open_from, with_server,
};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn the_page_is_for_operators_alone() {
    let _ = with_server(&[], async |_| {
        let (head, page) = ask(ADMIN, "GET /").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"), "{page}");
        for header in [
            "Content-Type: text/html; charset=utf-8",
            "Cache-Control: no-store",
            "Referrer-Policy: no-referrer",
            "X-Content-Type-Options: nosniff",
        ] {
            assert!(head.split("\r\n").any(|line| line == header), "{header}: {head}");
        }
        let policy = head.split("\r\nContent-Security-Policy: ").nth(1).unwrap();
        let policy = policy.split("\r\n").next().unwrap();
        for directive in ["default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"] {
            assert!(policy.split("; ").any(|part| part == directive), "{directive}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        let (of_head, body) = ask(ADMIN, "HEAD /").await;
        let length = format!("\r\nContent-Length: {}\r\n", page.len());
        assert!(of_head.contains(&length) && body.is_empty(), "{of_head}: {body}");
        for (addr, request, status) in [
            (ADMIN, "POST /", 405),
            (ADMIN, "GET /live", 426),
            (ADMIN, "HEAD /live", 426),
            (ADMIN, "GET /tail", 426),
            (ADMIN, "GET /page.html", 404),
            (HTTP, "GET /live", 404),
            (HTTP, "GET /", 426), // the WebSocket of Iggy's clients
        ] {
            let (head, _) = ask(addr, request).await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {head}");
        }
        let mut iggy = open(HTTP, "/").await;
        iggy.close(CloseFrame { code: Some(CloseCode::NORMAL), reason: "" }).await.unwrap();
    });
}

#[test]
fn figures_are_pushed_each_second() {
    let _ = with_server(&[], async |_| {
        let mut live = open(ADMIN, "/live").await;
        let first = next(&mut live).await;
        assert_eq!((&first["workers"], &first["runtime"]), (&json!(2), &json!("sim")));
        assert_eq!(first["is_draining"], false);
        assert!(first["reply_us"].as_u64() < first["reply_us_max"].as_u64(), "{first}");
        assert_eq!((&first["lateness"], &first["stalls"]), (&Value::Null, &Value::Null));
        let mut echoes = Vec::new();
        for _ in 0..4 {
            let mut echo = open(HTTP, "/echo").await;
            for _ in 0..7 {
                echo.outgoing.send(Message::Binary(&[7; 1_000])).await.unwrap();
                assert!(echo.incoming.receive().await.unwrap().is_some());
            }
            echoes.push(echo);
        }
        let mut producer = Producer::new().await;
        producer.send_numbers(0..5).await;
        let second = settled(&mut live).await;
        let echo = &flow(&second, "echo", "websocket");
        for (name, expected) in [
            ("received_messages", 28),
            ("sent_messages", 28),
            ("received_bytes", 28_000),
            ("sent_bytes", 28_000),
        ] {
            assert_eq!(echo[name], expected, "{name}");
        }
        assert_eq!(listener(&second, "http")["open"], 4);
        assert_eq!(listener(&second, "http")["accepted"], 4);
        assert_eq!(listener(&second, "admin")["open"], 1);
        for (name, expected) in
            [("clients", 1), ("partitions", 1), ("appended_messages", 5), ("stored_messages", 5)]
        {
            assert_eq!(second["iggy"][name], expected, "{name}");
        }
        assert_eq!(second["log"], Value::Null);
        for mut echo in echoes {
            echo.close(CloseFrame { code: Some(CloseCode::NORMAL), reason: "" }).await.unwrap();
        }
        let third = settled(&mut live).await;
        assert_eq!(listener(&third, "http")["open"], 0);
        let fourth = next(&mut live).await;
        let apart = fourth["now_ms"].as_u64().unwrap() - third["now_ms"].as_u64().unwrap();
        assert!((990..1_200).contains(&apart), "{apart} ms");
        // Another viewer, who may be at the other worker, gets the same.
        for _ in 0..8 {
            let mut other = open(ADMIN, "/live").await;
            assert_eq!(flow(&next(&mut other).await, "echo", "websocket"), *echo);
        }
    });
}

/// A snapshot that is made after this call.
async fn settled(live: &mut WebSocket<SimStream>) -> Value {
    Sim::sleep(3 * SECOND).await;
    // Those that came meanwhile.
    for _ in 0..3 {
        next(live).await;
    }
    next(live).await
}

fn flow(snapshot: &Value, service: &str, transport: &str) -> Value {
    let flows = snapshot["flows"].as_array().unwrap();
    let is_meant = |flow: &&Value| flow["service"] == service && flow["transport"] == transport;
    flows.iter().find(is_meant).unwrap().clone()
}

fn listener(snapshot: &Value, name: &str) -> Value {
    let listeners = snapshot["connections"]["listeners"].as_array().unwrap();
    listeners.iter().find(|listener| listener["name"] == name).unwrap().clone()
}

/// Whatever `--origins` allows.
#[test]
fn only_the_page_of_this_server_may_open_its_websockets() {
    for options in [&[][..], &["--origins", "http://evil.example"]] {
        let _ = with_server(options, async |_| {
            for path in ["/live", "/tail"] {
                for own in [None, Some("http://10.0.0.1:81"), Some("https://10.0.0.1:81")] {
                    drop(open_from(own, ADMIN, path).await.unwrap());
                }
                for foreign in [
                    "http://evil.example",
                    "http://10.0.0.1",
                    "http://10.0.0.1:80",
                    "http://10.0.0.1:810",
                    "http://10.0.0.1:81.evil.example",
                    "ftp://10.0.0.1:81",
                    "null",
                    "",
                ] {
                    let refused = open_from(Some(foreign), ADMIN, path).await.err();
                    assert_eq!(refused, Some(403), "{foreign}");
                }
            }
        });
    }
}

/// The drain waits for a client that does not answer the close. The viewers see that, and are closed last.
#[test]
fn a_viewer_sees_the_drain_to_its_end() {
    let outcome = with_server(&["--drain-seconds", "5", "--linger-seconds", "30"], async |stop| {
        let mut live = open(ADMIN, "/live").await;
        let deaf = open(HTTP, "/echo").await;
        next(&mut live).await;
        let last = Viewer::open().await;
        stop.stop();
        let stopped = Sim::now();
        let mut draining = 0;
        while Sim::now() - stopped < 4 * SECOND {
            draining += u32::from(next(&mut live).await["is_draining"] == true);
        }
        assert!(draining >= 3, "{draining}");
        meanwhile(async move { drop(closed(&mut live).await) });
        let close = last.closing().await;
        assert_eq!(close.code(), 1001);
        let took = Sim::now() - stopped;
        assert!((5 * SECOND..6 * SECOND).contains(&took), "{took:?}");
        close.answer().await; // with which the server, and the simulation, ends
        drop(deaf);
    });
    assert_eq!(outcome.cut_off, 1);
}

/// By the ping that it does not answer, at the latest. Others get their snapshots meanwhile.
#[test]
fn a_viewer_that_reads_nothing_is_ended() {
    let _ = with_server(&[], async |_| {
        let _deaf = open(ADMIN, "/live").await;
        let mut live = open(ADMIN, "/live").await;
        next(&mut live).await; // which may have been made for the first
        let (began, mut seen) = (Sim::now(), 0);
        while listener(&next(&mut live).await, "admin")["open"] == 2 {
            seen += 1;
            assert!(seen < 100, "it is never ended");
        }
        let seconds = (Sim::now() - began).as_secs();
        assert!((seen..seen + 3).contains(&seconds), "{seen} snapshots in {seconds} s");
    });
}

#[test]
fn a_viewer_that_is_slow_misses_messages_and_sees_the_newest() {
    const BATCHES: u64 = 400;
    let _ = with_server(&["--message-seconds-max", "120"], async |_| {
        let mut producer = Producer::new().await;
        let mut slow = follow(&request("s", "t", 0)).await;
        for _ in 0..BATCHES {
            producer.send(&[&[0x1f; 700][..]; 20]).await;
            Sim::sleep(Duration::from_millis(100)).await;
        }
        let (mut last, mut pushes) = (0, 0);
        while last < BATCHES * 20 - 1 {
            let pushed = next(&mut slow).await;
            last =
                pushed["messages"].as_array().unwrap().last().unwrap()["offset"].as_u64().unwrap();
            pushes += 1;
        }
        // Four a second would be 160.
        assert!(pushes < 100, "{pushes}");
    });
}

#[test]
fn viewers_are_limited_and_one_that_leaves_makes_room() {
    let _ = with_server(&[], async |_| {
        let mut viewers = Vec::new();
        for n in 0..VIEWS_MAX {
            let mut viewer = open(ADMIN, ["/live", "/tail"][n % 2]).await;
            if n % 2 == 0 {
                next(&mut viewer).await;
            }
            viewers.push(viewer);
        }
        let mut refused = open(ADMIN, "/live").await;
        let (code, reason) = closed(&mut refused).await;
        assert!(code == 1013 && reason.contains("too many"), "{code} {reason}");
        drop(viewers.pop());
        Sim::sleep(SECOND).await;
        next(&mut open(ADMIN, "/live").await).await;
        let (head, _) = ask(ADMIN, "GET /health").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    });
}

#[test]
fn a_viewer_that_talks_is_closed() {
    let _ = with_server(&[], async |_| {
        let mut live = open(ADMIN, "/live").await;
        for _ in 0..65 {
            live.outgoing.send(Message::Text("hello")).await.unwrap();
        }
        assert_eq!(closed(&mut live).await.0, 1008);
        let mut live = open(ADMIN, "/live").await;
        live.outgoing.send(Message::Text(&"x".repeat(8_000))).await.unwrap();
        assert_eq!(closed(&mut live).await.0, 1009);
    });
}

fn request(stream: &str, topic: &str, partition: u32) -> String {
    let request = json!({
        "user": "iggy", "password": "secret", "stream": stream, "topic": topic, "partition": partition,
    });
    request.to_string()
}

async fn ask_for(request: &str) -> WebSocket<SimStream> {
    let mut tail = open(ADMIN, "/tail").await;
    tail.outgoing.send(Message::Text(request)).await.unwrap();
    tail
}

/// A request that is not refused.
async fn follow(request: &str) -> WebSocket<SimStream> {
    let mut tail = ask_for(request).await;
    assert_eq!(next(&mut tail).await, json!({ "messages": [] }));
    tail
}

/// The offsets of the next push, whose payloads are their offsets.
async fn offsets(tail: &mut WebSocket<SimStream>) -> Vec<u64> {
    let pushed = next(tail).await;
    let messages = pushed["messages"].as_array().unwrap();
    let offset = |message: &Value| {
        let offset = message["offset"].as_u64().unwrap();
        assert_eq!(message["text"], offset.to_string());
        offset
    };
    messages.iter().map(offset).collect()
}

#[test]
fn the_newest_messages_of_a_partition_are_shown() {
    let _ = with_server(&[], async |_| {
        let mut producer = Producer::new().await;
        let mut from_empty = follow(&request("s", "t", 0)).await;
        Sim::sleep(SECOND).await;
        producer.send_numbers(0..3).await;
        assert_eq!(offsets(&mut from_empty).await, [0, 1, 2]);
        producer.send_numbers(3..100).await;
        assert!(offsets(&mut from_empty).await.into_iter().eq(80..100), "the newest ones");
        // By number, and at either worker.
        let mut tails = Vec::new();
        for _ in 0..6 {
            let mut tail = follow(&request("0", "0", 0)).await;
            assert!(offsets(&mut tail).await.into_iter().eq(80..100));
            tails.push(tail);
        }
        for n in 100..110 {
            producer.send_numbers(n..n + 1).await;
            Sim::sleep(SECOND).await;
        }
        for tail in &mut tails {
            for n in 100..110 {
                assert_eq!(offsets(tail).await, [n]);
            }
        }
    });
}

/// However fast it grows, a viewer is never behind, and each push is short.
#[test]
fn a_partition_that_grows_fast_is_shown_as_it_is_now() {
    let _ = with_server(&[], async |_| {
        let mut producer = Producer::new().await;
        let mut tail = follow(&request("s", "t", 0)).await;
        meanwhile(async move {
            for n in 0..40 {
                producer.send(&[&[n; 100_000][..]; 5]).await;
                producer.send(&[&[0x1f; 700][..]; 500]).await;
                Sim::sleep(Duration::from_millis(100)).await;
            }
        });
        let (mut next_offset, mut pushes) = (0, 0);
        while next_offset < 40 * 505 {
            let pushed = next(&mut tail).await;
            assert!(pushed.to_string().len() < MESSAGE_BYTES_MAX);
            let messages = pushed["messages"].as_array().unwrap();
            assert!((1..=20).contains(&messages.len()), "{}", messages.len());
            for message in messages {
                assert!(message["offset"].as_u64().unwrap() >= next_offset);
                next_offset = message["offset"].as_u64().unwrap() + 1;
            }
            pushes += 1;
        }
        assert!((10..30).contains(&pushes), "{pushes}");
    });
}

#[test]
fn a_request_that_is_refused_is_closed_with_the_reason() {
    let _ = with_server(&[], async |_| {
        let _producer = Producer::new().await;
        let right = request("s", "t", 0);
        for (wrong, code, culprit) in [
            (right.replace("secret", "Secret"), 4401, "password"),
            (right.replace("iggy", "root"), 4401, "password"),
            (request("x", "t", 0), 4404, "stream \"x\""),
            (request("s", "x", 0), 4404, "topic \"x\""),
            (request("s", "t", 1), 4404, "partition \"1\""),
            (request("s/t", "t", 0), 4404, "stream \"s/t\""),
            (request(&"日".repeat(85), "t", 0), 4404, "stream"), // a long reason is cut
            (right[1..].to_owned(), 4400, "JSON"),
            (right.replace("user", "users"), 4400, "JSON"),
        ] {
            let began = Sim::now();
            let (got, reason) = closed(&mut ask_for(&wrong).await).await;
            assert!(got == code && reason.contains(culprit), "{wrong}: {got} {reason}");
            let is_late = Sim::now() - began >= SECOND;
            assert_eq!(is_late, code == 4401, "a wrong password is answered late");
            assert!(!reason.to_lowercase().contains("secret"), "{reason}");
        }
        let began = Sim::now();
        assert_eq!(closed(&mut open(ADMIN, "/tail").await).await.0, 1008);
        let waited = Sim::now() - began;
        assert!((10 * SECOND..11 * SECOND).contains(&waited), "{waited:?}");
        let mut talks = follow(&right).await;
        for _ in 0..65 {
            talks.outgoing.send(Message::Text("hello")).await.unwrap();
        }
        assert_eq!(closed(&mut talks).await.0, 1008);
    });
}

#[test]
fn a_viewer_of_a_partition_that_is_purged_is_told() {
    let _ = with_server(&[], async |_| {
        let mut producer = Producer::new().await;
        producer.send_numbers(0..3).await;
        let mut tail = follow(&request("s", "t", 0)).await;
        assert_eq!(offsets(&mut tail).await, [0, 1, 2]);
        producer.purge().await;
        let (code, reason) = closed(&mut tail).await;
        assert!(code == 4001 && reason.contains("purged"), "{code} {reason}");
    });
}
