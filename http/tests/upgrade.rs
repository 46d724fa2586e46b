//! A WebSocket on a connection that has served other requests before.

mod ends;

use ends::{buffers, simulate};
use owned_io::{Buffers, Executor, OwnedRead, OwnedWriteExt};
use owned_io_http::{Connection, Response};
use owned_io_sim::{Sim, SimStream, pipe};
use owned_io_websocket::handshake::Offer;
use owned_io_websocket::{Config, Message, PendingRequest, WebSocket, connect};

/// Answers `/health`, and echoes on the WebSocket `/echo`.
async fn serve(stream: SimStream, buffers: &Buffers) {
    let mut connection =
        Connection::<Sim, _>::new(stream, buffers, owned_io_http::Config::default());
    while let Some(request) = connection.next().await.unwrap() {
        match request.path() {
            "/health" => connection.respond(&Response::new(200), "ok\n").await.unwrap(),
            "/echo" if request.has_token("upgrade", "websocket") => break,
            _ => {
                let upgrade = [("Upgrade", "websocket")];
                let response = Response::new(426).with_headers(&upgrade);
                connection.respond(&response, "this path is a WebSocket\n").await.unwrap();
            }
        }
    }
    let Ok(parts) = connection.into_parts().await else { return };
    let pending = PendingRequest::<Sim, _>::from_received(
        parts.stream,
        parts.received,
        &parts.buffers,
        Config::default(),
    );
    let origins = owned_io_websocket::handshake::Origins::Any;
    let pending = pending.await.unwrap();
    let mut socket = pending.accept(origins, None, &[]).await.unwrap();
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
        socket.close(owned_io_websocket::CloseFrame { code: None, reason: "" }).await.unwrap();
        serving.await.unwrap();
    });
}
