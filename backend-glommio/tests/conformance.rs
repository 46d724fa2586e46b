//! The contract, on glommio: with its own settings, and with the tuned ones.

#![cfg(target_os = "linux")]

use std::fs;

use owned_io::Executor;
use owned_io_glommio::{Config, Glommio};

mod default {
    use super::*;

    owned_io::conformance! {
        runtime: Glommio,
        config: Config::default(),
        io_uring: true,
        dropped_read: LosesNothing,
        deviations: {
            "os::block_on_leaves_no_descriptor_behind" =>
                (WHY_DESCRIPTORS_STAY, each_executor_leaves_one),
        },
    }

    mod hand_over {
        use super::*;

        owned_io::hand_over_conformance! { runtime: Glommio, config: Config::default() }
    }
}

mod tuned {
    use super::*;

    owned_io::conformance! {
        runtime: Glommio,
        config: Glommio::tuned(),
        io_uring: true,
        dropped_read: LosesNothing,
        deviations: {
            "os::block_on_leaves_no_descriptor_behind" =>
                (WHY_DESCRIPTORS_STAY, each_executor_leaves_one),
        },
    }

    mod hand_over {
        use super::*;

        owned_io::hand_over_conformance! { runtime: Glommio, config: Glommio::tuned() }
    }
}

const WHY_DESCRIPTORS_STAY: &str = "glommio's tasks are freed without dropping their reference to \
                                    the executor's eventfd, which so stays open";

fn each_executor_leaves_one(config: &Config) {
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let once = || Glommio::block_on(*config, async { drop(Glommio::spawn(async {})) }).unwrap();
    once();
    let before = open();
    for _ in 0..5 {
        once();
    }
    assert_eq!(open(), before + 5);
}
