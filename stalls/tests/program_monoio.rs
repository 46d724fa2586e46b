//! A program of somebody else: a server of monoio, that stalls while it serves a client.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use common::{End, has_function, wait_for, wait_for_end};
use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::TcpListener;
use owned_io_stalls::{Class, Config, Detector};

/// Serves one client after the other: `work` is done for each byte. A client without a byte ends it.
fn serve(
    detector: &Detector,
    work: impl Fn() + Send + 'static,
) -> (SocketAddr, JoinHandle<std::io::Result<()>>) {
    let (sender, receiver) = channel();
    let detector = detector.clone();
    let thread = std::thread::spawn(move || {
        let mut runtime =
            monoio::RuntimeBuilder::<monoio::IoUringDriver>::new().enable_timer().build().unwrap();
        runtime.block_on(async move {
            let heart = detector.watch_current_thread("monoio 0");
            monoio::spawn(async move {
                loop {
                    heart.beat();
                    monoio::time::sleep(heart.interval()).await;
                }
            });
            let listener = TcpListener::bind("127.0.0.1:0")?;
            sender.send(listener.local_addr()?).unwrap();
            loop {
                let (mut stream, _) = listener.accept().await?;
                let (read, byte) = stream.read(vec![0; 1]).await;
                if read? == 0 {
                    return Ok(());
                }
                work();
                stream.write_all(byte).await.0?;
            }
        })
    });
    (receiver.recv().unwrap(), thread)
}

/// Sends a byte, and reads it again at the end.
struct Client(TcpStream);

impl Client {
    fn ask(addr: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.write_all(b"x").unwrap();
        Self(stream)
    }

    fn expect_answer(mut self) {
        self.0.set_read_timeout(Some(common::LIMIT)).unwrap();
        self.0.read_exact(&mut [0]).unwrap();
    }
}

#[inline(never)]
fn reads_a_pipe(mut pipe: impl Read) {
    let _ = pipe.read(&mut [0]);
}

#[test]
fn a_blocking_call() {
    let detector = Detector::start(Config::default()).unwrap();
    let (pipe, mut writer) = std::io::pipe().unwrap();
    let (addr, server) = serve(&detector, move || reads_a_pipe(&pipe));
    let client = Client::ask(addr);
    let incident =
        wait_for(&detector, "monoio-read", |it| it.verdict.class() == Class::BlockedLoop);
    assert!(has_function(&incident, "reads_a_pipe"), "{incident:#?}");
    assert!(incident.to_string().contains("in read"), "{incident}");
    writer.write_all(b"x").unwrap();
    client.expect_answer();
    wait_for_end(&detector, Class::BlockedLoop);
    drop(TcpStream::connect(addr).unwrap());
    server.join().unwrap().unwrap();
}

#[inline(never)]
fn computes(end: &End) {
    let mut sum = 0_u64;
    while !end.is_set() {
        sum = std::hint::black_box(sum.wrapping_mul(31) + 1);
    }
}

#[test]
fn a_computation() {
    let detector = Detector::start(Config::default()).unwrap();
    let end = End::default();
    let ended = end.clone();
    let (addr, server) = serve(&detector, move || computes(&ended));
    let client = Client::ask(addr);
    let incident = wait_for(&detector, "monoio-computation", |it| {
        it.verdict.has(Class::BlockedLoop) && has_function(it, "computes")
    });
    assert!(incident.evidence.threads[0].stacks[0].by_signal, "{incident:#?}");
    end.set();
    client.expect_answer();
    wait_for_end(&detector, Class::BlockedLoop);
    drop(TcpStream::connect(addr).unwrap());
    server.join().unwrap().unwrap();
}
