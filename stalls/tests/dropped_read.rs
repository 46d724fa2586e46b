//! tokio-uring goes on with a read whose future is dropped, and the read keeps the descriptor open for as long as the
//! client is silent. This program has no other test, whose stalls would make the detector forget the connections.

mod common;

use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{End, wait_for, wait_for_end};
use owned_io_stalls::{Class, Config, Detector};
use tokio::time::{sleep, timeout};
use tokio_uring::net::TcpListener;

#[test]
fn connections_that_a_dropped_read_keeps_open() {
    let mut config = Config::default();
    config.connections_interval = Duration::from_secs(1);
    let detector = Detector::start(config).unwrap();
    let end = End::default();
    let (watched, ended) = (detector.clone(), end.clone());
    let (listening, addr) = channel();
    let worker = std::thread::spawn(move || {
        tokio_uring::start(async move {
            let heart = watched.watch_current_thread("ring 0");
            tokio_uring::spawn(async move {
                loop {
                    heart.beat();
                    sleep(heart.interval()).await;
                }
            });
            let listener = TcpListener::bind(([127, 0, 0, 1], 0).into()).unwrap();
            let addr = listener.local_addr().unwrap();
            let connections = watched.connections(addr);
            listening.send(addr).unwrap();
            tokio_uring::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let counted = connections.count();
                    tokio_uring::spawn(async move {
                        let read = stream.read(Vec::<u8>::with_capacity(1));
                        timeout(Duration::from_millis(10), read).await.unwrap_err();
                        drop(stream);
                        drop(counted);
                    });
                }
            });
            while !ended.is_set() {
                sleep(Duration::from_millis(10)).await;
            }
        });
    });
    let addr = addr.recv().unwrap();
    let clients: Vec<_> = (0..20).map(|_| TcpStream::connect(addr).unwrap()).collect();
    let is_meant = |class| class == Class::ConnectionNeverCloses;
    let incident = wait_for(&detector, "dropped_read", |it| is_meant(it.verdict.class()));
    let expected = format!("connections to {addr} were open");
    assert!(incident.to_string().contains(&expected), "{incident}");
    drop(clients);
    wait_for_end(&detector, Class::ConnectionNeverCloses);
    end.set();
    worker.join().unwrap();
}
