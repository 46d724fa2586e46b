//! What stands for `compression` without feature `deflate`: nothing is agreed on.

use owned_io::MemoryAccount;

use super::Buffers;
use super::assembly::Assembly;
use crate::handshake::{Offer, Response, Upgrade};
use crate::{EngineConfig, HandshakeConfig, Kind, Part, ProtocolError};

pub(super) enum Agreed {}
pub(super) enum Inflation {}
pub(super) enum Deflation {}

/// How much of a piece was decompressed: all of one that is not compressed.
#[expect(dead_code, reason = "nothing is decompressed")]
pub(super) enum Inflated {
    All,
    Some { consumed: usize, is_out_of_memory: bool },
}

pub(super) const fn agree(_: &mut Upgrade<'_>, _: &HandshakeConfig) -> Option<Agreed> {
    None
}

pub(super) const fn agreed(_: &Response<'_>, _: &Offer<'_>) -> Option<Agreed> {
    None
}

impl Agreed {
    pub(super) fn open(
        self,
        _: bool,
        _: &EngineConfig,
        _: &Buffers,
        _: &MemoryAccount,
    ) -> (Box<Inflation>, Box<Deflation>) {
        match self {}
    }
}

impl Inflation {
    pub(super) fn inflate(
        &mut self,
        _: Kind,
        _: &[u8],
        _: bool,
        _: &mut Assembly,
    ) -> Result<Inflated, ProtocolError> {
        match *self {}
    }
}

impl Deflation {
    pub(super) const fn takes(&self, _: Part, _: usize) -> bool {
        match *self {}
    }

    pub(super) fn compress(&mut self, _: &[u8], _: &mut Vec<u8>, _: &Buffers) -> bool {
        match *self {}
    }
}
