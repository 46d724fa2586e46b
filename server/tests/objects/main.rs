//! Objects in the simulation, where any read or write may be short. `SIM_SEEDS` sets the number of seeds.

mod failures;
mod server;

use std::num::NonZeroUsize;
use std::path::Path;

use owned_io::{
    BufResult, Clock, Executor, Files, OpenMode, OwnedRead, OwnedWriteAtExt, OwnedWriteExt,
};
use owned_io_server::object::{Directory, Origin};
use owned_io_sim::{Config, Sim};
use server::{
    FakeOrigin, SECOND, Server, answer, config, config_for, object, random_below, simulate,
    with_length,
};

/// While the object arrives, and afterwards, at both workers.
#[test]
fn many_requests_for_a_missing_object_are_one_for_the_origin() {
    const CLIENTS: usize = 200;
    simulate(async || {
        let whole = object(1, 400_000);
        let sent = whole.clone();
        let origin = FakeOrigin::start(async move |_, stream| {
            Sim::sleep(SECOND).await;
            let answer = with_length(&sent);
            for piece in answer.chunks(50_000) {
                stream.write_all(piece.to_vec()).await.into_result()?;
                Sim::sleep(SECOND / 4).await;
            }
            Ok(())
        });
        let server = Server::new(config());
        let mut asking = Vec::new();
        for _ in 0..CLIENTS {
            asking.push(server.ask("GET", "/object/a", ""));
            Sim::sleep(SECOND * random_below(30) as u32 / 1_000).await;
        }
        for answer in asking {
            let answer = answer.await.unwrap();
            assert_eq!(answer.status, 200, "{}", answer.head);
            assert!(answer.body() == whole);
        }
        assert_eq!(origin.count(), 1);
        assert!(server.get("/object/a").await.body() == whole);
        assert_eq!(origin.count(), 1);
        let expected = "GET /p/a HTTP/1.1\r\nHost: origin\r\n";
        assert!(origin.last_request().starts_with(expected), "{}", origin.last_request());
        assert_eq!(server.totals().fetches, 0);
    });
}

/// Under one seed.
#[test]
fn ten_thousand_requests_for_a_missing_object_are_one_for_the_origin() {
    const CLIENTS: usize = 10_000;
    Sim::block_on(Config::with_seed(1), async {
        let whole = object(1, 5_000);
        let sent = with_length(&whole);
        let origin = FakeOrigin::start(async move |_, stream| {
            Sim::sleep(5 * SECOND).await;
            let (first, rest) = sent.split_at(3_000);
            stream.write_all(first.to_vec()).await.into_result()?;
            Sim::sleep(SECOND).await;
            stream.write_all(rest.to_vec()).await.into_result().map(drop)
        });
        let server = Server::new(config());
        let asking: Vec<_> = (0..CLIENTS).map(|_| server.ask("GET", "/object/a", "")).collect();
        for answer in asking {
            assert!(answer.await.unwrap().body() == whole);
        }
        assert_eq!((origin.count(), server.totals().fetches), (1, 0));
    })
    .unwrap();
}

/// With a length, in chunks, and until the end of the connection.
#[test]
fn who_joins_gets_what_is_there_and_then_the_rest() {
    let whole = object(1, 100_000);
    let first = &whole[..60_000];
    let chunked =
        |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    let by_length = (answer("Content-Length: 100000", first), whole[60_000..].to_vec());
    let by_chunks = (
        answer("Transfer-Encoding: chunked", &chunked(first)),
        [chunked(&whole[60_000..]), b"0\r\n\r\n".to_vec()].concat(),
    );
    let by_end = (answer("Server: x", first), whole[60_000..].to_vec());
    // An end of the connection may be that of the origin's process: such an object is not kept.
    for (beginning, rest, requests) in
        [(by_length.0, by_length.1, 1), (by_chunks.0, by_chunks.1, 1), (by_end.0, by_end.1, 2)]
    {
        simulate(async || {
            let (beginning, rest) = (beginning.clone(), rest.clone());
            let origin = FakeOrigin::start(async move |_, stream| {
                stream.write_all(beginning.clone()).await.into_result()?;
                Sim::sleep(5 * SECOND).await;
                stream.write_all(rest.clone()).await.into_result().map(drop)
            });
            let server = Server::new(config());
            let early = server.ask("GET", "/object/a", "");
            Sim::sleep(2 * SECOND).await;
            // Who joins has the first part long before the rest arrives.
            let mut joined = server.connect();
            let request = "GET /object/a HTTP/1.1\r\nHost: a\r\n\r\n";
            joined.write_all(request).await.into_result().unwrap();
            let (start, mut bytes) = (Sim::now(), 0);
            while bytes < 60_000 {
                let read = joined.read(Vec::with_capacity(64 * 1024)).await;
                bytes += read.into_result().unwrap().0;
            }
            assert!(Sim::now() - start < SECOND);
            drop(joined); // it leaves, and nobody notices
            let later = server.ask("GET", "/object/a", "");
            for answer in [early, later] {
                assert!(answer.await.unwrap().body() == whole);
            }
            assert!(server.get("/object/a").await.body() == whole);
            assert_eq!(origin.count(), requests);
        });
    }
}

/// It is fetched to its end all the same.
#[test]
fn an_object_whose_clients_have_all_left_is_there_for_the_next() {
    simulate(async || {
        let whole = object(1, 300_000);
        let sent = with_length(&whole);
        let origin = FakeOrigin::start(async move |_, stream| {
            for piece in sent.chunks(10_000) {
                Sim::sleep(SECOND / 10).await;
                stream.write_all(piece.to_vec()).await.into_result()?;
            }
            Ok(())
        });
        let server = Server::new(config());
        let mut client = server.connect();
        let request = "GET /object/a HTTP/1.1\r\nHost: a\r\n\r\n";
        client.write_all(request).await.into_result().unwrap();
        client.read(Vec::with_capacity(100)).await.into_result().unwrap();
        drop(client);
        Sim::sleep(10 * SECOND).await;
        let start = Sim::now();
        assert!(server.get("/object/a").await.body() == whole);
        assert!(Sim::now() - start < SECOND);
        assert_eq!(origin.count(), 1);
    });
}

/// Its reader keeps what it has still to get, and the cache does not remove it.
#[test]
fn a_client_that_reads_slowly_gets_the_object_as_it_was() {
    simulate(async || {
        let origin = FakeOrigin::start(async |number, stream| {
            let answer = with_length(&object(number, 1_000_000));
            stream.write_all(answer).await.into_result().map(drop)
        });
        let mut config = config();
        config.memory_max = 2_500_000;
        let server = Server::new(config);
        let mut slow = server.connect();
        let request = "GET /object/a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        slow.write_all(request).await.into_result().unwrap();
        for name in ["b", "c", "d"] {
            Sim::sleep(SECOND).await;
            assert_eq!(server.get(&format!("/object/{name}")).await.status, 200);
        }
        assert!(server.totals().held_bytes <= 2_500_000);
        let mut received = Vec::new();
        // Each round reads bytes, or ends.
        loop {
            let BufResult(read, bytes) = slow.read(Vec::with_capacity(64 * 1024)).await;
            if read.unwrap() == 0 {
                break;
            }
            received.extend(bytes);
        }
        assert!(received.ends_with(&object(1, 1_000_000)));
        assert_eq!(origin.count(), 4);
    });
}

#[test]
fn an_object_is_used_while_it_is_fresh_and_replaced_while_it_is_stale() {
    simulate(async || {
        let origin = FakeOrigin::start(async |number, stream| {
            let answer = match number {
                3 => b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_vec(),
                5 => b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n".to_vec(),
                _ => with_length(format!("version {number}").as_bytes()),
            };
            stream.write_all(answer).await.into_result().map(drop)
        });
        let server = Server::new(config());
        let text = async || server.get("/object/a").await.text();
        assert_eq!(text().await, "version 1");
        Sim::sleep(90 * SECOND).await;
        let kept = server.get("/object/a").await;
        assert_eq!(
            (kept.text(), kept.header("Age"), origin.count()),
            ("version 1".into(), Some("90"), 1)
        );
        Sim::sleep(20 * SECOND).await;
        assert_eq!(text().await, "version 1");
        Sim::sleep(SECOND).await;
        assert_eq!((text().await, origin.count()), ("version 2".into(), 2));

        // The origin fails: the old one stays in use.
        Sim::sleep(101 * SECOND).await;
        for _ in 0..5 {
            assert_eq!(text().await, "version 2");
        }
        Sim::sleep(SECOND / 2).await;
        assert_eq!((text().await, origin.count()), ("version 2".into(), 3));
        Sim::sleep(2 * SECOND).await;
        assert_eq!(text().await, "version 2");
        Sim::sleep(SECOND).await;
        assert_eq!((text().await, origin.count()), ("version 4".into(), 4));

        // Its time is over, and it was removed: nothing of it is left.
        Sim::sleep(151 * SECOND).await;
        assert_eq!(server.get("/object/a").await.status, 404);
        assert_eq!(server.get("/object/a").await.status, 404);
        assert_eq!(origin.count(), 5);
        Sim::sleep(6 * SECOND).await;
        assert_eq!((text().await, origin.count()), ("version 6".into(), 6));
    });
}

#[test]
fn the_origin_decides_what_is_kept_and_for_how_long() {
    for (control, seconds, count) in [
        ("max-age=10, stale-while-revalidate=0", 9, 1),
        ("max-age=10, stale-while-revalidate=0", 10, 2),
        ("s-maxage=10, max-age=1000", 10, 2),
        ("no-store", 0, 2),
        ("private", 0, 2),
        ("max-age=0, must-revalidate", 0, 2),
    ] {
        simulate(async || {
            let headers = format!("Content-Length: 2\r\nCache-Control: {control}");
            let origin = FakeOrigin::always(answer(&headers, b"ab"));
            let server = Server::new(config());
            let first = server.get("/object/a").await;
            assert_eq!((first.text(), first.header("Cache-Control")), ("ab".into(), Some(control)));
            Sim::sleep(seconds * SECOND).await;
            assert_eq!(server.get("/object/a").await.text(), "ab");
            assert_eq!(origin.count(), count, "{control}, {seconds} s");
        });
    }
}

#[test]
fn a_client_gets_the_part_that_it_asks_for_or_is_told_that_it_has_it() {
    simulate(async || {
        let whole = object(1, 300_000);
        let origin = FakeOrigin::always(answer(
            "Content-Length: 300000\r\nETag: \"origin\"\r\nContent-Type: a/b\r\nSet-Cookie: a=b",
            &whole,
        ));
        let server = Server::new(config());
        // Also while it arrives, because the origin has said how long it is.
        for _ in 0..2 {
            let part = server.get_with("/object/a", "Range: bytes=131000-131999\r\n").await;
            assert_eq!((part.status, part.header("ETag")), (206, Some("\"origin\"")));
            assert_eq!(part.header("Content-Range"), Some("bytes 131000-131999/300000"));
            assert!(part.body() == whole[131_000..132_000]);
            let last = server.get_with("/object/a", "Range: bytes=-1\r\n").await;
            assert_eq!(last.body(), whole[299_999..]);
            let beyond = server.get_with("/object/a", "Range: bytes=300000-\r\n").await;
            assert_eq!(
                (beyond.status, beyond.header("Content-Range")),
                (416, Some("bytes */300000"))
            );
            // The answer is for nobody else.
            assert_eq!(beyond.header("Cache-Control"), Some("no-store"));
            let same = server.get_with("/object/a", "If-None-Match: \"origin\"\r\n").await;
            assert_eq!((same.status, same.raw.len(), same.header("Content-Type")), (304, 0, None));
            assert_eq!(same.header("ETag"), Some("\"origin\""));
            let other = server.get_with("/object/a", "If-None-Match: \"other\"\r\n").await;
            assert!(other.body() == whole);
            assert_eq!(
                (other.header("Content-Type"), other.header("Set-Cookie")),
                (Some("a/b"), None)
            );
            let head = server.ask("HEAD", "/object/a", "").await.unwrap();
            assert_eq!((head.status, head.header("Content-Length")), (200, Some("300000")));
            assert!(head.raw.is_empty());
        }
        assert_eq!(origin.count(), 1);
    });
}

#[test]
fn an_object_without_a_tag_gets_one_of_its_bytes() {
    simulate(async || {
        let origin = FakeOrigin::start(async |number, stream| {
            let answer = with_length(&object(number / 3, 5_000));
            stream.write_all(answer).await.into_result().map(drop)
        });
        let server = Server::new(config());
        let mut tags = Vec::new();
        for name in ["a", "b", "c"] {
            let path = format!("/object/{name}");
            assert_eq!(server.get(&path).await.header("ETag"), None, "it is not known yet");
            tags.push(server.get(&path).await.header("ETag").unwrap().to_owned());
        }
        assert_eq!(tags[0], tags[1]);
        assert_ne!(tags[1], tags[2]);
        let same = server.get_with("/object/a", &format!("If-None-Match: {}\r\n", tags[0])).await;
        assert_eq!((same.status, origin.count()), (304, 3));
    });
}

#[test]
fn a_body_is_sent_in_chunks_of_the_length_that_was_asked_for() {
    for chunk in [4_096, 50_000, 200_000] {
        simulate(async || {
            let whole = object(1, 300_000);
            FakeOrigin::always(with_length(&whole));
            let mut config = config();
            config.chunk_bytes = NonZeroUsize::new(chunk);
            let server = Server::new(config);
            assert!(server.get("/object/a").await.body() == whole);
            let stored = server.get("/object/a").await;
            assert_eq!(stored.header("Content-Length"), None);
            let chunks = stored.chunks();
            assert!(chunks.concat() == whole);
            assert_eq!(chunks.len(), whole.len().div_ceil(chunk));
            assert!(chunks.iter().rev().skip(1).all(|it| it.len() == chunk));
        });
    }
}

#[test]
fn an_old_client_gets_the_object_until_the_connection_ends() {
    simulate(async || {
        FakeOrigin::always(answer("Transfer-Encoding: chunked", b"3\r\nabc\r\n0\r\n\r\n"));
        let server = Server::new(config());
        let mut client = server.connect();
        client.write_all("GET /object/a HTTP/1.0\r\n\r\n").await.into_result().unwrap();
        let mut answer = Vec::new();
        // Each round reads bytes, or ends.
        loop {
            let (count, bytes) = client.read(Vec::with_capacity(512)).await.into_result().unwrap();
            if count == 0 {
                break;
            }
            answer.extend(bytes);
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.ends_with("\r\n\r\nabc") && !answer.contains("chunked"), "{answer}");
    });
}

#[test]
fn the_files_of_a_directory_are_objects() {
    simulate(async || {
        let dir = Path::new("/objects");
        Sim::create_dir_all(dir).await.unwrap();
        let whole = object(1, 300_000);
        for (name, contents) in [("a b.txt", &whole), ("empty", &Vec::new())] {
            let file = Sim::open(&dir.join(name), OpenMode::Create).await.unwrap();
            file.write_all_at(contents.clone(), 0).await.into_result().unwrap();
        }
        let server = Server::new(config_for(Origin::Directory(Directory::of_runtime(dir))));
        for _ in 0..2 {
            let found = server.get("/object/a%20b.txt").await;
            assert_eq!((found.status, found.header("Content-Type")), (200, Some("text/plain")));
            assert!(found.body() == whole);
            assert_eq!(server.get("/object/empty").await.text(), "");
            assert_eq!(server.get("/object/absent").await.status, 404);
        }
        // It is read again when its time is over.
        Sim::remove_file(&dir.join("empty")).await.unwrap();
        Sim::sleep(200 * SECOND).await;
        assert_eq!(server.get("/object/empty").await.status, 404);
    });
}

#[test]
fn a_bad_request_is_answered_by_what_is_wrong_with_it() {
    simulate(async || {
        let origin = FakeOrigin::always(with_length(b"ab"));
        let server = Server::new(config());
        let long = format!("/object/{}", "n".repeat(256));
        for (target, status, why) in [
            ("/object/", 400, "missing"),
            ("/object/.", 400, "dot"),
            ("/object/..", 400, "dot"),
            ("/object/%2e%2e", 400, "dot"),
            ("/object/a/b", 400, "slash"),
            ("/object/a%2Fb", 400, "slash"),
            ("/object//etc/passwd", 400, "slash"),
            ("/object/..%5Ca", 400, "dot"),
            ("/object/a%5Cb", 400, "slash"),
            ("/object/a%00", 400, "control"),
            ("/object/a%0D%0Ab", 400, "control"),
            ("/object/%", 400, "encoded"),
            ("/object/%zz", 400, "encoded"),
            ("/object/%ff", 400, "encoded"),
            ("/object/a?b", 400, "query"),
            (&*long, 400, "255"),
            ("/object", 404, "paths"),
        ] {
            let answer = server.get(target).await;
            assert!(answer.status == status && answer.text().contains(why), "{target}: {answer:?}");
        }
        assert_eq!(server.ask("POST", "/object/a", "").await.unwrap().status, 405);
        assert_eq!(origin.count(), 0);
        let none = Server::without_origin().get("/object/a").await;
        assert!(none.status == 404 && none.text().contains("--origin"), "{none:?}");
    });
}
