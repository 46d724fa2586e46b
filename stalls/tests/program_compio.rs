//! A program of somebody else: a server of compio, that stalls, and then has no descriptor left.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{End, has_function, wait_for, wait_for_end};
use compio_buf::BufResult;
use compio_io::{AsyncRead, AsyncWriteExt};
use compio_net::TcpListener;
use owned_io_stalls::{Class, Config, Detector};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[inline(never)]
fn sleeps(end: &End) {
    while !end.is_set() {
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// One test, because the limit is that of the process.
#[test]
fn a_blocking_call_and_no_descriptors() {
    let detector = Detector::start(Config::default()).unwrap();
    let (sender, receiver) = channel();
    let (watched, end) = (detector.clone(), End::default());
    let ended = end.clone();
    let server = std::thread::spawn(move || {
        let runtime = compio_runtime::RuntimeBuilder::new().build().unwrap();
        runtime.block_on(async move {
            let heart = watched.watch_current_thread("compio 0");
            let beating = async move {
                loop {
                    heart.beat();
                    compio_runtime::time::sleep(heart.interval()).await;
                }
            };
            compio_runtime::spawn(beating).detach();
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            sender.send(listener.local_addr()?).unwrap();
            loop {
                let Ok((mut stream, _)) = listener.accept().await else {
                    compio_runtime::time::sleep(Duration::from_millis(50)).await;
                    continue;
                };
                let BufResult(read, byte) = stream.read(Vec::with_capacity(1)).await;
                if read? == 0 {
                    return std::io::Result::Ok(());
                }
                sleeps(&ended);
                stream.write_all(byte).await.0?;
            }
        })
    });
    let addr = receiver.recv().unwrap();
    let mut client = TcpStream::connect(addr).unwrap();
    client.write_all(b"x").unwrap();
    let incident =
        wait_for(&detector, "compio-sleep", |it| it.verdict.class() == Class::BlockedLoop);
    assert!(has_function(&incident, "sleeps"), "{incident:#?}");
    end.set();
    client.read_exact(&mut [0]).unwrap();
    wait_for_end(&detector, Class::BlockedLoop);

    let before = getrlimit(Resource::Nofile);
    let few = Rlimit { current: Some(64), ..before };
    setrlimit(Resource::Nofile, few).unwrap();
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    let incident =
        wait_for(&detector, "compio-none", |it| it.verdict.class() == Class::OutOfDescriptors);
    assert!(incident.to_string().contains("of 64 descriptors"), "{incident}");
    drop(files);
    setrlimit(Resource::Nofile, before).unwrap();
    wait_for_end(&detector, Class::OutOfDescriptors);
    drop(TcpStream::connect(addr).unwrap());
    server.join().unwrap().unwrap();
}
