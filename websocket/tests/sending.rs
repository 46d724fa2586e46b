//! Ways to send, and what bounds them.

mod common;
mod ends;

use ends::{NORMAL, Protocol, pair, simulate};
use owned_io::Runtime;
use owned_io_sim::Sim;
use owned_io_websocket::stream::{EncodedFrame, Message};
use owned_io_websocket::{Config, Kind, Limit, Misuse, Part};

#[test]
fn one_frame_goes_to_many_connections() {
    simulate(|| async {
        let large = "\u{fc}".repeat(30_000);
        let frames = [
            EncodedFrame::new(Part::Whole(Kind::Text), large.as_bytes()),
            EncodedFrame::new(Part::Whole(Kind::Binary), b""),
            EncodedFrame::new(Part::First(Kind::Binary), &[1; 70_000]),
            EncodedFrame::new(Part::Middle, &[2; 200]),
            EncodedFrame::new(Part::Last, &[3; 1100]),
        ];
        let parts = [vec![1; 70_000], vec![2; 200], vec![3; 1100]].concat();
        let mut receiving = Vec::new();
        for id in 0..5_u8 {
            let (mut server, mut client) = pair(Config::default(), Config::default()).await;
            for frame in &frames {
                if matches!(frame.part(), Part::Whole(_)) {
                    server.outgoing.write(Message::Binary(&[id])).unwrap();
                }
                server.outgoing.write_frame(frame).unwrap();
                server.outgoing.ping(b"").unwrap();
            }
            let (large, parts) = (large.clone(), parts.clone());
            receiving.push(Sim::spawn(async move {
                let expected = [
                    Message::Binary(&[id]),
                    Message::Text(&large),
                    Message::Binary(&[id]),
                    Message::Binary(b""),
                    Message::Binary(&parts),
                ];
                for message in expected {
                    assert_eq!(client.incoming.receive().await.unwrap(), Some(message));
                }
                client.close(NORMAL).await.unwrap();
            }));
            Sim::spawn_detached(async move {
                server.outgoing.flush().await.unwrap();
                assert_eq!(server.incoming.receive().await.unwrap(), None);
            });
        }
        for receiving in receiving {
            receiving.await.unwrap();
        }
    });
}

#[test]
fn an_encoded_frame_keeps_to_the_rules_of_others() {
    simulate(|| async {
        let mut config = Config::default();
        config.queue_bytes_max = 5000;
        let (mut server, mut client) = pair(config, Config::default()).await;
        let [first, middle, last] = [Part::First(Kind::Text), Part::Middle, Part::Last]
            .map(|part| EncodedFrame::new(part, b"in parts"));
        let whole = EncodedFrame::new(Part::Whole(Kind::Text), &[b'a'; 4000]);

        let refused = |result, misuse| assert_eq!(result, Err(Protocol::Misuse(misuse)));
        refused(client.outgoing.write_frame(&whole), Misuse::NotMasked);
        refused(server.outgoing.write_frame(&middle), Misuse::ContinuationWithoutStart);
        refused(server.outgoing.write_frame(&last), Misuse::ContinuationWithoutStart);
        server.outgoing.write_frame(&first).unwrap();
        refused(server.outgoing.write_frame(&whole), Misuse::MessageWithinMessage);
        server.outgoing.write_frame(&last).unwrap();
        assert_eq!(server.outgoing.queued_bytes(), 20);
        server.outgoing.write_frame(&whole).unwrap();
        let full = server.outgoing.write_frame(&whole).unwrap_err();
        assert!(matches!(full, Protocol::Limit { limit: Limit::Queue, max: 5000, .. }));
        assert_eq!(server.outgoing.queued_bytes(), 20 + 4004);

        server.outgoing.flush().await.unwrap();
        let message = client.incoming.receive().await.unwrap();
        assert_eq!(message, Some(Message::Text("in partsin parts")));
        let closing = Sim::spawn(async move { client.close(NORMAL).await });
        assert!(server.incoming.receive().await.unwrap().is_none());
        refused(server.outgoing.write_frame(&whole), Misuse::SentAfterClose);
        closing.await.unwrap().unwrap();
    });
}
