//! Time limits, on the simulator, whose clock costs no time.

mod ends;

use std::time::{Duration, Instant};

use ends::{Client, Server, answer_all, simulate, texts};
use owned_io::{
    Buffers, ByteStream, Clock, Executor, MemoryBudget, MemoryWait, OwnedRead, OwnedWriteExt, Pool,
    PoolConfig,
};
use owned_io_http::{BodyLength, Config, Connection, Error, Refusal, Response};
use owned_io_sim::{Sim, pipe};

/// Rounded to the nearest second.
fn seconds_since(start: Instant) -> u64 {
    (Sim::now() - start + Duration::from_millis(500)).as_secs()
}

#[test]
fn a_silent_connection_ends_without_an_answer() {
    simulate(|| async {
        let (near, far) = pipe();
        let start = Sim::now();
        let serving = ends::serve(near, Config::default(), answer_all);
        let (mut far, mut client) = Client::new(far);
        Sim::sleep(Duration::from_secs(70)).await;
        far.write_all("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.into_result().unwrap();
        let answers = client.read_to_end().await;
        assert_eq!(
            (texts(&answers).len(), seconds_since(start)),
            (1, 145),
            "idle from the answer on"
        );
        drop((far, client));
        serving.await.unwrap().unwrap();
    });
}

#[test]
fn a_line_end_earns_no_time() {
    simulate(|| async {
        let (near, far) = pipe();
        let start = Sim::now();
        let serving = ends::serve(near, Config::default(), answer_all);
        let (mut far, mut client) = Client::new(far);
        for byte in ["\r", "\n"] {
            far.write_all(byte).await.into_result().unwrap();
            Sim::sleep(Duration::from_secs(5)).await;
        }
        let answers = client.read_to_end().await;
        assert_eq!((answers.bytes.len(), seconds_since(start)), (0, 10));
        drop((far, client));
        serving.await.unwrap().unwrap();
    });
}

#[test]
fn a_slow_head_is_refused() {
    simulate(|| async {
        let (near, far) = pipe();
        let start = Sim::now();
        let serving = ends::serve(near, Config::default(), answer_all);
        let (mut far, mut client) = Client::new(far);
        for byte in ["G", "E", "T", " "] {
            far.write_all(byte).await.into_result().unwrap();
            Sim::sleep(Duration::from_secs(2)).await;
        }
        let answers = client.read_to_end().await;
        assert_eq!(texts(&answers), ["the request has not arrived in time\n"]);
        assert_eq!(seconds_since(start), 10);
        drop((far, client));
        let served = serving.await.unwrap();
        assert!(matches!(served, Err(Error::Refused(Refusal::HeadLate))), "{served:?}");
    });
}

#[test]
fn a_body_that_stops_is_refused_and_one_that_trickles_too() {
    const HEAD: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n";
    simulate(|| async {
        // A byte every ten seconds earns no time.
        for (bytes, interval) in [(1, 0), (4, 10)] {
            let (near, far) = pipe();
            let start = Sim::now();
            let serving = ends::serve(near, Config::default(), answer_all);
            let (mut far, mut client) = Client::new(far);
            far.write_all(HEAD).await.into_result().unwrap();
            for _ in 1..bytes {
                far.write_all("a").await.into_result().unwrap();
                Sim::sleep(Duration::from_secs(interval)).await;
            }
            let answers = client.read_to_end().await;
            assert_eq!(texts(&answers), ["the body has not arrived in time\n"]);
            assert_eq!(seconds_since(start), 30);
            drop((far, client));
            let served = serving.await.unwrap();
            assert!(matches!(served, Err(Error::Refused(Refusal::BodyLate))), "{served:?}");
        }
    });
}

#[test]
fn time_in_which_the_server_is_busy_does_not_count() {
    simulate(|| async {
        let (near, far) = pipe();
        let serving = ends::serve(near, Config::default(), async |connection: &mut Server| {
            while connection.next().await?.is_some() {
                Sim::sleep(Duration::from_secs(1000)).await;
                while connection.read_body().await?.is_some() {
                    Sim::sleep(Duration::from_secs(100)).await;
                }
                connection.respond(&Response::new(200), "ok").await?;
            }
            Ok(())
        });
        let (mut far, mut client) = Client::new(far);
        let requests = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc\
            GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        far.write_all(requests).await.into_result().unwrap();
        assert_eq!(texts(&client.read_to_end().await), ["ok", "ok"]);
        drop((far, client));
        serving.await.unwrap().unwrap();
    });
}

/// Answers one request with 10 MiB.
async fn answer_at_length(connection: &mut Server) -> Result<(), Error> {
    connection.next().await?;
    connection.respond(&Response::new(200), vec![0_u8; 10 << 20]).await
}

#[test]
fn a_client_that_reads_nothing_is_reset() {
    simulate(|| async {
        let (near, far) = pipe();
        let start = Sim::now();
        let serving = ends::serve(near, Config::default(), answer_at_length);
        let (mut far, client) = Client::new(far);
        far.write_all("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.into_result().unwrap();
        match serving.await.unwrap() {
            Err(Error::Io(error)) => assert_eq!(error.kind(), std::io::ErrorKind::TimedOut),
            other => panic!("{other:?}"),
        }
        assert_eq!(seconds_since(start), 60);
        drop((far, client));
    });
}

/// A hundred bytes per second earn little time.
#[test]
fn a_client_that_reads_slowly_is_reset() {
    simulate(|| async {
        let (near, far) = pipe();
        let start = Sim::now();
        let serving = ends::serve(near, Config::default(), answer_at_length);
        let (mut read, mut write) = far.into_split();
        write.write_all("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.into_result().unwrap();
        let reading = Sim::spawn(async move {
            for _ in 0..50 {
                Sim::sleep(Duration::from_secs(10)).await;
                let _ = read.read(Vec::with_capacity(1_000)).await; // fails once it is reset
            }
        });
        match serving.await.unwrap() {
            Err(Error::Io(error)) => assert_eq!(error.kind(), std::io::ErrorKind::TimedOut),
            other => panic!("{other:?}"),
        }
        // 60 s, and 1 s for each KiB: of 128 KiB that are buffered on the way at most, and of what is read.
        let seconds = seconds_since(start);
        assert!((60..=220).contains(&seconds), "{seconds} s");
        reading.await.unwrap();
        drop(write);
    });
}

/// It gets the whole answer. Then the server waits for it no longer than it says.
#[test]
fn a_client_that_does_not_end_is_left_after_the_last_answer() {
    simulate(|| async {
        let (near, far) = pipe();
        let start = Sim::now();
        let serving = ends::serve(near, Config::default(), answer_all);
        let (mut far, mut client) = Client::new(far);
        let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        far.write_all(request).await.into_result().unwrap();
        assert_eq!(texts(&client.read_to_end().await), ["GET / "]);
        serving.await.unwrap().unwrap();
        assert_eq!(seconds_since(start), 5);
        drop((far, client));
    });
}

#[test]
fn an_answer_waits_for_memory_for_a_while() {
    simulate(|| async {
        for (released_after, is_answered) in [(10, true), (100, false)] {
            let budget = MemoryBudget::new(4096);
            let mut held = budget.account().reservation();
            held.resize(4096).unwrap();
            let (near, far) = pipe();
            let start = Sim::now();
            let serving = Sim::spawn(async move {
                let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget);
                let mut connection = Connection::new(near, &buffers, Config::default());
                answer_all(&mut connection).await
            });
            let releasing = Sim::spawn(async move {
                // Nobody looks whether the account is evicted.
                Sim::sleep(Duration::from_secs(released_after)).await;
                held.force(0);
            });
            let (mut far, mut client) = Client::new(far);
            let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
            far.write_all(request).await.into_result().unwrap();
            let answers = client.read_to_end().await;
            drop((far, client));
            let served = serving.await.unwrap();
            if is_answered {
                served.unwrap();
                assert_eq!((texts(&answers).len(), seconds_since(start)), (1, 10));
            } else {
                assert!(matches!(served, Err(Error::Memory(_))), "{served:?}");
                assert_eq!((answers.bytes.len(), seconds_since(start)), (0, 30));
            }
            releasing.await.unwrap();
        }
    });
}

/// Its client reads nothing of an answer whose pieces are short, so that they are copied.
#[test]
fn a_connection_that_hoards_an_answer_is_reset_when_others_need_the_memory() {
    async fn answer_without_end(connection: &mut Server) -> Result<(), Error> {
        connection.next().await?;
        connection.begin(&Response::new(200), BodyLength::Chunked).await?;
        loop {
            connection.write_body("a".repeat(1_000)).await?;
        }
    }
    simulate(|| async {
        let budget = MemoryBudget::new(24 * 1024);
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget.clone());
        let (near, far) = pipe();
        let serving = Sim::spawn(async move {
            let mut config = Config::default();
            config.limits.queue_bytes_max = 16 * 1024;
            let mut connection = Connection::new(near, &buffers, config);
            answer_without_end(&mut connection).await
        });
        let (mut far, client) = Client::new(far);
        far.write_all("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.into_result().unwrap();
        Sim::sleep(Duration::from_secs(5)).await;
        let start = Sim::now();
        let (mut other, waited) = (budget.account().reservation(), MemoryWait::default());
        while other.resize(10 * 1024).is_err() {
            let sleep = |time| Box::pin(Sim::sleep(time));
            let released = waited.begin(other.account(), Sim::now(), sleep);
            released.expect("the memory is released in time").await;
        }
        let waited = seconds_since(start);
        assert!((1..=5).contains(&waited), "{waited} s");
        match serving.await.unwrap() {
            Err(Error::Io(error)) => assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory),
            other => panic!("{other:?}"),
        }
        drop((far, client));
    });
}
