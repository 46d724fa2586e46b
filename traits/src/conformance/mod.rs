//! The conformance suite. Each case proves a sentence of the contract. It runs on any backend.
//!
//! ```ignore
//! // backend/tests/conformance.rs
//! owned_io::conformance! {
//!     runtime: my_backend::MyRuntime,
//!     config: my_backend::Config::default(),
//! }
//! ```
//!
//! The macro creates one `#[test]` per case with the name of the case: `io::read_sets_the_exact_length`. The
//! documentation of each case quotes the sentence that it proves.
//!
//! Where the contract leaves a choice, the backend declares its behaviour, and the suite checks it. The default
//! is the stricter behaviour:
//!
//! ```ignore
//! owned_io::conformance! {
//!     runtime: my_backend::MyRuntime,
//!     config: my_backend::Config::default(),
//!     io_uring: true,          // see `Declared`
//!     dropped_read: Cancelled, // see `DroppedRead`
//! }
//! ```
//!
//! The defaults are `io_uring: false` and `dropped_read: LosesNothing`. The arguments have a fixed order: `runtime`,
//! `config`, `io_uring`, `dropped_read`, `deviations`.
//!
//! If a runtime cannot keep a sentence, declare a deviation: the case, the reason, and a function that asserts
//! the actual behaviour. The case itself must then fail, so that a declaration cannot outlive its cause:
//!
//! ```ignore
//! owned_io::conformance! {
//!     runtime: my_backend::MyRuntime,
//!     config: my_backend::Config::default(),
//!     deviations: {
//!         "task::an_always_ready_task_lets_others_run" => (
//!             "the runtime polls for I/O only when no task is ready",
//!             my_deviations::io_waits_until_the_task_ends,
//!         ),
//!     },
//! }
//! ```
//!
//! If a runtime keeps a sentence most of the time, write `sometimes` before the parenthesis. Then the case may
//! also pass. If it fails, the function asserts the actual behaviour.
//!
//! The cases of the module [`os`] are about the operating system. Each runs in its own process, with its peers
//! in another process. Both are started from the test binary. A backend without kernel sockets excludes these
//! cases: it writes `portable` as the first word in the macro.
//!
//! Files and handing over are traits of their own, and have their own cases: [`files`] and [`hand_over`].
//!
//! [`canary`] and [`file_canary`] test the suite itself. Each canary is a backend that breaks one sentence, and must
//! fail the case for it.

pub mod canary;
pub mod cancel;
pub mod coop;
pub mod file_canary;
pub mod files;
pub mod hand_over;
pub mod io;
pub mod net;
pub mod os;
pub mod pooled;
pub mod runtime;
pub mod task;
pub mod time;
pub mod vectored;
pub mod worker;

mod isolate;
mod peer;
mod prove;
mod support;

use crate::Runtime;
use prove::{CASE_TAKES_MAX, prove};

/// A test of one sentence of the contract on `R`.
pub struct Case<R: Runtime> {
    /// The module and the function: `io::read_sets_the_exact_length`.
    pub name: &'static str,
    /// Whether it needs its own process.
    pub isolated: bool,
    /// Runs the case with the configuration and the declaration of a backend. Panics if it fails.
    pub prove: fn(&R::Config, &Declared),
}

/// The declared behaviour of a backend where the contract leaves a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Declared {
    /// Whether the backend needs io_uring. If so, nothing starts without it.
    pub io_uring: bool,
    /// What happens to bytes that arrive after a pending read was dropped.
    pub dropped_read: DroppedRead,
}

/// What happens to bytes that arrive after a pending read was dropped. Generic code does not rely on it, and
/// drops the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DroppedRead {
    /// The next read returns them.
    #[default]
    LosesNothing,
    /// The kernel cancels the dropped read. Bytes that arrive before the cancellation are lost.
    Cancelled,
    /// The dropped read continues in the kernel and consumes the next bytes.
    LosesNextBytes,
}

/// A sentence of the contract that a backend does not keep.
pub struct Deviation<R: Runtime> {
    /// The case for the sentence.
    pub case: &'static str,
    /// Why the backend cannot keep it.
    pub reason: &'static str,
    /// Asserts the actual behaviour. Panics if it differs.
    pub instead: fn(&R::Config),
    /// Whether the case may also pass. If false, it must fail.
    pub is_intermittent: bool,
}

/// Checks that a case passes, or deviates as declared. The tests of [`conformance!`] call it.
///
/// `module` is the path of the module of the calling test. The test has the name of the case.
///
/// [`conformance!`]: crate::conformance!
///
/// # Panics
/// If the case fails.
pub fn check<R: Runtime>(
    case: &str,
    config: &R::Config,
    declared: Declared,
    deviations: &[Deviation<R>],
    module: &str,
) {
    let cases = cases::<R>();
    let case = cases.iter().find(|known| known.name == case).expect("a case of the table");
    if case.isolated && isolate::run_in_process::<R>(case.name, module, config) {
        return;
    }
    let case_proof = case.prove;
    let prove_case = || prove(config, move |config| case_proof(config, &declared));
    match deviations.iter().find(|deviation| deviation.case == case.name) {
        None => {
            if let Err(why) = prove_case() {
                fail(case.isolated, &format!("{} does not keep {}: {why}", R::NAME, case.name));
            }
        }
        Some(Deviation { case: name, reason, instead, is_intermittent }) => {
            if prove_case().is_ok() {
                assert!(is_intermittent, "{name} is kept: remove the deviation ({reason})");
                return;
            }
            if let Err(why) = prove(config, *instead) {
                fail(
                    case.isolated,
                    &format!("{name}: {} deviates, and not as declared: {why}", R::NAME),
                );
            }
        }
    }
}

fn fail(is_isolated: bool, why: &str) -> ! {
    if is_isolated {
        isolate::report_failure(why);
    }
    panic!("{why}");
}

/// Panics unless each deviation names a case and a reason.
pub fn check_deviations<R: Runtime>(deviations: &[Deviation<R>]) {
    let cases = cases::<R>();
    for Deviation { case, reason, .. } in deviations {
        assert!(cases.iter().any(|known| known.name == *case), "there is no case {case}");
        assert!(!reason.is_empty(), "the deviation of {case} has no reason");
    }
}

/// All cases of the suite.
pub fn cases<R: Runtime>() -> Vec<Case<R>> {
    crate::__conformance_cases!(all __conformance_table { R })
}

/// Creates a `#[test]` for each case of the suite, for one runtime and one configuration.
///
/// The [module](mod@crate::conformance) documents the arguments.
#[macro_export]
macro_rules! conformance {
    (portable, $($rest:tt)*) => {
        $crate::__conformance_cases!(portable __conformance_tests { $($rest)* });
    };
    ($($rest:tt)*) => {
        $crate::__conformance_cases!(all __conformance_tests { $($rest)* });
    };
}

/// Passes the table of cases to the callback macro, after its context.
///
/// A `future` runs within `block_on`. A `function` calls `block_on` itself. A `process` does so in its own
/// process. A case with `(declared)` takes the [declaration](Declared) of the backend.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_cases {
    (portable $callback:ident $context:tt) => {
        $crate::__conformance_cases! { @ $callback $context [] }
    };
    (all $callback:ident $context:tt) => {
        $crate::__conformance_cases! { @ $callback $context [
            process os {
                ten_thousand_connections_are_open
                a_burst_of_two_thousand_connects_is_served
                accept_recovers_from_exhausted_descriptors
                accept_yields_while_descriptors_are_exhausted
                the_first_read_of_a_connection_is_tried_at_once
                a_connection_without_unread_bytes_drops_cleanly
                idle_connections_cost_no_cpu
                a_flood_does_not_delay_timers
                a_reset_is_an_error
                writes_raise_no_signal
                bind_refuses_a_shared_port_of_another_process
                bind_works_right_after_a_restart
                bind_explains_a_forbidden_port
                nodelay_is_set_at_both_ends
                keepalive_is_set_at_both_ends
                an_aborted_connection_leaves_nothing_behind
                connect_reports_exhaustion
                connect_and_listen_errors_name_the_address
                a_dropped_connect_closes_its_socket
                connections_leave_no_descriptor_behind
                block_on_leaves_no_descriptor_behind
                block_on_closes_the_connections_of_its_tasks
                block_on_runs_nothing_when_it_cannot_be_set_up(declared)
                block_on_explains_missing_io_uring(declared)
                block_on_explains_a_small_memlock_limit(declared)
                workers_explain_missing_io_uring(declared)
                a_stuck_worker_is_abandoned
            }
        ] }
    };
    (@ $callback:ident $context:tt [$($more:tt)*]) => {
        $crate::$callback! {
            $context
            future io {
                read_sets_the_exact_length
                read_leaves_no_stale_bytes
                read_appends_through_spare
                read_returns_the_same_buffer
                read_error_leaves_the_length
                read_without_capacity_returns_at_once
                read_takes_a_buffer_of_more_than_four_gibibytes
                end_of_stream_is_zero_and_repeats
                half_close_leaves_the_other_direction_open
                write_returns_the_buffer_unchanged
                write_takes_at_least_one_byte
                write_takes_a_buffer_of_more_than_four_gibibytes
                write_of_nothing_returns_at_once
                write_takes_buffers_of_every_kind
                try_write_counts_what_it_has_taken
                try_write_ends_when_the_peer_does_not_read
                write_after_shutdown_is_a_broken_pipe
                write_to_a_closed_peer_fails
                try_write_to_a_closed_peer_fails
                shutdown_may_be_repeated
                shutdown_reports_a_closed_connection
                read_exact_reads_exactly
                read_exact_reports_an_early_end
                read_exact_needs_the_capacity
                reads_that_never_wait_let_others_run
                writes_that_never_wait_let_others_run
                one_operation_transfers_a_bounded_number_of_bytes
                copy_moves_everything_and_counts
                copy_writes_before_the_next_read
                copy_loses_only_what_it_could_not_write
                halves_read_and_write_at_once
                a_gibibyte_arrives_whole
            }
            future vectored {
                write_keeps_the_order_and_advances
                write_of_nothing_returns_at_once
                write_takes_more_than_iov_max_pieces
                write_continues_after_a_short_write
                write_takes_pieces_of_more_than_four_gibibytes
            }
            future pooled {
                read_returns_available_bytes
                read_is_empty_at_the_end
                read_reports_a_reset
                pending_reads_hold_few_buffers
                read_loses_nothing_when_the_pool_is_exhausted
                read_waits_while_the_pool_is_exhausted
                reads_that_never_wait_let_others_run
            }
            future net {
                bind_reports_the_real_port
                bind_refuses_an_address_in_use
                bind_holds_the_address_until_dropped
                bound_but_not_listening_refuses
                listeners_share_an_address
                a_dropped_listener_refuses
                accept_reports_the_peer
                dropped_accept_loses_no_client
                accept_lets_others_run
                accept_yields_after_an_error
                accept_is_fair_while_connections_are_busy
                connect_refused_names_the_address
                connect_times_out
                connect_may_be_dropped
                connect_timeout_may_be_endless
                connect_uses_the_requested_local_address
                peer_addr_reports_a_closed_connection
                a_dropped_stream_closes
                dropping_both_halves_closes
                a_peer_that_drops_unread_bytes_resets
                a_drop_is_clean_if_it_is_said_to_be
            }
            future cancel {
                shutdown_handle_ends_a_pending_read
                shutdown_handle_ends_later_reads_too
                shutdown_handle_for_reads_leaves_a_pending_write
                shutdown_handle_ends_a_pending_pooled_read
                shutdown_handle_ends_a_pending_write
                write_all_vectored_reports_progress
                shutdown_handle_ends_the_write_side
                shutdown_handle_does_not_keep_the_stream_open
                abort_resets_and_ends_a_pending_write
                abort_ends_a_pending_read
                shutdown_after_is_not_a_clean_end
                shutdown_after_ends_a_write
                shutdown_after_keeps_success
                select_resumes_the_read
                select_returns_both
                dropped_read_does_what_is_declared(declared)
                dropped_shutdown_leaves_the_stream_usable
                dropped_read_and_stream_close
                forgotten_read_and_stream_close
                dropped_write_and_stream_close
                dropped_read_frees_its_buffer_with_the_stream
                dropped_pooled_read_returns_its_buffer
            }
            future coop {
                reads_yield_once_the_budget_is_used_up
                pooled_reads_yield_once_the_budget_is_used_up
                writes_yield_once_the_budget_is_used_up
                vectored_writes_yield_once_the_budget_is_used_up
                reads_after_a_full_one_return_at_once
                tried_writes_count_as_work
                writes_in_shutdown_after_yield_too
                accepts_yield_once_the_budget_is_used_up
                reads_let_io_run_once_the_budget_is_used_up
                channels_let_io_run_once_the_budget_is_used_up
                each_poll_begins_with_a_full_budget
                eager_polls_have_a_bound
                yield_if_exhausted_lets_io_run
                yield_if_exhausted_is_ready_while_there_is_budget
            }
            future task {
                a_task_returns_its_output
                spawn_returns_before_the_task_runs
                spawn_eager_polls_the_task_at_once
                an_eager_task_is_woken_by_what_it_waited_for_at_first
                a_panic_of_an_eager_poll_stays_in_its_task
                a_task_goes_on_when_its_handle_is_dropped
                a_panic_stays_in_its_task
                a_panic_closes_what_the_task_held
                wakes_come_from_other_threads
                blocking_closures_let_others_run
                blocking_closures_start_at_once
                blocking_closures_may_panic
                started_blocking_closures_run_to_their_end
                an_always_ready_task_lets_others_run
            }
            function runtime {
                block_on_returns_the_output
                block_on_may_be_repeated
                block_on_propagates_a_panic
                nested_block_on_panics
                block_on_ends_the_tasks_that_still_run
                block_on_ends_its_own_tasks_only
                block_on_ends_its_tasks_within_the_runtime
                block_on_returns_while_a_task_is_always_ready
                handles_report_the_end_of_block_on
            }
            future time {
                sleep_is_never_early
                sleep_is_rounded_up_by_at_most_two_milliseconds
                sleeps_end_in_order_of_time
                sleep_of_zero_lets_others_run
                sleep_may_be_dropped
                sleep_may_be_endless
                deadlines_pass_within_a_tick
                a_deadline_that_moves_or_is_dropped_wakes_nobody
                sleep_ends_while_connections_are_busy
                clocks_go_forward
                random_bytes_differ
            }
            function worker {
                each_worker_runs_once
                each_worker_has_a_thread_of_its_own
                workers_share_an_address
                workers_see_the_stop_signal
                workers_see_a_stop_signal_from_another_thread
                workers_that_do_not_drain_are_cut_off
                a_failing_worker_stops_the_others
                the_first_worker_that_failed_is_named
                a_panicking_worker_stops_the_others
                a_service_that_panics_at_once_stops_the_others
                workers_pass_values_through_a_channel
            }
            $($more)*
        }
    };
}

/// Expands to the table of [`cases`].
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_table {
    ({ $runtime:ident } $($kind:ident $module:ident { $($case:ident $(($given:ident))?)* })*) => {
        vec![$($(Case {
            name: concat!(stringify!($module), "::", stringify!($case)),
            isolated: $crate::__conformance_table!(@ isolated $kind),
            prove: $crate::__conformance_table!(@ $kind $module::$case::<$runtime> $(, $given)?),
        }),*),*]
    };
    (@ isolated process) => { true };
    (@ isolated $kind:ident) => { false };
    (@ future $case:expr) => { |config, _| support::run::<R, _>(config, $case()) };
    (@ future $case:expr, declared) => {
        |config, declared| support::run::<R, _>(config, $case(declared))
    };
    (@ $kind:ident $case:expr) => { |config, _| $case(config) };
    (@ $kind:ident $case:expr, declared) => { $case };
}

/// Expands to the tests of [`conformance!`].
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    (@ is_intermittent) => { false };
    (@ is_intermittent sometimes) => { true };
    (
        {
            runtime: $runtime:ty,
            config: $config:expr
            $(, io_uring: $io_uring:expr)?
            $(, dropped_read: $dropped_read:ident)?
            $(, deviations: {
                $($case:literal => $($often:ident)? ($reason:expr, $instead:expr $(,)?)),* $(,)?
            })?
            $(,)?
        }
        $($kind:ident $module:ident { $($test:ident $(($given:ident))?)* })*
    ) => {
        fn __declared() -> $crate::conformance::Declared {
            #[allow(unused_mut, reason = "mutated only if something is declared")]
            let mut declared = $crate::conformance::Declared::default();
            $(declared.io_uring = $io_uring;)?
            $(declared.dropped_read = $crate::conformance::DroppedRead::$dropped_read;)?
            declared
        }

        fn __deviations() -> ::std::vec::Vec<$crate::conformance::Deviation<$runtime>> {
            ::std::vec![$($($crate::conformance::Deviation {
                case: $case,
                reason: $reason,
                instead: $instead,
                is_intermittent: $crate::__conformance_tests!(@ is_intermittent $($often)?),
            }),*)?]
        }

        fn __check(case: &str, module: &str) {
            let (declared, deviations) = (__declared(), __deviations());
            $crate::conformance::check::<$runtime>(case, &$config, declared, &deviations, module);
        }

        #[test]
        fn deviations_name_a_case_and_a_reason() {
            $crate::conformance::check_deviations(&__deviations());
        }

        $(mod $module {
            $(#[test]
            fn $test() {
                let case = ::std::concat!(::std::stringify!($module), "::", ::std::stringify!($test));
                super::__check(case, ::std::module_path!());
            })*
        })*
    };
}
