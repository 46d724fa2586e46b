//! Compression, if it was negotiated: [`Inflater`] for incoming messages, [`Deflater`] for outgoing
//! ones.
//!
//! Without feature `deflate` the file `no_compression.rs` replaces this module. Its types have no
//! values.

mod codec_pool;
mod deflater;
mod inflater;

use codec_pool::CodecPool;
pub(in crate::stream) use deflater::{Deflater, FinishedMessage, IMMEDIATE_BYTES_MAX};
pub(in crate::stream) use inflater::{InflateProgress, Inflater};

use owned_io::MemoryAccount;

use super::Buffers;
use crate::deflate::{Agreement, ContextParameters, Deflate};
use crate::handshake::{Offer, Response, Upgrade};
use crate::{EngineConfig, HandshakeConfig};

/// What both sides agreed on, and our own settings.
pub(in crate::stream) struct CompressionSetup {
    deflate: Deflate,
    agreement: Agreement,
}

/// Accepts the client's offer, if compression is configured and offered.
pub(in crate::stream) fn negotiate(
    upgrade: &mut Upgrade<'_>,
    config: &HandshakeConfig,
) -> Option<CompressionSetup> {
    let deflate = config.deflate?;
    let agreement = upgrade.agree_to_deflate(&deflate)?;
    Some(CompressionSetup { deflate, agreement })
}

/// What the server accepted, according to a response that was checked.
pub(in crate::stream) fn negotiated(
    response: &Response<'_>,
    offer: &Offer<'_>,
) -> Option<CompressionSetup> {
    let agreement = response.deflate(offer)?;
    Some(CompressionSetup { deflate: offer.deflate?, agreement })
}

impl CompressionSetup {
    /// Creates the inflater and the deflater of one side.
    pub(in crate::stream) fn open(
        self,
        is_server: bool,
        config: &EngineConfig,
        buffers: &Buffers,
        account: &MemoryAccount,
    ) -> (Box<Inflater>, Box<Deflater>) {
        let Self { deflate, agreement } = self;
        let sides = (agreement.server(), agreement.client());
        let (ours, theirs): (ContextParameters, ContextParameters) =
            if is_server { sides } else { (sides.1, sides.0) };
        let inflater = Inflater::new(theirs, config.message_bytes_max, buffers.clone(), account);
        (Box::new(inflater), Box::new(Deflater::new(&deflate, ours, account)))
    }
}
