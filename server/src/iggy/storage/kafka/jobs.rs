//! [`Jobs`]: what blocks, on a thread of its own, for the tasks of a worker.

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use std::{io, thread};

use owned_io::{Clock, channel};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use tracing::{error, warn};

use crate::iggy::Status;
use crate::log_limit::LogLimit;

/// The most jobs that wait: about one for each client that polls. Further ones are refused.
const JOBS_MAX: usize = 1_024;

/// Runs jobs on its thread, one after the other, each with the same clients. The thread ends when it is dropped.
pub(super) struct Jobs<C> {
    jobs: SyncSender<Job<C>>,
    /// Each poll may fail.
    failure_log: RefCell<LogLimit>,
}

type Job<C> = Box<dyn FnOnce(&C) + Send>;

impl<C: Send + 'static> Jobs<C> {
    pub(super) fn start(name: &str, clients: C) -> io::Result<Self> {
        let (jobs, receiver) = sync_channel(JOBS_MAX);
        let run = move || run_jobs(&receiver, &clients);
        thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { jobs, failure_log: RefCell::default() })
    }

    /// Runs a job within `time_max`. It is left out if its time is over before its turn comes, or nobody waits for it.
    ///
    /// # Errors
    /// [`TaskTimeout`](Status::TaskTimeout): too many jobs, or the time is over.
    pub(super) async fn ask<K: Clock, T: Send + 'static>(
        &self,
        time_max: Duration,
        job: impl FnOnce(&C, Duration) -> KafkaResult<T> + Send + 'static,
    ) -> Result<T, Status> {
        let deadline = Instant::now() + time_max;
        let (answer, mut answered) = channel(NonZeroUsize::MIN);
        let waiter = Arc::new(());
        let is_wanted: Weak<()> = Arc::downgrade(&waiter);
        let job = move |clients: &C| {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || is_wanted.strong_count() == 0 {
                return;
            }
            let _ = answer.try_send(job(clients, left)); // nobody may wait any more
        };
        self.jobs.try_send(Box::new(job)).map_err(|_| Status::TaskTimeout)?;
        let answer = answered.receive::<K>().await.ok_or(Status::TaskTimeout)?;
        answer.map_err(|error| {
            let status = status_of(&error);
            if status == Status::TaskTimeout
                && let Some(suppressed) = self.failure_log.borrow_mut().admit(Instant::now())
            {
                warn!(suppressed, "Kafka: {error}");
            }
            status
        })
    }
}

fn run_jobs<C>(jobs: &Receiver<Job<C>>, clients: &C) {
    while let Ok(job) = jobs.recv() {
        // The bindings panic at what they do not expect. Whoever asked gets no answer then, and the next job runs: without
        // this thread the store would be of no use, and nobody would notice.
        let ran = catch_unwind(AssertUnwindSafe(|| job(clients)));
        if ran.is_err() {
            error!("Kafka: a call of librdkafka has panicked");
        }
    }
}

/// Whether a topic or a partition is not there, as far as a client knows.
pub(super) fn is_missing(error: &KafkaError) -> bool {
    [Status::TopicIdNotFound, Status::PartitionNotFound].contains(&status_of(error))
}

fn status_of(error: &KafkaError) -> Status {
    use RDKafkaErrorCode as Code;
    match error.rdkafka_error_code() {
        Some(Code::TopicAlreadyExists) => Status::TopicNameAlreadyExists,
        Some(Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownTopicId) => {
            Status::TopicIdNotFound
        }
        Some(Code::UnknownPartition) => Status::PartitionNotFound,
        Some(Code::InvalidPartitions) => Status::InvalidPartitionsCount,
        Some(Code::InvalidTopic) => Status::InvalidTopicName,
        Some(Code::InvalidReplicationFactor) => Status::InvalidReplicationFactor,
        _ => Status::TaskTimeout,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_panics_does_not_end_the_thread() {
        let jobs = Jobs::start("test", ()).unwrap();
        jobs.jobs.send(Box::new(|()| panic!("as the bindings may"))).unwrap();
        let (done, is_done) = sync_channel(1);
        jobs.jobs.send(Box::new(move |()| done.send(()).unwrap())).unwrap();
        is_done.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}
