//! A header that decodes encodes to the same bytes, and no prefix of it decodes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use owned_io_websocket::CloseFrame;
use owned_io_websocket::frame::Header;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some((header, len))) = Header::decode(bytes) {
        assert_eq!(&*header.encode(), &bytes[..len]);
        assert_eq!(header.encoded_bytes(), len);
        for cut in 0..len {
            assert_eq!(Header::decode(&bytes[..cut]), Ok(None));
        }
    }
    if let Ok(frame) = CloseFrame::decode(bytes) {
        assert_eq!(frame.code.is_some(), bytes.len() >= 2);
        assert_eq!(frame.reason.as_bytes(), bytes.get(2..).unwrap_or_default());
    }
});
