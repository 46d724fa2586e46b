//! Origins that fail. Clients get the right status, and nothing is kept.

use owned_io::{Clock, OwnedWriteExt};
use owned_io_server::service::object::{FETCH_TIME_MAX, HEAD_TIME_MAX, PIECE_TIME_MAX};
use owned_io_sim::Sim;

use super::server::{FakeOrigin, SECOND, Server, answer, config, object, simulate, with_length};

/// Several clients ask at once. The next request is answered as if nothing had happened.
#[test]
fn a_bad_answer_is_a_bad_gateway_and_is_not_kept() {
    let too_long = answer("Content-Length: 1000001", b"");
    for (bytes, why) in [
        (b"".to_vec(), "without an answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Le".to_vec(), "without an answer"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_vec(), "500"),
        (b"HTTP/1.1 302 Found\r\nLocation: /b\r\n\r\n".to_vec(), "302"),
        (b"HTTP/1.1 206 Partial\r\nContent-Length: 1\r\n\r\na".to_vec(), "206"),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n".to_vec(), "304"),
        (b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(), "status line"),
        (answer("Content-Length: 2\r\nContent-Length: 3", b"abc"), "length"),
        (answer("Content-Length: 2\r\nTransfer-Encoding: chunked", b"0\r\n\r\n"), "both"),
        (answer("Transfer-Encoding: gzip", b"abc"), "transfer coding"),
        (answer("A: b\nC: d", b"abc"), "CR and LF"),
        (answer(&format!("A: {}", "b".repeat(17_000)), b"abc"), "too long"),
        (too_long, "object-bytes-max"),
        (answer("Transfer-Encoding: chunked", b"zz\r\nabc"), "chunks"),
    ] {
        simulate(async || {
            let bytes = bytes.clone();
            let origin = FakeOrigin::start(async move |number, stream| {
                Sim::sleep(SECOND).await;
                let answer = if number == 1 { bytes.clone() } else { with_length(b"good") };
                stream.write_all(answer).await.into_result().map(drop)
            });
            let mut config = config();
            config.object_bytes_max = 1_000_000;
            let server = Server::new(config);
            let asking = [0, 1, 2].map(|_| server.ask("GET", "/object/a", ""));
            for answer in asking {
                let answer = answer.await.unwrap();
                // The head of an answer in chunks may have been passed on before they were found to be bad.
                if why == "chunks" && answer.status != 502 {
                    assert!(answer.is_reset);
                    continue;
                }
                assert!(answer.status == 502 && answer.text().contains(why), "{answer:?}");
            }
            server.assert_empty().await;
            assert_eq!(server.get("/object/a").await.text(), "good");
            assert_eq!(origin.count(), 2);
        });
    }
}

/// By its length, by its chunks, because they are malformed, and because there are too many. Who joins later too.
#[test]
fn a_body_that_is_cut_off_resets_its_readers() {
    let half = object(1, 40_000);
    let chunk = [&b"9c40\r\n"[..], &half, b"\r\n"].concat();
    let endless = chunk.repeat(30);
    for (head, body) in [
        ("Content-Length: 80000", half),
        ("Transfer-Encoding: chunked", chunk.clone()),
        ("Transfer-Encoding: chunked", [&chunk[..], b"x"].concat()),
        ("Transfer-Encoding: chunked", endless),
    ] {
        simulate(async || {
            let bytes = answer(head, &body);
            let origin = FakeOrigin::start(async move |number, stream| {
                if number > 1 {
                    return stream.write_all(with_length(b"good")).await.into_result().map(drop);
                }
                let (first, rest) = bytes.split_at(30_000);
                stream.write_all(first.to_vec()).await.into_result()?;
                Sim::sleep(3 * SECOND).await;
                stream.write_all(rest.to_vec()).await.into_result()?;
                Sim::sleep(SECOND).await;
                Ok(())
            });
            let mut config = config();
            config.object_bytes_max = 1_000_000;
            let server = Server::new(config);
            let early = server.ask("GET", "/object/a", "");
            Sim::sleep(2 * SECOND).await;
            for answer in [early, server.ask("GET", "/object/a", "")] {
                let answer = answer.await.unwrap();
                assert!(answer.is_reset, "{}", answer.head);
            }
            server.assert_empty().await;
            assert_eq!(server.get("/object/a").await.text(), "good");
            assert_eq!(origin.count(), 2);
        });
    }
}

#[test]
fn an_origin_that_is_not_there_is_a_bad_gateway() {
    simulate(async || {
        let server = Server::new(config());
        let answer = server.get("/object/a").await;
        assert!(answer.status == 502 && answer.text().contains("reached"), "{answer:?}");
        server.assert_empty().await;
        FakeOrigin::always(with_length(b"good"));
        assert_eq!(server.get("/object/a").await.text(), "good");
    });
}

/// It sends nothing, or a part of a head, or a byte of it now and then.
#[test]
fn an_origin_that_does_not_answer_in_time_is_a_gateway_timeout() {
    for (part, pause) in [("", 1), ("HTTP/1.1 200 OK\r\n", 1_000), ("HTTP/1.1 200 OK\r\nA: b", 1)] {
        simulate(async || {
            let origin = FakeOrigin::start(async move |_, stream| {
                stream.write_all(part).await.into_result()?;
                loop {
                    Sim::sleep(pause * SECOND).await;
                    if !part.is_empty() {
                        stream.write_all("c").await.into_result()?;
                    }
                }
            });
            let (server, start) = (Server::new(config()), Sim::now());
            let answer = server.get("/object/a").await;
            assert_eq!(answer.status, 504, "{answer:?}");
            let took = Sim::now() - start;
            assert!(took >= HEAD_TIME_MAX && took < HEAD_TIME_MAX + SECOND, "{took:?}");
            server.assert_empty().await;
            assert_eq!(origin.count(), 1);
        });
    }
}

/// It sends nothing more, or a byte now and then.
#[test]
fn an_origin_that_stalls_within_a_body_resets_its_readers() {
    for (pause, time_max) in [(1_000, PIECE_TIME_MAX), (5, FETCH_TIME_MAX)] {
        simulate(async || {
            FakeOrigin::start(async move |_, stream| {
                stream.write_all(answer("Content-Length: 1000", b"abc")).await.into_result()?;
                loop {
                    Sim::sleep(pause * SECOND).await;
                    stream.write_all("d").await.into_result()?;
                }
            });
            let (server, start) = (Server::new(config()), Sim::now());
            let answer = server.get("/object/a").await;
            assert!(answer.status == 200 && answer.is_reset, "{answer:?}");
            let took = Sim::now() - start;
            assert!(took >= time_max && took < time_max + SECOND, "{took:?}");
            server.assert_empty().await;
        });
    }
}

#[test]
fn an_object_that_has_no_room_is_refused_for_now() {
    simulate(async || {
        let origin = FakeOrigin::start(async |number, stream| {
            Sim::sleep(SECOND).await;
            let answer = with_length(&object(number, if number == 1 { 90_000 } else { 20_000 }));
            stream.write_all(answer).await.into_result().map(drop)
        });
        let mut config = config();
        config.memory_max = 50_000;
        let server = Server::new(config);
        let answer = server.get("/object/a").await;
        // Some of it may have been passed on.
        if answer.status == 503 {
            assert_eq!(answer.header("Retry-After"), Some("1"));
        } else {
            assert!(answer.is_reset, "{}", answer.head);
        }
        server.assert_empty().await;
        for (n, name) in ["b", "c", "d", "b"].iter().enumerate() {
            let answer = server.get(&format!("/object/{name}")).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert!(server.totals().held_bytes <= 50_000);
            assert_eq!(origin.count(), n + 2, "each removes one of the others");
        }
    });
}
