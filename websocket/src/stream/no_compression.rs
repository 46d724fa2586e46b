//! Replaces `compression` without feature `deflate`: nothing is negotiated.

use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use owned_io::MemoryAccount;

use super::Buffers;
use super::assembly::Assembly;
use super::shared::Sleep;
use crate::handshake::{Offer, Response, Upgrade};
use crate::{EngineConfig, Fragment, HandshakeConfig, MessageKind, ProtocolError};

pub(super) enum CompressionSetup {}
pub(super) enum Inflater {}
pub(super) enum Deflater {}

/// A compressed long message. There is none.
pub(super) struct FinishedMessage {
    pub(super) kind: MessageKind,
    pub(super) is_compressed: bool,
    pub(super) payload: Bytes,
    pub(super) held_bytes: usize,
}

/// Messages of at most this many bytes are compressed in one step.
pub(super) const IMMEDIATE_BYTES_MAX: usize = 32 * 1024;

/// How much of a piece was decompressed. Uncompressed pieces are always complete.
#[expect(dead_code, reason = "nothing is decompressed")]
pub(super) enum InflateProgress {
    Complete,
    Partial { consumed: usize, is_out_of_memory: bool },
}

pub(super) const fn negotiate(
    _: &mut Upgrade<'_>,
    _: &HandshakeConfig,
) -> Option<CompressionSetup> {
    None
}

pub(super) const fn negotiated(_: &Response<'_>, _: &Offer<'_>) -> Option<CompressionSetup> {
    None
}

impl CompressionSetup {
    pub(super) fn open(
        self,
        _: bool,
        _: &EngineConfig,
        _: &Buffers,
        _: &MemoryAccount,
    ) -> (Box<Inflater>, Box<Deflater>) {
        match self {}
    }
}

impl Inflater {
    pub(super) fn inflate(
        &mut self,
        _: MessageKind,
        _: &[u8],
        _: bool,
        _: &mut Assembly,
    ) -> Result<InflateProgress, ProtocolError> {
        match *self {}
    }
}

impl Deflater {
    pub(super) const fn shareable(&self, _: &MemoryAccount) -> Option<Self> {
        match *self {}
    }

    pub(super) const fn can_share(&self, _: &Self) -> bool {
        match *self {}
    }

    pub(super) const fn accepts(&self, _: Fragment, _: usize) -> bool {
        match *self {}
    }

    pub(super) fn compress(&mut self, _: &[u8], _: &mut Vec<u8>, _: &Buffers) -> bool {
        match *self {}
    }

    pub(super) fn begin(
        &mut self,
        _: MessageKind,
        _: Bytes,
        _: usize,
        _: &Buffers,
    ) -> Result<(), Bytes> {
        match *self {}
    }

    pub(super) fn copy(&mut self, _: &[u8]) -> Option<Bytes> {
        match *self {}
    }

    pub(super) const fn is_under_way(&self) -> bool {
        match *self {}
    }

    pub(super) const fn compressed_bytes(&self) -> usize {
        match *self {}
    }

    pub(super) fn compress_next(&mut self, _: &Buffers) -> Option<FinishedMessage> {
        match *self {}
    }

    pub(super) fn poll_pause(&mut self, _: fn(Duration) -> Sleep, _: &Waker) -> Poll<()> {
        match *self {}
    }

    pub(super) fn abandon(&mut self) {
        match *self {}
    }
}
