//! What the log of the server says of a recovery.

use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use owned_io::{File, Files, OpenMode};
use owned_io_sim::{Sim, block_on};

use super::client::Client;
use super::restart::{UNLIMITED, end, payload, start};

/// Lines of log that are kept.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs a simulation, and returns what it has logged.
fn logged(simulation: impl Future<Output = ()>) -> String {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
    tracing::subscriber::with_default(subscriber.finish(), || block_on(simulation));
    let lines = lines.0.lock().unwrap().clone();
    String::from_utf8(lines).expect("text")
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
