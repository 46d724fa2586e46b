//! The commands that speak WebSocket, against small servers on threads.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};

use super::{RUN_MAX, load, server};

pub(super) const BINARY: u8 = 0x82;
const COMPRESSED_TEXT: u8 = 0xc1;
const CLOSE: u8 = 0x88;
const PING: u8 = 0x89;
const PONG: u8 = 0x8a;

/// The header that agrees to compression, after the accept.
const DEFLATE: &str =
    "\r\nSec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover";

/// Runs `serve` on each connection once it is upgraded, with its number and path.
pub(super) fn websocket<F>(serve: F) -> SocketAddr
where
    F: Fn(u32, &str, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static,
{
    server(move |number, mut stream| {
        let path = upgrade(&mut stream, "")?;
        serve(number, &path, &mut stream)
    })
}

/// Answers the upgrade request, with `more` after the accept. Returns the path of the request.
fn upgrade(stream: &mut (impl Read + Write), more: &str) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("ASCII");
    let after = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).expect(name);
    assert!(after("Host: ").starts_with("127.0.0.1:"));
    assert_eq!((after("Upgrade: "), after("Connection: ")), ("websocket", "Upgrade"));
    assert_eq!(after("Sec-WebSocket-Version: "), "13");
    let key = after("Sec-WebSocket-Key: ");
    assert_eq!(STANDARD.decode(key).expect("base64").len(), 16);
    let guid = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    let accept = STANDARD.encode(Sha1::new().chain_update(key).chain_update(guid).finalize());
    write!(
        stream,
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}{more}\r\n\r\n"
    )?;
    let path = after("GET ").strip_suffix(" HTTP/1.1").expect("a version");
    Ok(path.to_owned())
}

/// The next frame of the client: its first byte, and its payload.
pub(super) fn receive(stream: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 2];
    stream.read_exact(&mut head)?;
    let [first, second] = head;
    assert!(second & 0x80 != 0, "it is masked");
    let mut len = [0; 8];
    let extended = match second & 0x7f {
        126 => 2,
        127 => 8,
        short => {
            len[7] = short;
            0
        }
    };
    stream.read_exact(&mut len[8 - extended..])?;
    let mut key = [0; 4];
    stream.read_exact(&mut key)?;
    assert!(key.iter().all(|byte| *byte != 0));
    let mut payload = vec![0; u64::from_be_bytes(len) as usize];
    stream.read_exact(&mut payload)?;
    payload.iter_mut().zip(key.iter().cycle()).for_each(|(byte, key)| *byte ^= key);
    Ok((first, payload))
}

pub(super) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        short @ 0..=125 => frame.push(short as u8),
        len @ 126..=0xffff => {
            frame.push(126);
            frame.extend((len as u16).to_be_bytes());
        }
        len => {
            frame.push(127);
            frame.extend((len as u64).to_be_bytes());
        }
    }
    frame.extend(payload);
    frame
}

/// Answers each message with the result of `answer`, which gets its payload and the number of earlier messages.
fn answering(
    answer: impl Fn(usize, &[u8]) -> Vec<u8> + Send + Sync + 'static,
) -> impl Fn(u32, &str, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static {
    move |_, _, stream| {
        for number in 0.. {
            let (first, payload) = receive(stream)?;
            assert_eq!(first, BINARY);
            stream.write_all(&answer(number, &payload))?;
        }
        Ok(())
    }
}

fn good_echo() -> SocketAddr {
    websocket(answering(|_, payload| frame(BINARY, payload)))
}

/// A source. `change` may alter each answer before it is sent.
fn source(change: impl Fn(&mut Vec<u8>) + Send + Sync + 'static) -> SocketAddr {
    websocket(move |_, path, stream| {
        let query = path.strip_prefix("/source?").expect("a query");
        let field = |name: &str| -> u32 {
            let value = query.split('&').find_map(|field| field.strip_prefix(name)).expect(name);
            value.parse().expect("a number")
        };
        let (messages, bytes) = (field("messages="), field("bytes="));
        assert_eq!(field("batch="), 10);
        if messages == u32::MAX {
            for n in 0.. {
                let payload: Vec<u8> = (0..bytes).map(|i| (n + i) as u8).collect();
                stream.write_all(&frame(BINARY, &payload))?;
            }
        }
        let mut answer = Vec::new();
        for n in 0..messages {
            let payload: Vec<u8> = (0..bytes).map(|i| (n + i) as u8).collect();
            answer.extend(frame(BINARY, &payload));
        }
        answer.extend(frame(CLOSE, &1000_u16.to_be_bytes()));
        change(&mut answer);
        stream.write_all(&answer)?;
        io::copy(stream, &mut io::sink()).map(drop)
    })
}

#[test]
fn an_echo() {
    // The last takes a second on a busy machine: the code is not optimised, and both ends mask.
    for (payload, in_flight, seconds) in
        [(1, 100, 0.3), (125, 1, 0.3), (126, 4, 0.3), (65_536, 2, 0.3), (3_000_000, 3, 3.0)]
    {
        let options = format!(
            "--websocket /echo --connections 3 --payload {payload} --in-flight {in_flight} \
             --seconds {seconds} --warm-up 0.1"
        );
        let run = load("echo", good_echo(), &options);
        run.is_clean();
        assert_eq!(run.number("/connections/opened"), 3.0);
        assert!(run.number("/messages/received") > 0.0, "{}", run.stdout);
        assert_eq!(run.number("/messages/unanswered"), 0.0);
    }
    let options = "--websocket /echo --connections 3 --payload 50 --in-flight 8 --seconds 0.5";
    let run = load("echo", good_echo(), &format!("{options} --warm-up 0 --rate 2000"));
    run.is_clean();
    assert_eq!(run.number("/latency_us/count"), 1000.0, "{}", run.stdout);
}

/// Echoes compressed messages unchanged, except that `change` may alter each, by its number.
fn compressed_echo(change: impl Fn(usize, &mut Vec<u8>) + Send + Sync + 'static) -> SocketAddr {
    server(move |_, mut stream| echo_compressed(&mut stream, &change))
}

pub(super) fn echo_compressed(
    stream: &mut (impl Read + Write),
    change: impl Fn(usize, &mut Vec<u8>),
) -> io::Result<()> {
    upgrade(stream, DEFLATE)?;
    for number in 0.. {
        let (first, payload) = receive(stream)?;
        assert_eq!(first, COMPRESSED_TEXT);
        let mut answer = frame(first, &payload);
        change(number, &mut answer);
        stream.write_all(&answer)?;
    }
    Ok(())
}

#[test]
fn a_compressed_echo() {
    let options = "--websocket /echo --connections 3 --in-flight 4 --seconds 0.3 --warm-up 0.1";
    for payload in [1, 1024, 100_000] {
        let options = format!("{options} --payload {payload}");
        let run = load("deflate", compressed_echo(|_, _| {}), &options);
        run.is_clean();
        assert_eq!(run.number("/connections/opened"), 3.0);
        assert!(run.number("/messages/received") > 0.0, "{}", run.stdout);
    }
    // Later answers must equal the first byte by byte.
    let options = format!("{options} --payload 1024");
    let other = |number: usize, answer: &mut Vec<u8>| {
        if number == 5 {
            *answer.last_mut().expect("a byte") ^= 1;
        }
    };
    let run = load("deflate", compressed_echo(other), &options);
    run.is_wrong("the answer to message 5 is wrong");
    // The first answer must be the message, compressed.
    let plain = |_, answer: &mut Vec<u8>| answer[0] ^= 0x40;
    let run = load("deflate", compressed_echo(plain), &options);
    run.is_refused("not compressed");
    let run = load("deflate", good_echo(), &options);
    run.is_refused("no compression");
    let run = load("deflate", good_echo(), "--connections 1 --payload 1 --seconds 0.1");
    run.is_refused("`load deflate` needs --websocket PATH");
}

#[test]
fn an_echo_in_fragments_in_pieces_and_with_pings_that_are_answered() {
    let addr = websocket(|_, _, stream| {
        stream.set_nodelay(true)?;
        loop {
            let (first, payload) = receive(stream)?;
            assert_eq!(first, BINARY);
            let (begin, end) = payload.split_at(payload.len() / 3);
            let answer = [
                frame(0x02, begin),
                frame(PING, b"the last of several is answered"),
                frame(PING, b"are you there?"),
                frame(0x00, b""),
                frame(PONG, b"unasked, and allowed"),
                frame(0x80, end),
            ];
            for piece in answer.concat().chunks(7) {
                stream.write_all(piece)?;
            }
            while receive(stream)? != (PONG, b"are you there?".to_vec()) {}
        }
    });
    let options = "--websocket / --connections 2 --payload 200 --seconds 0.3 --warm-up 0";
    let run = load("echo", addr, options);
    run.is_clean();
    assert!(run.number("/messages/received") > 10.0, "{}", run.stdout);
}

#[test]
fn an_echo_that_is_not_what_was_sent() {
    type Answer = fn(usize, &[u8]) -> Vec<u8>;
    let cases: [(Answer, &str); 11] = [
        (|_, payload| frame(BINARY, &[&payload[..99], &[payload[99] ^ 1]].concat()), "is wrong"),
        (|_, payload| frame(BINARY, &payload[..99]), "is wrong"),
        (|_, payload| frame(BINARY, &[payload, b"x"].concat()), "is wrong"),
        (|_, payload| [frame(0x02, payload), frame(0x80, b"x")].concat(), "is wrong"),
        (|_, payload| [frame(0x02, &payload[..9]), frame(0x80, b"")].concat(), "is wrong"),
        (|_, payload| frame(BINARY, payload).repeat(2), "more came than"),
        (|_, payload| frame(0x81, payload), "a text message"),
        (|_, payload| frame(0xc2, payload), "a reserved bit"),
        (|_, payload| [&[BINARY, 0x80 | 100, 1, 2, 3, 4], payload].concat(), "a masked frame"),
        (|_, payload| [&[BINARY, 126, 0, 100], payload].concat(), "shortest form"),
        (|_, payload| frame(0x80, payload), "a fragment of no message"),
    ];
    for (answer, what) in cases {
        let addr = websocket(answering(move |number, payload| {
            if number == 7 { answer(number, payload) } else { frame(BINARY, payload) }
        }));
        let options = "--websocket /echo --connections 1 --payload 100 --seconds 0.3 --warm-up 0";
        let run = load("echo", addr, options);
        run.is_wrong(what);
        assert!(run.stderr.contains("message 7") || what == "more came than", "{}", run.stderr);
    }
}

#[test]
fn a_close_in_the_middle_is_counted() {
    for (payload, kind) in [
        (&[3, 233][..], "closed by the server with 1001"),
        (&[], "closed by the server without a code"),
        (&[3, 232], "closed by the server with 1000"),
    ] {
        let (answer, answers) = mpsc::channel();
        let addr = websocket(move |number, _, stream| {
            for message in 0.. {
                let (_, received) = receive(stream)?;
                if number == 1 && message == 50 {
                    stream.write_all(&frame(CLOSE, payload))?;
                    answer.send(receive(stream)?).expect("a receiver");
                    return Ok(());
                }
                stream.write_all(&frame(BINARY, &received))?;
            }
            Ok(())
        });
        let options = "--websocket /echo --connections 2 --payload 100 --seconds 0.3 --warm-up 0";
        let run = load("echo", addr, options);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        assert_eq!(run.json["connections"]["errors"][kind], 1, "{}", run.stdout);
        assert_eq!(run.number("/messages/unanswered"), 1.0, "{}", run.stdout);
        assert_eq!(answers.recv(), Ok((CLOSE, payload.to_vec())));
    }
}

#[test]
fn answers_that_are_not_websocket() {
    let steady = "--websocket /echo --connections 2 --payload 100 --seconds 0.3 --warm-up 0";
    let not_found = server(|_, mut stream| {
        stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")?;
        io::copy(&mut stream, &mut io::sink()).map(drop)
    });
    let refused = "no connection could be opened: upgrade refused: HTTP/1.1 404 Not Found (2)";
    load("echo", not_found, steady).is_refused(refused);
    let hold = "--websocket /echo --connections 2 --seconds 0.3";
    load("hold", not_found, hold).is_refused(refused);

    let wrong_accept = server(|_, mut stream| {
        upgrade(&mut stream, "x")?;
        io::copy(&mut stream, &mut io::sink()).map(drop)
    });
    load("echo", wrong_accept, steady).is_wrong("Sec-WebSocket-Accept");
    let unasked = server(|_, mut stream| {
        upgrade(&mut stream, "\r\nSec-WebSocket-Extensions: permessage-deflate")?;
        io::copy(&mut stream, &mut io::sink()).map(drop)
    });
    load("echo", unasked, steady).is_wrong("an extension");

    let silent = server(|_, mut stream| io::copy(&mut stream, &mut io::sink()).map(drop));
    load("echo", silent, &format!("{steady} --patience 0.3")).is_refused("not open within 0.3 s");
    let usage = steady.replace("/echo", "echo");
    load("echo", silent, &usage).is_refused("expected a path such as /echo");
}

#[test]
fn a_sink() {
    let addr =
        websocket(answering(|_, payload| frame(BINARY, &(payload.len() as u64).to_le_bytes())));
    let options = "--websocket /sink --connections 3 --payload 70000 --in-flight 4 --seconds 0.3";
    let run = load("sink", addr, options);
    run.is_clean();
    assert!(run.number("/messages/received") > 10.0, "{}", run.stdout);
    let addr = websocket(answering(|_, _| frame(BINARY, &7_u64.to_le_bytes())));
    load("sink", addr, options).is_wrong("message 0 is wrong");
}

#[test]
fn a_fetch() {
    let options = "--websocket /source --connections 2 --in-flight 2 --payload 300 --seconds 0.4 \
                   --warm-up 0.1";
    let message = || (0..300).map(|i| i as u8).collect::<Vec<_>>();
    let answer = move |_, request: &[u8]| {
        assert_eq!(request, [1, 300, 1].map(u32::to_le_bytes).as_flattened());
        frame(BINARY, &message())
    };
    let run = load("fetch", websocket(answering(answer)), options);
    run.is_clean();
    assert!(run.number("/messages/received") > 0.0, "{}", run.stdout);
    let longer = move |_, _: &[u8]| frame(BINARY, &[&message()[..], &[44]].concat());
    load("fetch", websocket(answering(longer)), options).is_wrong("message 0");
}

#[test]
fn a_source() {
    for (messages, bytes, connections) in [(1, 1, 1), (1000, 300, 2), (3, 5_000_000, 1)] {
        let options = format!(
            "--websocket /source --messages {messages} --bytes {bytes} --batch 10 \
             --connections {connections}"
        );
        let run = load("source", source(|_| ()), &options);
        run.is_clean();
        assert_eq!(run.number("/messages/received"), f64::from(messages * connections));
        assert_eq!(run.number("/messages/unanswered"), 0.0);
    }
}

#[test]
fn a_source_without_end() {
    let options = "--websocket /source --bytes 300 --batch 10 --connections 2";
    let run = load("source", source(|_| ()), &format!("{options} --seconds 0.4 --warm-up 0.1"));
    run.is_clean();
    assert!((run.number("/seconds") - 0.4).abs() < 0.1, "{}", run.stdout);
    assert!(run.number("/messages/received") > 100.0, "{}", run.stdout);
}

#[test]
fn a_source_that_is_wrong_or_stops() {
    const FRAME: usize = 304;
    let options = "--websocket /source --messages 1000 --bytes 300 --batch 10 --patience 0.5";
    let run = load("source", source(|answer| answer[FRAME * 700 + 150] ^= 1), options);
    run.is_wrong("the answer to message 700 is wrong");
    let run = load("source", source(|answer| answer[FRAME * 999 + 3] ^= 1), options);
    run.is_wrong("the answer to message 999 is wrong");
    // The second is what message 1000 would be.
    for unasked in [b"x".to_vec(), (0..300).map(|i| (1000 + i) as u8).collect()] {
        let more = move |answer: &mut Vec<u8>| {
            let close = answer.split_off(FRAME * 1000);
            answer.extend(frame(BINARY, &unasked));
            answer.extend(close);
        };
        load("source", source(more), options).is_wrong("more came than");
    }

    let early = |answer: &mut Vec<u8>| drop(answer.drain(FRAME * 700..FRAME * 1000));
    let run = load("source", source(early), options);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.number("/messages/received"), 700.0);
    assert_eq!(run.number("/messages/unanswered"), 300.0);
    let errors = &run.json["connections"]["errors"];
    assert_eq!(errors["closed by the server with 1000"], 1, "{}", run.stdout);

    for cut in [FRAME * 700 + 150, FRAME * 1000] {
        let run = load("source", source(move |answer| answer.truncate(cut)), options);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        assert_eq!(run.number("/messages/received"), (cut / FRAME) as f64);
        assert_eq!(run.json["connections"]["errors"]["nothing came for 0.5 s"], 1);
    }
}

#[test]
fn idle_websockets_and_those_that_come_while_others_are_busy() {
    let addr = websocket(|number, _, stream| {
        if number < 3 {
            thread::sleep(Duration::from_millis(200));
            return Ok(());
        }
        stream.write_all(&frame(PING, b""))?;
        assert_eq!(receive(stream)?, (PONG, Vec::new()));
        stream.set_read_timeout(Some(RUN_MAX))?;
        receive(stream).map(drop)
    });
    let run = load("hold", addr, "--websocket /echo --connections 20 --seconds 0.6");
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.number("/hold/still_open"), 17.0, "{}", run.stdout);
    assert_eq!(run.json["connections"]["errors"]["closed by the server"], 3);

    let options = "--websocket /echo --busy 4 --payload 200 --rate 100 --seconds 0.5 --warm-up 0";
    let run = load("arrivals", good_echo(), options);
    run.is_clean();
    assert_eq!(run.number("/arrivals/first_echo_us/count"), 50.0, "{}", run.stdout);
    let run = load("burst", good_echo(), "--websocket /echo --connections 60");
    run.is_clean();
    assert_eq!(run.number("/burst/connected"), 60.0, "{}", run.stdout);
    assert_eq!(run.number("/burst/echoed"), 60.0, "{}", run.stdout);
}

#[test]
fn churned_connections_close_with_a_close_frame() {
    let polite = |answer: fn(Vec<u8>) -> Vec<u8>| {
        websocket(move |_, _, stream| {
            loop {
                let (first, payload) = receive(stream)?;
                if first == CLOSE {
                    assert_eq!(payload, 1000_u16.to_be_bytes());
                    return stream.write_all(&answer(payload));
                }
                stream.write_all(&frame(first, &payload))?;
            }
        })
    };
    let options = "--websocket /echo --connections 2 --rate 100 --seconds 0.3 --warm-up 0";
    let run = load("churn", polite(|payload| frame(CLOSE, &payload)), options);
    run.is_clean();
    assert_eq!(run.number("/churn/whole_us/count"), 30.0, "{}", run.stdout);
    let run = load("churn", polite(|_| frame(CLOSE, &1011_u16.to_be_bytes())), options);
    let closed = run.json["connections"]["errors"]["closed by the server with 1011"].as_f64();
    assert_eq!(closed, Some(30.0), "{}", run.stdout);
    let run = load("churn", polite(|_| Vec::new()), options);
    let closed = run.json["connections"]["errors"]["closed by the server"].as_f64();
    assert_eq!(closed, Some(30.0), "{}", run.stdout);
}
