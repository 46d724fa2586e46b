//! The program with `--zero-copy`, from outside.

#[path = "../../common/checks/zero_copy.rs"]
mod zero_copy;

#[test]
fn answers_are_right_and_sends_are_counted() {
    zero_copy::check(env!("CARGO_BIN_EXE_object-uring"), "object-uring");
}
