//! A WebSocket on a connection that has served other requests before.

mod ends;

use ends::{buffers, simulate};
use owned_io::{Buffers, Executor, OwnedRead, OwnedWriteExt};
use owned_io_http::{Connection, Parts, Response};
use owned_io_sim::{Sim, SimStream, pipe};
use owned_io_websocket::handshake::{Key, Offer, Origins, Request};
use owned_io_websocket::stream::Acceptance;
use owned_io_websocket::{CloseFrame, Config, Message, WebSocket, connect};

/// Answers `/health`, and echoes on the WebSocket `/echo`.
async fn serve(stream: SimStream, buffers: &Buffers) {
    let mut connection =
        Connection::<Sim, _>::new(stream, buffers, owned_io_http::Config::default());
    let config = Config::default();
    let mut accepted = None;
    while let Some(head) = connection.next().await.unwrap() {
        if head.path() == "/health" {
            connection.respond(&Response::new(200), "ok\n").await.unwrap();
            continue;
        }
        let (method, target, is_http_1_1) = (head.method(), head.target(), !head.is_http_1_0());
        let request = Request::from_parts(method, target, is_http_1_1, head.headers());
        match request.and_then(|request| request.upgrade(Origins::Any)) {
            Ok(upgrade) => {
                let acceptance = Acceptance::new(upgrade, None, &[], buffers, &config);
                accepted = Some(acceptance.unwrap());
                break;
            }
            Err(refusal) => {
                let response = Response::new(refusal.status()).with_headers(refusal.headers());
                connection.respond(&response, refusal.to_string()).await.unwrap();
            }
        }
    }
    let Some(acceptance) = accepted else { return };
    let Parts { stream, buffers, received, head_bytes } = connection.into_parts().await.unwrap();
    let opening = acceptance.open::<Sim, _>(stream, received, head_bytes, buffers, config);
    let mut socket = opening.await.unwrap();
    let WebSocket { incoming, outgoing } = &mut socket;
    while let Some(message) = incoming.receive().await.unwrap() {
        outgoing.send(message).await.unwrap();
    }
}

#[test]
fn a_websocket_follows_other_requests() {
    simulate(|| async {
        let (near, mut far) = pipe();
        let serving = Sim::spawn(async move { serve(near, &buffers()).await });
        let request = "GET /health HTTP/1.1\r\nHost: a\r\n\r\n";
        far.write_all(request).await.into_result().unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nok\n") {
            let (_, byte) = far.read(Vec::with_capacity(1)).await.into_result().unwrap();
            answer.extend_from_slice(&byte);
        }
        let offer = Offer { path: "/echo", ..Offer::default() };
        let buffers = buffers();
        let opening = connect::<Sim, _>(far, &buffers, Config::default(), &offer);
        let (mut socket, _protocol) = opening.await.unwrap();
        for text in ["one", "two"] {
            socket.outgoing.send(Message::Text(text)).await.unwrap();
            assert_eq!(socket.incoming.receive().await.unwrap(), Some(Message::Text(text)));
        }
        socket.close(CloseFrame { code: None, reason: "" }).await.unwrap();
        serving.await.unwrap();
    });
}

/// The requests before the upgrade, the upgrade and the first frames arrive together. So does a request that is
/// refused.
#[test]
fn no_byte_behind_an_upgrade_is_lost() {
    simulate(|| async {
        let (near, mut far) = pipe();
        let serving = Sim::spawn(async move { serve(near, &buffers()).await });
        let mut sent =
            b"GET /health HTTP/1.1\r\nHost: a\r\n\r\nGET /echo HTTP/1.1\r\nHost: a\r\n\r\n"
                .to_vec();
        let offer = Offer { path: "/echo", ..Offer::default() };
        offer.encode(&Key::new([7; 16]), &mut sent).unwrap();
        // A binary frame whose mask is zero, and a close frame.
        sent.extend_from_slice(b"\x82\x85\0\0\0\0early\x88\x80\0\0\0\0");
        far.write_all(sent).await.into_result().unwrap();
        let mut answers = Vec::new();
        while let Ok((1.., bytes)) = far.read(Vec::with_capacity(4096)).await.into_result() {
            answers.extend_from_slice(&bytes);
        }
        drop(far);
        serving.await.unwrap();
        assert!(answers.ends_with(b"\r\n\r\n\x82\x05early\x88\x00"), "{}", answers.escape_ascii());
        let answers = String::from_utf8_lossy(&answers);
        let statuses: Vec<_> =
            answers.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
        assert_eq!(statuses, ["200", "426", "101"]);
    });
}

/// RFC 9110 section 7.8: an `Upgrade` in a request of HTTP/1.0 means nothing.
#[test]
fn http_1_0_is_not_upgraded() {
    simulate(|| async {
        let (near, mut far) = pipe();
        let serving = Sim::spawn(async move { serve(near, &buffers()).await });
        let mut sent = Vec::new();
        let offer = Offer { path: "/echo", ..Offer::default() };
        offer.encode(&Key::new([7; 16]), &mut sent).unwrap();
        let sent = String::from_utf8(sent).unwrap().replace("HTTP/1.1", "HTTP/1.0");
        far.write_all(sent).await.into_result().unwrap();
        let mut answer = Vec::new();
        while let Ok((1.., bytes)) = far.read(Vec::with_capacity(4096)).await.into_result() {
            answer.extend_from_slice(&bytes);
        }
        drop(far);
        serving.await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 505 "), "{}", answer.escape_ascii());
    });
}
