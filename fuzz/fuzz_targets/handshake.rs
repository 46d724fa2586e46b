//! Requests and responses of any bytes: nothing panics, more bytes do not change a complete head, our answers decode.
#![no_main]

use libfuzzer_sys::fuzz_target;
use owned_io_websocket::handshake::{Key, Offer, Origins, Request, Response};

const HEAD_BYTES_MAX: usize = 2048;

fuzz_target!(|bytes: &[u8]| {
    let mut answer = Vec::new();
    match Request::decode(bytes, HEAD_BYTES_MAX) {
        Ok(None) => assert!(bytes.len() < HEAD_BYTES_MAX),
        Ok(Some((request, len))) => {
            let again = Request::decode(&bytes[..len], HEAD_BYTES_MAX).unwrap().unwrap();
            assert_eq!((again.0.target(), again.1), (request.target(), len));
            match request.upgrade(Origins::Only(&["http://a"])) {
                Ok(upgrade) => {
                    let protocol = upgrade.choose_protocol(&["a", "b"]);
                    upgrade.accept(protocol, &[], &mut answer).unwrap();
                }
                Err(refusal) => refusal.encode(&mut answer),
            }
        }
        Err(refusal) => refusal.encode(&mut answer),
    }
    if !answer.is_empty() {
        let (response, _) = Response::decode(&answer, HEAD_BYTES_MAX).unwrap().unwrap();
        assert!(response.status() >= 101);
    }

    match Response::decode(bytes, HEAD_BYTES_MAX) {
        Ok(None) => assert!(bytes.len() < HEAD_BYTES_MAX),
        Ok(Some((response, _))) => {
            let offer = Offer { protocols: &["a"], ..Offer::default() };
            let _ = response.check(&offer, &Key::new([1; 16]));
        }
        Err(_) => {}
    }
});
