//! The conformance suite in the simulation.

use std::thread;
use std::time::Duration;

use owned_io::conformance::worker::threads_of_three_workers;
use owned_io::{Clock, Executor};
use owned_io_sim::{Config, Sim};

owned_io::conformance! {
    portable,
    runtime: Sim,
    config: Config::default(),
    dropped_read: LosesNothing,
    deviations: {
        "task::blocking_closures_let_others_run" => (
            "closures run on the simulation's own thread, because another thread's progress could \
             not be repeated",
            blocking_closures_run_in_turn,
        ),
        "worker::each_worker_has_a_thread_of_its_own" => (
            "the workers are tasks of one simulation, because the order of threads could not be \
             repeated",
            workers_share_the_thread,
        ),
    },
}

fn workers_share_the_thread(config: &Config) {
    assert_eq!(threads_of_three_workers::<Sim>(config), [thread::current().id(); 3]);
}

fn blocking_closures_run_in_turn(config: &Config) {
    Sim::block_on(*config, async {
        let here = thread::current().id();
        assert_eq!(Sim::spawn_blocking(|| thread::current().id()).await.unwrap(), here);
        let started = Sim::now();
        Sim::spawn_blocking(|| ()).await.unwrap();
        assert!(Sim::now() - started < Duration::from_millis(2));
    })
    .unwrap();
}

mod hand_over {
    use super::*;

    owned_io::hand_over_conformance! { runtime: Sim, config: Config::default() }
}
