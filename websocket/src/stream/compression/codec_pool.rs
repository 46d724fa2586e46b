use std::cell::RefCell;

use crate::deflate::{Compressor, Decompressor, Deflate};

/// Compressors and decompressors that are not in use. The connections of a worker share them,
/// except those with context takeover.
#[derive(Debug, Default)]
pub(super) struct CodecPool {
    /// One for each level and window in use: at most 63.
    compressors: RefCell<Vec<PooledCompressor>>,
    /// At most [`DECOMPRESSORS_MAX`].
    decompressors: RefCell<Vec<Decompressor>>,
}

#[derive(Debug)]
struct PooledCompressor {
    level: u8,
    window_bits: u8,
    compressor: Compressor,
}

/// Messages that arrive in one piece take one decompressor in turn. Each incomplete message holds
/// one.
const DECOMPRESSORS_MAX: usize = 4;

impl CodecPool {
    /// Appends the compressed message to `out`, with an empty context for this level and window.
    /// Returns false if that has failed.
    pub(super) fn compress(
        &self,
        deflate: &Deflate,
        window_bits: u8,
        message: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        let mut pooled = self.compressors.borrow_mut();
        let at = position(&pooled, deflate, window_bits).unwrap_or_else(|| {
            let compressor = Compressor::new(deflate, window_bits);
            pooled.push(PooledCompressor { level: level(deflate), window_bits, compressor });
            pooled.len() - 1
        });
        let compressor = &mut pooled[at].compressor;
        let is_compressed = compressor.compress(message, out);
        if is_compressed {
            compressor.forget();
        } else {
            pooled.swap_remove(at); // it may be within the message, and cannot forget that
        }
        is_compressed
    }

    /// Takes a compressor for this level and window, whose context is empty.
    pub(super) fn take_compressor(&self, deflate: &Deflate, window_bits: u8) -> Compressor {
        let mut pooled = self.compressors.borrow_mut();
        match position(&pooled, deflate, window_bits) {
            Some(at) => pooled.swap_remove(at).compressor,
            None => Compressor::new(deflate, window_bits),
        }
    }

    /// Returns a compressor. Drops it if there is another for this level and window by now.
    pub(super) fn give_compressor(
        &self,
        deflate: &Deflate,
        window_bits: u8,
        mut compressor: Compressor,
    ) {
        let mut pooled = self.compressors.borrow_mut();
        if position(&pooled, deflate, window_bits).is_none() {
            compressor.forget();
            pooled.push(PooledCompressor { level: level(deflate), window_bits, compressor });
        }
    }

    /// Takes a decompressor whose context is empty.
    pub(super) fn take_decompressor(&self) -> Decompressor {
        self.decompressors.borrow_mut().pop().unwrap_or_else(Decompressor::new)
    }

    /// Returns a decompressor.
    pub(super) fn give_decompressor(&self, mut decompressor: Decompressor) {
        let mut pooled = self.decompressors.borrow_mut();
        if pooled.len() < DECOMPRESSORS_MAX {
            decompressor.forget();
            pooled.push(decompressor);
        }
    }
}

/// The index of the compressor for this level and window.
fn position(pooled: &[PooledCompressor], deflate: &Deflate, window_bits: u8) -> Option<usize> {
    let wanted = (level(deflate), window_bits);
    pooled.iter().position(|entry| (entry.level, entry.window_bits) == wanted)
}

fn level(deflate: &Deflate) -> u8 {
    deflate.level.clamp(1, 9)
}
