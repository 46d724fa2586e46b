/// Masks or unmasks `bytes` in place (RFC 6455 section 5.3): the first with the first byte of `key`,
/// and so on in turn. Doing it again undoes it.
///
/// For a payload that comes in parts, see [`rotated`].
#[inline]
pub fn mask(bytes: &mut [u8], key: [u8; 4]) {
    let [a, b, c, d] = key;
    let word = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, tail) = bytes.as_chunks_mut();
    for bytes in words {
        *bytes = (u64::from_ne_bytes(*bytes) ^ word).to_ne_bytes();
    }
    for (byte, key) in tail.iter_mut().zip(key.iter().cycle()) {
        *byte ^= key;
    }
}

/// The key for what follows after `bytes` bytes masked with `key`.
///
/// ```
/// use owned_io_websocket::frame::{mask, rotated};
///
/// let (key, mut payload) = ([1, 2, 3, 4], *b"payload");
/// mask(&mut payload, key);
///
/// let (start, rest) = payload.split_at_mut(3);
/// mask(start, key);
/// mask(rest, rotated(key, 3));
/// assert_eq!(&payload, b"payload");
/// ```
#[inline]
pub fn rotated(mut key: [u8; 4], bytes: usize) -> [u8; 4] {
    key.rotate_left(bytes % 4);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_at_every_phase_and_alignment() {
        let key = [0x11, 0x22, 0x44, 0x88];
        let lengths = if cfg!(miri) { 0..40 } else { 0..300 };
        let original: Vec<u8> = (0..=255).cycle().take(400).collect();
        for len in lengths {
            for (phase, align) in (0..4).flat_map(|phase| (0..16).map(move |align| (phase, align)))
            {
                let mut masked = original.clone();
                mask(&mut masked[align..][..len], rotated(key, phase));
                for (at, (masked, original)) in masked.iter().zip(&original).enumerate() {
                    let within = (align..align + len).contains(&at);
                    let key = if within { key[(at - align + phase) % 4] } else { 0 };
                    assert_eq!(*masked, original ^ key);
                }
            }
        }
    }
}
