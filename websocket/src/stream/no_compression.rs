//! What stands for `compression` without feature `deflate`: nothing is agreed on.

use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use owned_io::MemoryAccount;

use super::Buffers;
use super::assembly::Assembly;
use super::shared::Sleep;
use crate::handshake::{Offer, Response, Upgrade};
use crate::{EngineConfig, HandshakeConfig, Kind, Part, ProtocolError};

pub(super) enum Agreed {}
pub(super) enum Inflation {}
pub(super) enum Deflation {}

/// A long message that is to be sent now: there is none.
pub(super) struct Finished {
    pub(super) kind: Kind,
    pub(super) is_compressed: bool,
    pub(super) payload: Bytes,
    pub(super) held_bytes: usize,
}

/// Messages of at most so many bytes are compressed at once.
pub(super) const AT_ONCE_BYTES_MAX: usize = 0;

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

    pub(super) fn begin(&mut self, _: Kind, _: Bytes, _: usize, _: &Buffers) -> Result<(), Bytes> {
        match *self {}
    }

    pub(super) fn copy(&mut self, _: &[u8]) -> Option<Bytes> {
        match *self {}
    }

    pub(super) const fn is_under_way(&self) -> bool {
        match *self {}
    }

    pub(super) const fn bytes_so_far(&self) -> usize {
        match *self {}
    }

    pub(super) fn go_on(&mut self, _: &Buffers) -> Option<Finished> {
        match *self {}
    }

    pub(super) fn poll_turn(&mut self, _: fn(Duration) -> Sleep, _: &Waker) -> Poll<()> {
        match *self {}
    }

    pub(super) fn give_up(&mut self) {
        match *self {}
    }
}
