//! A partition of the log whose files were changed in any way opens or is refused. No batch is read that was never
//! appended, and nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../log/tests/common/change.rs"]
mod change;
#[path = "../../log/tests/common/recovery.rs"]
mod recovery;

fuzz_target!(|input: &[u8]| recovery::check(input));
