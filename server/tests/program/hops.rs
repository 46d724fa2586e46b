//! Echo with two queue hops, to the thread of the application and back.

use tungstenite::Message;

use super::each_engine;
use super::server::{RUNTIMES, Server};

#[test]
fn messages_hop_to_the_application_and_back() {
    for (runtime, engine) in each_engine() {
        let options = [&["--http", "127.0.0.1:0"], engine].concat();
        let server = Server::start(runtime, &options);
        let mut clients = [(); 4].map(|()| server.upgrade(0, "/echo?hops=app"));
        let message = |client: usize, n: usize| Message::text(format!("{n} of {client}"));
        for _ in 0..5 {
            // Its messages are with the application when it ends, or on the way there.
            let mut gone = server.upgrade(0, "/echo?hops=app");
            for (client, socket) in clients.iter_mut().enumerate() {
                (0..100).for_each(|n| socket.send(message(client, n)).unwrap());
                gone.send(Message::binary(vec![1; 1_000])).unwrap();
            }
            drop(gone);
            for (client, socket) in clients.iter_mut().enumerate() {
                for n in 0..100 {
                    assert_eq!(socket.read().unwrap(), message(client, n), "{runtime}, {engine:?}");
                }
            }
        }
        let long = Message::binary(vec![7; 3_000_000]);
        clients[0].send(long.clone()).unwrap();
        assert_eq!(clients[0].read().unwrap(), long, "{runtime}, {engine:?}");

        server.signal("-TERM");
        for socket in &mut clients {
            let Message::Close(Some(frame)) = socket.read().unwrap() else { panic!("no close") };
            assert_eq!(u16::from(frame.code), 1001);
            while socket.read().is_ok() {} // sends the answer
        }
        assert_eq!(server.wait(), 0, "{runtime}, {engine:?}: the thread was joined");
    }
}

#[test]
fn other_hops_are_refused() {
    for runtime in RUNTIMES {
        let server = Server::start(runtime, &["--http", "127.0.0.1:0"]);
        for query in ["hops=2", "hops", "hops=app&hops=app"] {
            let request = format!("GET /echo?{query} HTTP/1.1\r\nHost: a\r\n\r\n");
            let answer = server.ask(0, &request);
            assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("hops"), "{answer}");
        }
    }
}
