//! The contract, on tokio-uring: with its own ring settings, and with the tuned ones.

#![cfg(target_os = "linux")]

use owned_io::Executor;
use owned_io::conformance::task::echoes_during_an_always_ready_task;
use owned_io_tokio_uring::{Config, TokioUring};

mod default {
    use super::*;

    owned_io::conformance! {
        runtime: TokioUring,
        config: Config::default(),
        io_uring: true,
        dropped_read: LosesNextBytes,
        deviations: {
            "task::an_always_ready_task_lets_others_run" =>
                (WHY_OTHERS_WAIT, others_wait_until_it_ends),
        },
    }

    mod hand_over {
        use super::*;

        owned_io::hand_over_conformance! { runtime: TokioUring, config: Config::default() }
    }
}

mod tuned {
    use super::*;

    owned_io::conformance! {
        runtime: TokioUring,
        config: TokioUring::tuned(),
        io_uring: true,
        dropped_read: LosesNextBytes,
        deviations: {
            "task::an_always_ready_task_lets_others_run" =>
                (WHY_OTHERS_WAIT, others_wait_until_it_ends),
        },
    }

    mod hand_over {
        use super::*;

        owned_io::hand_over_conformance! { runtime: TokioUring, config: TokioUring::tuned() }
    }
}

const WHY_OTHERS_WAIT: &str = "tokio-uring submits to the ring, and reaps from it, only when the \
                               thread parks: that is, when no task is ready";

fn others_wait_until_it_ends(config: &Config) {
    let echoes = echoes_during_an_always_ready_task::<TokioUring>();
    let (during, after) = TokioUring::block_on(*config, echoes).unwrap();
    assert!(during <= 1 && after > 10, "{during} echoes during it, {after} after it");
}
