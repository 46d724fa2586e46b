//! The connection, on the simulator. Reads and writes are short everywhere, and each test runs under many seeds.

mod ends;

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use ends::{Client, Server, answer_all, buffers, simulate, talk, texts};
use owned_io::{
    Buffers, Clock, Executor, MemoryBudget, OwnedWrite, OwnedWriteExt, Pool, PoolConfig, select,
};
use owned_io_http::{
    BodyLength, Config, Connection, Error, Misuse, RangeChoice, Refusal, Response,
};
use owned_io_sim::{Sim, pipe};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const LAST: &str = "GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

fn post(length: usize, body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}")
}

#[test]
fn requests_that_arrive_together_are_answered_in_order() {
    simulate(|| async {
        let requests = format!("{GET}{}{GET}{LAST}", post(3, "abc"));
        let (answers, served) = talk(Config::default(), requests, answer_all).await;
        let expected = ["GET / ", "POST / abc", "GET / ", "GET /last "];
        assert_eq!(texts(&answers), expected);
        assert_eq!(answers.text().matches("Connection: close").count(), 1, "the last one says so");
        served.unwrap();
        assert_eq!(answers.error, None);
    });
}

#[test]
fn bodies_come_and_go_in_pieces_of_any_length() {
    async fn echo(connection: &mut Server) -> Result<(), Error> {
        while let Some(request) = connection.next().await? {
            let (length, name) = (request.body(), request.path().to_owned());
            connection.begin(&Response::new(200), length).await?;
            while let Some(piece) = connection.read_body().await? {
                let piece = piece.to_vec();
                connection.write_body(piece).await?;
            }
            assert_eq!(connection.request().expect("until the next").path(), name);
            connection.finish().await?;
            assert_eq!(connection.read_body().await?, None, "again");
        }
        Ok(())
    }
    simulate(|| async {
        // A longer one would end the connection: its answer begins before it is read.
        let body: String = ('a'..='z').cycle().take(60_000).collect();
        let chunks: String =
            [1, 10, 1000, 50_000].map(|len| format!("{len:x}\r\n{}\r\n", &body[..len])).concat();
        let chunked = "POST /chunked HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let requests =
            format!("{}{chunked}{chunks}0\r\nA: b\r\n\r\n{LAST}", post(body.len(), &body));
        let (answers, served) = talk(Config::default(), requests, echo).await;
        served.unwrap();
        let expected: String = [1, 10, 1000, 50_000].map(|len| &body[..len]).concat();
        assert_eq!(texts(&answers), [&body[..], &expected, ""]);
    });
}

#[test]
fn long_bodies_leave_whole_among_short_ones() {
    async fn serve(connection: &mut Server) -> Result<(), Error> {
        let long = Bytes::from(vec![b'x'; 1_345_292]);
        while let Some(request) = connection.next().await? {
            let is_last = request.is_last();
            let body = if is_last { long.clone() } else { Bytes::from_static(b"short") };
            connection.respond(&Response::new(200), body).await?;
        }
        Ok(())
    }
    simulate(|| async {
        let (answers, served) = talk(Config::default(), format!("{GET}{GET}{LAST}"), serve).await;
        served.unwrap();
        assert_eq!(texts(&answers), ["short", "short", &"x".repeat(1_345_292)]);
    });
}

#[test]
fn a_client_is_told_to_continue_when_its_body_is_wanted() {
    simulate(|| async {
        let head =
            "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
        let (near, far) = pipe();
        let serving = ends::serve(near, Config::default(), answer_all);
        let (mut far, mut client) = Client::new(far);
        far.write_all(head).await.into_result().unwrap();
        client.read_until("HTTP/1.1 100 Continue\r\n\r\n").await;
        far.write_all(format!("abc{LAST}")).await.into_result().unwrap();
        let answers = client.read_to_end().await;
        assert_eq!(texts(&answers), ["POST / abc", "GET /last "]);
        drop((far, client));
        serving.await.unwrap().unwrap();
    });
}

/// Nobody could tell whether the bytes behind the head are a body or a request.
#[test]
fn a_client_that_was_not_told_to_continue_is_not_served_further() {
    simulate(|| async {
        let head =
            "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
        let (answers, served) =
            talk(Config::default(), format!("{head}{GET}"), async |connection: &mut Server| {
                while connection.next().await?.is_some() {
                    connection.respond(&Response::new(403), "no").await?;
                }
                Ok(())
            })
            .await;
        served.unwrap();
        assert_eq!(texts(&answers), ["no"]);
        assert!(
            answers.text().contains("Connection: close\r\n") && !answers.text().contains(" 100 ")
        );
    });
}

/// A client of HTTP/1.0 gets one answer. The end of the connection ends a body of unknown length.
#[test]
fn a_client_of_http_1_0_is_answered_and_the_connection_ends() {
    async fn serve(connection: &mut Server) -> Result<(), Error> {
        while let Some(request) = connection.next().await? {
            if request.path() == "/cut" {
                connection.begin(&Response::new(200), BodyLength::Chunked).await?;
                connection.write_body("a part").await?;
                return connection.close().await;
            }
            connection.begin(&Response::new(200), BodyLength::Chunked).await?;
            connection.write_body("all ").await?;
            connection.write_body("of it").await?;
            connection.finish().await?;
        }
        Ok(())
    }
    simulate(|| async {
        let old = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
        let (answers, served) = talk(Config::default(), format!("{old}{GET}"), serve).await;
        served.unwrap();
        let (head, body) = answers.text().split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\nConnection: close"));
        assert_eq!((body, answers.error), ("all of it", None));

        let cut = "GET /cut HTTP/1.0\r\n\r\n";
        let (answers, served) = talk(Config::default(), cut, serve).await;
        served.unwrap();
        assert!(answers.error.is_some(), "a part is not taken for the whole: {answers:?}");
    });
}

#[test]
fn the_answer_to_head_has_a_length_and_no_body() {
    simulate(|| async {
        let requests = format!("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n{LAST}");
        let (answers, served) = talk(Config::default(), requests, answer_all).await;
        served.unwrap();
        let (first, second) = answers.text().split_once("\r\n\r\nHTTP/1.1 ").unwrap();
        assert!(
            first.ends_with("\r\nContent-Length: 7") && first.starts_with("HTTP/1.1 200 OK"),
            "{first}"
        );
        assert!(second.ends_with("\r\n\r\nGET /last "), "{second}");
    });
}

/// Its client expects none, also if it is refused, whatever is wrong with it.
#[test]
fn a_refusal_of_head_has_no_body() {
    simulate(|| async {
        for (request, is_empty) in [
            ("HEAD /a#b HTTP/1.1\r\nHost: a\r\n\r\n", true),
            ("\r\nHEAD /a#b HTTP/1.1\r\nHost: a\r\n\r\n", true),
            ("HEAD / HTTP/1.1\r\n\r\n", true),
            ("HEADS /a#b HTTP/1.1\r\nHost: a\r\n\r\n", false),
            ("\r\n\r\nHEAD / HTTP/1.1\r\nHost: a\r\n\r\n", false),
        ] {
            let (answers, served) = talk(Config::default(), request, answer_all).await;
            assert!(matches!(served, Err(Error::Refused(_))), "{request}: {served:?}");
            assert_eq!(answers.text().ends_with("\r\n\r\n"), is_empty, "{request}: {answers:?}");
        }
    });
}

/// Answers without reading any body.
async fn ignore_bodies(connection: &mut Server) -> Result<(), Error> {
    while let Some(request) = connection.next().await? {
        let path = request.path().to_owned();
        connection.respond(&Response::new(200), path).await?;
    }
    Ok(())
}

#[test]
fn a_short_rest_of_a_body_is_discarded_and_a_long_one_ends_the_connection() {
    simulate(|| async {
        let requests = format!("{}{LAST}", post(60_000, &"a".repeat(60_000)));
        let (answers, served) = talk(Config::default(), requests, ignore_bodies).await;
        served.unwrap();
        assert_eq!(texts(&answers), ["/", "/last"]);

        let requests = format!("{}{LAST}", post(200_000, &"a".repeat(200_000)));
        let (answers, served) = talk(Config::default(), requests, ignore_bodies).await;
        served.unwrap();
        assert_eq!(texts(&answers), ["/"]);
        assert_eq!(answers.error, None, "no reset");
        assert!(answers.text().contains("Connection: close\r\n"));

        let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let chunks = format!("3e8\r\n{}\r\n", "a".repeat(1000)).repeat(100);
        let requests = format!("{chunked}{chunks}0\r\n\r\n{LAST}");
        let (answers, served) = talk(Config::default(), requests, ignore_bodies).await;
        served.unwrap();
        assert_eq!(texts(&answers), ["/"]);
        assert_eq!(answers.error, None, "no reset");
    });
}

/// It was answered. A reset could destroy the answers that it has not read.
#[test]
fn a_client_that_ends_within_a_body_that_nobody_reads_gets_its_answers() {
    simulate(|| async {
        let (near, far) = pipe();
        let serving = ends::serve(near, Config::default(), ignore_bodies);
        let (mut far, mut client) = Client::new(far);
        let requests = format!("{GET}{}", post(100, "a part"));
        far.write_all(requests).await.into_result().unwrap();
        far.shutdown().await.unwrap();
        let answers = client.read_to_end().await;
        assert_eq!((texts(&answers).len(), answers.error), (2, None));
        drop((far, client));
        serving.await.unwrap().unwrap();
    });
}

#[test]
fn a_refusal_follows_the_answers_to_earlier_requests_and_nothing_follows_it() {
    simulate(|| async {
        let bad = "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n";
        let requests = format!("{GET}{bad}{}", GET.repeat(1000));
        let (answers, served) = talk(Config::default(), requests, answer_all).await;
        assert!(matches!(served, Err(Error::Refused(Refusal::SeveralLengths))), "{served:?}");
        assert_eq!(texts(&answers), ["GET / ", "there are several content-lengths\n"]);
        assert_eq!(answers.error, None, "the client gets all of it");
    });
}

#[test]
fn a_malformed_body_is_answered_unless_the_answer_has_begun() {
    let bad = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\naa";
    simulate(|| async {
        let (answers, served) = talk(Config::default(), bad, answer_all).await;
        assert!(matches!(served, Err(Error::Refused(Refusal::ChunkEnd))), "{served:?}");
        assert_eq!(texts(&answers), ["a chunk is longer than its size\n"]);

        let (answers, served) = talk(Config::default(), bad, async |connection: &mut Server| {
            connection.next().await?;
            connection.begin(&Response::new(200), BodyLength::Chunked).await?;
            connection.flush().await?;
            while connection.read_body().await?.is_some() {}
            connection.finish().await
        })
        .await;
        assert!(matches!(served, Err(Error::Refused(Refusal::ChunkEnd))), "{served:?}");
        assert!(!answers.text().contains("400"), "{}", answers.text());
        assert!(!answers.text().ends_with("0\r\n\r\n"), "it does not look complete");
    });
}

#[test]
fn an_end_within_a_request_is_an_error_and_one_between_requests_is_none() {
    simulate(|| async {
        for (sent, is_clean) in [
            ("", true),
            ("\r\n", true),
            ("GET", false),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nab", false),
        ] {
            let (near, far) = pipe();
            let serving = ends::serve(near, Config::default(), answer_all);
            let (mut far, client) = Client::new(far);
            far.write_all(sent).await.into_result().unwrap();
            drop((far, client));
            match serving.await.unwrap() {
                Ok(()) => assert!(is_clean, "{sent}"),
                Err(Error::Io(error)) => {
                    // The client is gone, so a reset is possible too.
                    assert!(!is_clean, "{sent}: {error}");
                }
                Err(error) => panic!("{sent}: {error}"),
            }
        }
    });
}

#[test]
fn an_answer_that_is_not_finished_resets_the_connection() {
    simulate(|| async {
        let (answers, served) = talk(Config::default(), GET, async |connection: &mut Server| {
            connection.next().await?;
            connection.begin(&Response::new(200), BodyLength::Exact(3)).await?;
            connection.write_body("ab").await?;
            connection.flush().await?;
            connection.finish().await
        })
        .await;
        assert!(matches!(served, Err(Error::Misuse(Misuse::BodyTooShort))), "{served:?}");
        assert_ne!(answers.error, None, "a reset");

        let (answers, served) = talk(Config::default(), GET, async |connection: &mut Server| {
            connection.next().await?;
            connection.next().await.map(|_| ())
        })
        .await;
        assert!(matches!(served, Err(Error::Misuse(Misuse::NotAnswered))), "{served:?}");
        assert_ne!(answers.error, None, "a reset");
    });
}

#[test]
fn calls_in_the_wrong_order_are_misuses_and_change_nothing() {
    simulate(|| async {
        let (answers, served) = talk(Config::default(), LAST, async |connection: &mut Server| {
            let misuse = |result: Result<(), Error>| match result {
                Err(Error::Misuse(misuse)) => misuse,
                other => panic!("{other:?}"),
            };
            assert_eq!(
                misuse(connection.respond(&Response::new(200), "").await),
                Misuse::NoRequest
            );
            assert_eq!(misuse(connection.write_body("").await), Misuse::NotBegun);
            assert_eq!(misuse(connection.finish().await), Misuse::NotBegun);
            assert!(connection.request().is_none());
            connection.next().await?;
            let header = [("Content-Length", "3")];
            let response = Response::new(200).with_headers(&header);
            assert_eq!(misuse(connection.respond(&response, "").await), Misuse::Header);
            connection.respond(&Response::new(200), "ok").await?;
            assert_eq!(
                misuse(connection.respond(&Response::new(200), "").await),
                Misuse::NoRequest
            );
            assert!(connection.next().await?.is_none());
            assert!(connection.next().await?.is_none(), "again");
            Ok(())
        })
        .await;
        served.unwrap();
        assert_eq!(texts(&answers), ["ok"]);
    });
}

#[test]
fn a_server_can_end_a_connection_after_an_answer() {
    simulate(|| async {
        let (answers, served) =
            talk(Config::default(), GET.repeat(3), async |connection: &mut Server| {
                while connection.next().await?.is_some() {
                    connection.end_handle().end();
                    connection.respond(&Response::new(200), "bye").await?;
                }
                Ok(())
            })
            .await;
        served.unwrap();
        assert_eq!(texts(&answers), ["bye"]);
        assert_eq!(answers.error, None, "no reset");
        assert!(answers.text().contains("Connection: close\r\n"));
    });
}

#[test]
fn a_server_that_drains_ends_idle_connections_and_lets_requests_finish() {
    simulate(|| async {
        let (near, far) = pipe();
        let (mut far, mut client) = Client::new(far);
        let mut connection = Connection::<Sim, _>::new(near, &buffers(), Config::default());
        let end = connection.end_handle();
        let draining = Sim::spawn(async move {
            Sim::sleep(Duration::from_secs(10)).await;
            end.end();
        });
        let serving = Sim::spawn(async move { answer_all(&mut connection).await });
        far.write_all(GET).await.into_result().unwrap();
        assert_eq!(texts(&client.read_to_end().await), ["GET / "]);
        drop((far, client));
        serving.await.unwrap().unwrap();
        draining.await.unwrap();

        let (near, far) = pipe();
        let (mut far, mut client) = Client::new(far);
        let mut connection = Connection::<Sim, _>::new(near, &buffers(), Config::default());
        let end = connection.end_handle();
        let serving = Sim::spawn(async move { answer_all(&mut connection).await });
        far.write_all(post(3, "a")).await.into_result().unwrap();
        Sim::sleep(Duration::from_secs(10)).await;
        end.end();
        far.write_all("bc").await.into_result().unwrap();
        let answers = client.read_to_end().await;
        assert_eq!(texts(&answers), ["POST / abc"]);
        assert!(answers.text().contains("Connection: close\r\n"));
        drop((far, client));
        serving.await.unwrap().unwrap();
    });
}

/// What has arrived before the connection is read for the first time is answered.
#[test]
fn a_server_that_drains_answers_what_has_arrived() {
    simulate(|| async {
        for (sent, answers_max) in [(GET.repeat(3), 1), (String::new(), 0)] {
            let (near, far) = pipe();
            let (mut far, mut client) = Client::new(far);
            let mut connection = Connection::<Sim, _>::new(near, &buffers(), Config::default());
            if !sent.is_empty() {
                far.write_all(sent).await.into_result().unwrap();
            }
            Sim::sleep(Duration::from_secs(10)).await; // all of it has arrived
            connection.end_handle().end();
            let started = Sim::now();
            let serving = Sim::spawn(async move { answer_all(&mut connection).await });
            let answers = client.read_to_end().await;
            assert_eq!(texts(&answers).len(), answers_max);
            assert_eq!(answers.text().matches("Connection: close\r\n").count(), answers_max);
            drop((far, client));
            serving.await.unwrap().unwrap();
            assert!(Sim::now() - started < Duration::from_secs(1));
        }
    });
}

/// The client was answered.
#[test]
fn a_server_that_drains_waits_for_no_rest_of_a_body() {
    simulate(|| async {
        let (near, far) = pipe();
        let (mut far, mut client) = Client::new(far);
        let mut connection = Connection::<Sim, _>::new(near, &buffers(), Config::default());
        let end = connection.end_handle();
        let serving = Sim::spawn(async move { ignore_bodies(&mut connection).await });
        far.write_all(post(100, "a part")).await.into_result().unwrap();
        Sim::sleep(Duration::from_secs(1)).await;
        let started = Sim::now();
        end.end();
        let answers = client.read_to_end().await;
        assert_eq!((texts(&answers).len(), answers.error), (1, None));
        serving.await.unwrap().unwrap();
        assert!(Sim::now() - started < Duration::from_secs(1));
        drop((far, client));
    });
}

/// A client that has sent a part of a head, and one that was answered and ends nothing.
#[test]
fn a_server_that_drains_waits_for_no_head_and_no_end() {
    simulate(|| async {
        for (sent, answered) in
            [("GET /heal", 0), ("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 1)]
        {
            let (near, far) = pipe();
            let (mut far, mut client) = Client::new(far);
            let mut connection = Connection::<Sim, _>::new(near, &buffers(), Config::default());
            let end = connection.end_handle();
            let serving = Sim::spawn(async move { answer_all(&mut connection).await });
            far.write_all(sent).await.into_result().unwrap();
            Sim::sleep(Duration::from_secs(1)).await;
            end.end();
            let started = Sim::now();
            serving.await.unwrap().unwrap();
            assert!(Sim::now() - started < Duration::from_secs(1), "{sent}");
            let answers = client.read_to_end().await;
            assert_eq!((texts(&answers).len(), answers.error), (answered, None), "{sent}");
            drop(far);
        }
    });
}

#[test]
fn a_range_is_answered_with_its_part() {
    const DATA: &[u8] = b"0123456789";
    async fn serve(connection: &mut Server) -> Result<(), Error> {
        while let Some(request) = connection.next().await? {
            match RangeChoice::of(&request, 10, Some("\"v1\"")) {
                RangeChoice::Whole => connection.respond(&Response::new(200), DATA).await?,
                RangeChoice::Part(part) => {
                    let body =
                        Bytes::from_static(DATA).slice(part.start as usize..part.end as usize);
                    connection.respond(&Response::partial(part, 10), body).await?;
                }
                RangeChoice::Unsatisfiable => {
                    connection.respond(&Response::unsatisfiable(10), "").await?;
                }
            }
        }
        Ok(())
    }
    simulate(|| async {
        let ranged = |header: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{header}\r\n\r\n");
        let requests = [
            ranged("Range: bytes=2-4"),
            ranged("Range: bytes=10-"),
            ranged("Range: bytes=2-4\r\nIf-Range: \"v1\""),
            ranged("Range: bytes=2-4\r\nIf-Range: \"v2\""),
            ranged("Range: bytes=-3\r\nConnection: close"),
        ];
        let (answers, served) = talk(Config::default(), requests.concat(), serve).await;
        served.unwrap();
        assert_eq!(texts(&answers), ["234", "", "234", "0123456789", "789"]);
        let ranges: Vec<_> =
            answers.text().lines().filter(|line| line.starts_with("Content-Range")).collect();
        let of = |range| format!("Content-Range: bytes {range}/10");
        assert_eq!(ranges, [of("2-4"), of("*"), of("2-4"), of("7-9")]);
    });
}

#[test]
fn another_protocol_gets_the_head_and_the_bytes_behind_it() {
    simulate(|| async {
        let (near, far) = pipe();
        let (mut far, client) = Client::new(far);
        let head = "GET /socket HTTP/1.1\r\nHost: a\r\nUpgrade: b\r\nConnection: upgrade\r\n\r\n";
        far.write_all(format!("{GET}{head}frame")).await.into_result().unwrap();
        let mut connection = Connection::<Sim, _>::new(near, &buffers(), Config::default());
        connection.next().await.unwrap();
        connection.respond(&Response::new(200), "first").await.unwrap();
        let request = connection.next().await.unwrap().unwrap();
        assert!(request.has_token("upgrade", "b") && request.has_token("connection", "upgrade"));
        let parts = connection.into_parts().await.unwrap();
        assert_eq!(&parts.received[..parts.head_bytes], head.as_bytes());
        assert!(b"frame".starts_with(&parts.received[parts.head_bytes..]));
        drop((parts, far, client));
    });
}

#[test]
fn an_idle_connection_holds_no_buffer_and_no_memory() {
    simulate(|| async {
        let (near, far) = pipe();
        let all = buffers();
        let account = all.account();
        let buffers = all.with_account(&account);
        let (mut far, mut client) = Client::new(far);
        let writing = Sim::spawn(async move {
            far.write_all(post(20_000, &"a".repeat(20_000))).await.into_result().unwrap();
            far
        });
        let reading = Sim::spawn(async move { client.read_to_end().await });
        let mut connection = Connection::<Sim, _>::new(near, &buffers, Config::default());
        connection.next().await.unwrap();
        let mut bytes = 0;
        while let Some(piece) = connection.read_body().await.unwrap() {
            bytes += piece.len();
        }
        assert_eq!(bytes, 20_000);
        connection.respond(&Response::new(200), "ok").await.unwrap();
        assert!(account.held_bytes() > 0, "the queue is reserved");
        {
            let next = pin!(connection.next());
            let selected = select(next, Sim::sleep(Duration::from_secs(1))).await;
            assert!(selected.first.is_none());
            assert_eq!((account.held_bytes(), buffers.pool().leased()), (0, 0));
        }
        drop((connection, writing.await));
        assert_eq!(texts(&reading.await.unwrap()), ["ok"]);
    });
}

/// A program that keeps a body in the account of the connection, and a client that does not send the rest of it.
#[test]
fn a_connection_that_holds_a_part_of_a_body_is_reset_when_others_need_the_memory() {
    simulate(|| async {
        let (near, far) = pipe();
        let budget = MemoryBudget::new(1 << 20);
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget.clone());
        let account = buffers.account();
        let buffers = buffers.with_account(&account);
        let (mut far, mut client) = Client::new(far);
        far.write_all(post(1000, "a part")).await.into_result().unwrap();
        let mut connection = Connection::<Sim, _>::new(near, &buffers, Config::default());
        connection.next().await.unwrap();
        let mut held = account.reservation();
        held.resize(900 << 10).unwrap();
        let evicting = Sim::spawn(async move {
            let another = budget.account();
            let mut wanted = another.reservation();
            assert!(wanted.resize(500 << 10).is_err());
            for _ in 0..10 {
                budget.evict_holders(Sim::now());
                Sim::sleep(MemoryBudget::ROUND).await;
            }
        });
        let mut bytes = 0;
        let error = loop {
            match connection.read_body().await {
                Ok(piece) => bytes += piece.expect("it is not complete").len(),
                Err(error) => break error,
            }
        };
        let Error::Io(error) = error else { panic!("{error:?}") };
        assert_eq!((error.kind(), bytes), (io::ErrorKind::OutOfMemory, 6));
        assert!(connection.next().await.unwrap().is_none());
        assert!(client.read_to_end().await.error.is_some());
        evicting.await.unwrap();
    });
}

#[test]
fn an_exhausted_pool_loses_nothing() {
    simulate(|| async {
        let (near, far) = pipe();
        let mut config = PoolConfig::default();
        config.leased_max = 1;
        let buffers = Buffers::new(Pool::new(config), MemoryBudget::new(1 << 20));
        let held = buffers.pool().take().unwrap();
        let (mut far, client) = Client::new(far);
        far.write_all(GET).await.into_result().unwrap();
        let mut connection = Connection::<Sim, _>::new(near, &buffers, Config::default());
        match connection.next().await {
            Err(Error::Io(error)) => assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded),
            other => panic!("{other:?}"),
        }
        drop(held);
        assert_eq!(connection.next().await.unwrap().unwrap().method(), "GET");
        drop((far, client));
    });
}

#[test]
fn a_dropped_read_interrupts_the_connection() {
    simulate(|| async {
        let (near, _far) = pipe();
        let mut connection = Connection::<Sim, _>::new(near, &buffers(), Config::default());
        {
            let mut next = pin!(connection.next());
            let is_pending = poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx).is_pending())).await;
            assert!(is_pending);
        }
        assert!(matches!(connection.next().await, Err(Error::Interrupted)));
        assert!(matches!(connection.flush().await, Err(Error::Interrupted)));
    });
}
