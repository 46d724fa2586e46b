//! What the log of the server says of a recovery.

use std::cell::RefCell;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Once;

use owned_io::{File, Files, OpenMode};
use owned_io_sim::{Sim, block_on};

use super::client::Client;
use super::restart::{UNLIMITED, end, payload, start};

thread_local! {
    /// What was logged on this thread, while it is wanted.
    static LINES: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Writes to [`LINES`].
struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LINES.with_borrow_mut(|lines| lines.iter_mut().for_each(|lines| lines.extend(line)));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs a simulation, and returns what it has logged.
fn logged(simulation: impl Future<Output = ()>) -> String {
    // One for the process: `tracing` keeps for each event whether anybody wants it. With a subscriber of one thread, it
    // asks the thread that comes by first, which may be another test's.
    static SUBSCRIBER: Once = Once::new();
    SUBSCRIBER
        .call_once(|| tracing_subscriber::fmt().with_ansi(false).with_writer(|| Lines).init());
    LINES.set(Some(Vec::new()));
    block_on(simulation);
    String::from_utf8(LINES.take().unwrap()).expect("text")
}

async fn extend(file: &str, bytes: u64) {
    let file = Sim::open(Path::new(file), OpenMode::Write).await.unwrap();
    file.set_len(file.size().await.unwrap() + bytes).await.unwrap();
}

#[test]
fn files_that_were_cut_are_named() {
    let log = logged(async {
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        client.create_stream().await.unwrap();
        client.create_topic("t", 20, UNLIMITED).await.unwrap();
        client.send("t", 0, &[payload(1)]).await.unwrap();
        end(iggy, client).await;
        extend("/data/catalogue/00000000000000000000.log", 5).await;
        for partition in [0, 3] {
            extend(&format!("/data/partitions/{partition}/00000000000000000000.log"), 7).await;
        }
        start().await;
    });
    let line = log.lines().find(|line| line.contains("cut torn ends")).expect(&log);
    assert!(line.contains("WARN") && line.contains("bytes=19"), "{line}");
    for named in [
        "/data/catalogue/00000000000000000000.log: 5",
        "/data/partitions/0/00000000000000000000.log: 7",
        "/data/partitions/3/00000000000000000000.log: 7",
    ] {
        assert!(line.contains(named), "{line}");
    }
}

/// After a loss of power it may be all of them.
#[test]
fn of_many_files_that_were_cut_the_first_are_named() {
    let log = logged(async {
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        client.create_stream().await.unwrap();
        client.create_topic("t", 20, UNLIMITED).await.unwrap();
        end(iggy, client).await;
        for partition in 0..20 {
            extend(&format!("/data/partitions/{partition}/00000000000000000000.log"), 7).await;
        }
        start().await;
    });
    let line = log.lines().find(|line| line.contains("cut torn ends")).expect(&log);
    assert!(line.contains("bytes=140") && line.contains("12 more"), "{line}");
    assert_eq!(line.matches("/data/partitions/").count(), 8, "{line}");
}
