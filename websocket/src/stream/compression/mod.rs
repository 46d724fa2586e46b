//! Compression, where it was agreed on: [`Inflation`] of what comes in, [`Deflation`] of what goes out.
//!
//! Without feature `deflate` the file `no_compression.rs` stands for this, with types of which there are
//! no values.

mod deflation;
mod inflation;
mod spare;

pub(in crate::stream) use deflation::{AT_ONCE_BYTES_MAX, Deflation, Finished};
pub(in crate::stream) use inflation::{Inflated, Inflation};
use spare::Spare;

use owned_io::MemoryAccount;

use super::Buffers;
use crate::deflate::{Agreement, Deflate, Side};
use crate::handshake::{Offer, Response, Upgrade};
use crate::{EngineConfig, HandshakeConfig};

/// What both sides agreed on, and how we go about it.
pub(in crate::stream) struct Agreed {
    deflate: Deflate,
    agreement: Agreement,
}

/// Agrees to what the client offers, if there is anything to agree to.
pub(in crate::stream) fn agree(
    upgrade: &mut Upgrade<'_>,
    config: &HandshakeConfig,
) -> Option<Agreed> {
    let deflate = config.deflate?;
    let agreement = upgrade.agree_to_deflate(&deflate)?;
    Some(Agreed { deflate, agreement })
}

/// What the server agreed to, by a response that was checked.
pub(in crate::stream) fn agreed(response: &Response<'_>, offer: &Offer<'_>) -> Option<Agreed> {
    let agreement = response.deflate(offer)?;
    Some(Agreed { deflate: offer.deflate?, agreement })
}

impl Agreed {
    /// The two ways, for one side.
    pub(in crate::stream) fn open(
        self,
        is_server: bool,
        config: &EngineConfig,
        buffers: &Buffers,
        account: &MemoryAccount,
    ) -> (Box<Inflation>, Box<Deflation>) {
        let Self { deflate, agreement } = self;
        let sides = (agreement.server(), agreement.client());
        let (ours, theirs): (Side, Side) = if is_server { sides } else { (sides.1, sides.0) };
        let inflation = Inflation::new(theirs, config.message_bytes_max, buffers.clone(), account);
        (Box::new(inflation), Box::new(Deflation::new(&deflate, ours, account)))
    }
}
