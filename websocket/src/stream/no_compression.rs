//! What stands for `compression` without feature `deflate`: nothing is agreed on.

use super::Buffers;
use super::assembly::Assembly;
use crate::handshake::{Offer, Response, Upgrade};
use crate::{Config, Error, Kind, Part};

pub(super) enum Agreed {}
pub(super) enum Inflation {}
pub(super) enum Deflation {}

pub(super) const fn agree(_: &mut Upgrade<'_>, _: &Config) -> Option<Agreed> {
    None
}

pub(super) const fn offering<'o>(offer: &Offer<'o>, _: &Config) -> Offer<'o> {
    *offer
}

pub(super) const fn agreed(_: &Response<'_>, _: &Offer<'_>) -> Option<Agreed> {
    None
}

impl Agreed {
    pub(super) fn open(
        self,
        _: bool,
        _: &Config,
        _: &Buffers,
    ) -> (Box<Inflation>, Option<Box<Deflation>>) {
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
    ) -> Result<(), Error> {
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
