//! Frames on the wire, without state: [`Header`], [`Opcode`] and masking.

mod header;
mod mask;
mod opcode;

pub(crate) use header::{CONTROL_PAYLOAD_BYTES_MAX, FIN, LENGTH_16, MASKED};
pub use header::{Header, HeaderBytes};
pub(crate) use mask::mask_is_ascii;
pub use mask::{mask, rotate_key};
pub use opcode::Opcode;
