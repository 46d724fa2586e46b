//! Tests the suite itself: each broken backend fails the case that is named for it.

owned_io::canaries! { runtime: Sim, config: Config::default() }

use owned_io::conformance::{Declared, Deviation, check};
use owned_io_sim::{Config, Sim};

const KEPT: &str = "time::clocks_go_forward";

fn check_kept_case(is_intermittent: bool) {
    let instead = |_: &Config| panic!("the case does not fail");
    let deviation = Deviation { case: KEPT, reason: "none", instead, is_intermittent };
    check::<Sim>(KEPT, &Config::default(), Declared::default(), &[deviation], module_path!());
}

#[test]
fn an_intermittent_deviation_may_keep_its_sentence() {
    check_kept_case(true);
}

#[test]
#[should_panic(expected = "time::clocks_go_forward is kept: remove the deviation (none)")]
fn a_deviation_that_is_kept_is_to_be_removed() {
    check_kept_case(false);
}

mod hand_over {
    use super::*;

    owned_io::hand_over_canaries! { runtime: Sim, config: Config::default() }
}
