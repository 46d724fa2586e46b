#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256i, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_or_si128, _mm256_castsi256_si128,
    _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_or_si256, _mm256_set1_epi64x,
    _mm256_setzero_si256, _mm256_storeu_si256, _mm256_xor_si256,
};

/// Masks or unmasks `bytes` in place (RFC 6455 section 5.3), beginning with the first byte of
/// `key`. Masking twice restores the bytes.
///
/// For a payload in several parts, see [`rotate_key`].
#[inline]
pub fn mask(bytes: &mut [u8], key: [u8; 4]) {
    mask_and_collect_bits(bytes, key);
}

/// Returns the key for the bytes that follow the first `bytes` bytes masked with `key`.
///
/// ```
/// use owned_io_websocket::frame::{mask, rotate_key};
///
/// let (key, mut payload) = ([1, 2, 3, 4], *b"payload");
/// mask(&mut payload, key);
///
/// let (start, rest) = payload.split_at_mut(3);
/// mask(start, key);
/// mask(rest, rotate_key(key, 3));
/// assert_eq!(&payload, b"payload");
/// ```
#[inline]
pub fn rotate_key(key: [u8; 4], bytes: usize) -> [u8; 4] {
    let bits = 8 * (bytes % 4) as u32;
    u32::from_le_bytes(key).rotate_right(bits).to_le_bytes()
}

/// Like [`mask`], and returns whether the result is all ASCII. That costs next to nothing here, and
/// saves a second pass over text.
#[inline]
pub(crate) fn mask_is_ascii(bytes: &mut [u8], key: [u8; 4]) -> bool {
    mask_and_collect_bits(bytes, key) & HIGH_BITS == 0
}

/// The bits that ASCII lacks.
const HIGH_BITS: u64 = u64::from_ne_bytes([0x80; 8]);

/// From this length on, choosing instructions at run time is worth it.
const DISPATCH_BYTES_MIN: usize = 128;
/// From this length on, starting at a cache line is worth it (7 % at 16 KiB, 15 % at 64 KiB).
/// Payloads usually do not start there.
const ALIGNED_BYTES_MIN: usize = 8 * 1024;
const CACHE_LINE_BYTES: usize = 64;

/// Masks `bytes`, and returns the bitwise or of the result, in words.
///
/// The compiler vectorises the loop of [`mask_words`], with the widest instructions that it may use.
/// GB/s in a loop over one buffer, Zen 5, 2026-11-21, at 1,000 B and at 16 KiB: SSE2, which every
/// x86-64 has, 75 and 84; AVX2 105 and 147; AVX-512 123 and 182. On aarch64 NEON is always
/// available. With AVX2 it is written by hand since, for short messages: see `mask_avx2`.
#[inline]
fn mask_and_collect_bits(bytes: &mut [u8], key: [u8; 4]) -> u64 {
    if bytes.len() < DISPATCH_BYTES_MIN { mask_short(bytes, key) } else { mask_long(bytes, key) }
}

#[inline(never)]
fn mask_short(bytes: &mut [u8], key: [u8; 4]) -> u64 {
    mask_words(bytes, key)
}

#[inline(never)]
fn mask_long(bytes: &mut [u8], key: [u8; 4]) -> u64 {
    let unaligned = match bytes.len() {
        ALIGNED_BYTES_MIN.. => bytes.as_ptr().align_offset(CACHE_LINE_BYTES).min(bytes.len()),
        _ => 0,
    };
    let (unaligned, rest) = bytes.split_at_mut(unaligned);
    mask_words(unaligned, key) | mask_dispatched(rest, rotate_key(key, unaligned.len()))
}

#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "to call functions compiled for specific processors")
)]
fn mask_dispatched(bytes: &mut [u8], key: [u8; 4]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512F.
            return unsafe { mask_avx512(bytes, key) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            return unsafe { mask_avx2(bytes, key) };
        }
    }
    mask_words(bytes, key)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn mask_avx512(bytes: &mut [u8], key: [u8; 4]) -> u64 {
    mask_words(bytes, key)
}

/// Masks blocks of 32 bytes. The compiler's own loop over words ends with up to fifteen single
/// words, which are half of the time with 200 B (16.6 ns, and 8.9 without them; Zen 3, 2026-11-28).
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn mask_avx2(bytes: &mut [u8], key: [u8; 4]) -> u64 {
    let len = bytes.len();
    let Some(last) = bytes.last_chunk() else { return mask_short(bytes, key) };
    // The last block may overlap the one before it, as the last word does in `mask_words`.
    let mut last = *last;
    let mut bits = _mm256_setzero_si256();
    mask_block(&mut last, _mm256_set1_epi64x(key_word(rotate_key(key, len)) as i64), &mut bits);
    let word = _mm256_set1_epi64x(key_word(key) as i64);
    for block in bytes.as_chunks_mut().0 {
        mask_block(block, word, &mut bits);
    }
    bytes[len - last.len()..].copy_from_slice(&last);
    let bits = _mm_or_si128(_mm256_castsi256_si128(bits), _mm256_extracti128_si256::<1>(bits));
    (_mm_cvtsi128_si64(bits) | _mm_extract_epi64::<1>(bits)) as u64
}

/// Masks `block`, and adds the result to `bits`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
#[expect(unsafe_code, reason = "to load and store a vector")]
fn mask_block(block: &mut [u8; 32], key: __m256i, bits: &mut __m256i) {
    // SAFETY: the 32 bytes of `block` are read. No alignment is required.
    let masked = _mm256_xor_si256(unsafe { _mm256_loadu_si256(block.as_ptr().cast()) }, key);
    // SAFETY: the same 32 bytes are written, and `block` is borrowed exclusively.
    unsafe { _mm256_storeu_si256(block.as_mut_ptr().cast(), masked) };
    *bits = _mm256_or_si256(*bits, masked);
}

#[inline(always)]
fn mask_words(bytes: &mut [u8], key: [u8; 4]) -> u64 {
    let len = bytes.len();
    let Some(last) = bytes.last_chunk() else { return mask_partial_word(bytes, key) };
    // Masks the last eight bytes as one word, which may overlap the word before it. Masking the
    // remainder byte by byte would take longer than a hundred bytes before it.
    let last = u64::from_ne_bytes(*last) ^ key_word(rotate_key(key, len));
    let mut bits = last;
    for bytes in bytes.as_chunks_mut().0 {
        let masked = u64::from_ne_bytes(*bytes) ^ key_word(key);
        bits |= masked;
        *bytes = masked.to_ne_bytes();
    }
    bytes[len - 8..].copy_from_slice(&last.to_ne_bytes());
    bits
}

#[inline(always)]
const fn key_word(key: [u8; 4]) -> u64 {
    let half = u32::from_ne_bytes(key) as u64;
    half << 32 | half
}

#[inline]
fn mask_partial_word(bytes: &mut [u8], [a, b, c, d]: [u8; 4]) -> u64 {
    let mut bits = 0;
    for (byte, key) in bytes.iter_mut().zip([a, b, c, d, a, b, c]) {
        *byte ^= key;
        bits |= *byte;
    }
    bits.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Mask = fn(&mut [u8], [u8; 4]) -> u64;

    /// What [`mask`] calls, and each of what it chooses from that this processor has.
    #[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "as in `mask_dispatched`"))]
    fn implementations() -> Vec<Mask> {
        let mut all: Vec<Mask> = vec![mask_and_collect_bits, mask_short];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has AVX2.
                all.push(|bytes, key| unsafe { mask_avx2(bytes, key) });
            }
            if is_x86_feature_detected!("avx512f") {
                // SAFETY: the processor has AVX-512F.
                all.push(|bytes, key| unsafe { mask_avx512(bytes, key) });
            }
        }
        all
    }

    #[test]
    fn every_length_at_every_phase_and_alignment() {
        for mask in implementations() {
            masks_every_length_at_every_phase_and_alignment(mask);
        }
    }

    fn masks_every_length_at_every_phase_and_alignment(mask: Mask) {
        let key = [0x11, 0x22, 0x44, 0x88];
        let lengths: &[_] =
            if cfg!(miri) { &[0..18, 200..201, 256..257] } else { &[0..300, 8191..8194] };
        let alignments = if cfg!(miri) { 0..2 } else { 0..16 };
        for len in lengths.iter().cloned().flatten() {
            let original: Vec<u8> = (0..=255).cycle().take(len + 32).collect();
            for (phase, align) in (0..4).flat_map(|p| alignments.clone().map(move |a| (p, a))) {
                let mut masked = original.clone();
                mask(&mut masked[align..][..len], rotate_key(key, phase));
                for (at, (masked, original)) in masked.iter().zip(&original).enumerate() {
                    let within = (align..align + len).contains(&at);
                    let key = if within { key[(at - align + phase) % 4] } else { 0 };
                    assert_eq!(*masked, original ^ key);
                }
            }
        }
    }

    #[test]
    fn one_byte_that_is_not_ascii_is_seen_wherever_it_is() {
        for mask in implementations() {
            for len in if cfg!(miri) { [0, 1, 17, 150] } else { [0, 7, 63, 530] } {
                sees_one_byte_that_is_not_ascii(mask, len);
            }
        }
    }

    fn sees_one_byte_that_is_not_ascii(mask: Mask, len: usize) {
        let key = [0x91, 0x22, 0xC4, 0x08];
        let is_ascii = |bits| bits & HIGH_BITS == 0;
        let mut payload = vec![b'~'; len];
        mask(&mut payload, key);
        assert!(is_ascii(mask(&mut payload, key)));
        for at in 0..len {
            payload[at] = 0x80;
            mask(&mut payload, key);
            assert!(!is_ascii(mask(&mut payload, key)));
            payload[at] = b'~';
        }
    }
}
