//! The contract, on monoio: with its own ring settings, and with the tuned ones.

#![cfg(target_os = "linux")]

use owned_io::Executor;
use owned_io::conformance::runtime::block_on_returns_before_a_task_gives_up;
use owned_io::conformance::task::echoes_during_an_always_ready_task;
use owned_io_monoio::{Config, Monoio};

mod default {
    use super::*;

    owned_io::conformance! {
        runtime: Monoio,
        config: Config::default(),
        io_uring: true,
        dropped_read: Cancelled,
        deviations: {
            "task::an_always_ready_task_lets_others_run" =>
                (WHY_OTHERS_WAIT, others_wait_until_it_ends),
            "runtime::block_on_returns_while_a_task_is_always_ready" =>
                (WHY_OTHERS_WAIT, block_on_waits_until_it_ends),
        },
    }

    mod hand_over {
        use super::*;

        owned_io::hand_over_conformance! { runtime: Monoio, config: Config::default() }
    }
}

mod tuned {
    use super::*;

    owned_io::conformance! {
        runtime: Monoio,
        config: Monoio::tuned(),
        io_uring: true,
        dropped_read: Cancelled,
        deviations: {
            "task::an_always_ready_task_lets_others_run" =>
                (WHY_OTHERS_WAIT, others_wait_until_it_ends),
            "runtime::block_on_returns_while_a_task_is_always_ready" =>
                (WHY_OTHERS_WAIT, block_on_waits_until_it_ends),
        },
    }

    mod hand_over {
        use super::*;

        owned_io::hand_over_conformance! { runtime: Monoio, config: Monoio::tuned() }
    }
}

const WHY_OTHERS_WAIT: &str = "monoio puts a task that wakes itself at the front of its queue, and \
                               turns to the ring only when the queue is empty";

fn others_wait_until_it_ends(config: &Config) {
    let echoes = echoes_during_an_always_ready_task::<Monoio>();
    let (during, after) = Monoio::block_on(*config, echoes).unwrap();
    assert!(during <= 1 && after > 10, "{during} echoes during it, {after} after it");
}

fn block_on_waits_until_it_ends(config: &Config) {
    assert!(!block_on_returns_before_a_task_gives_up::<Monoio>(config));
}
