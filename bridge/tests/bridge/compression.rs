//! A bridge does not compress.

use owned_io::{Executor, OwnedReadExt, OwnedWriteExt};
use owned_io_sim::{Sim, pipe};
use owned_io_tungstenite::{BufferGrowth, accept, connect};
use owned_io_websocket::Config;
use owned_io_websocket::deflate::Deflate;
use owned_io_websocket::handshake::{Key, Offer};

use super::buffers;
use super::ends::{read_to_end, simulate};

/// A bridge ignores what the configuration and the offer say about compression.
#[test]
fn compression_is_neither_offered_nor_accepted() {
    let mut config = Config::default();
    config.handshake.deflate = Some(Deflate::default());
    simulate(|| async move {
        let (a, mut raw) = pipe();
        let accepted = Sim::spawn(async move {
            accept::<Sim, _>(a, &buffers(), config, BufferGrowth::LINEAR).await.map(drop)
        });
        let mut request = Vec::new();
        let headers = &[("Sec-WebSocket-Extensions", "permessage-deflate")];
        let offer = Offer { headers, ..Offer::default() };
        offer.encode(&Key::new([7; 16]), &mut request).unwrap();
        raw.write_all(request).await.into_result().unwrap();
        let response = String::from_utf8(read_to_end(&mut raw).await).unwrap();
        accepted.await.unwrap().unwrap();
        assert!(response.starts_with("HTTP/1.1 101 "), "{response}");
        assert!(!response.to_lowercase().contains("extensions"), "{response}");

        let (a, mut raw) = pipe();
        let connecting = Sim::spawn(async move {
            let offer = Offer { deflate: Some(Deflate::default()), ..Offer::default() };
            connect::<Sim, _>(a, &buffers(), config, BufferGrowth::LINEAR, &offer).await.map(drop)
        });
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let ((), byte) = raw.read_exact(Vec::with_capacity(1), 1).await.into_result().unwrap();
            request.extend_from_slice(&byte);
        }
        let request = String::from_utf8(request).unwrap();
        assert!(!request.to_lowercase().contains("extensions"), "{request}");
        drop(raw);
        connecting.await.unwrap().unwrap_err();
    });
}
