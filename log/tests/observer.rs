//! What an observer learns of: in the simulator.

mod common;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use common::{append, open, scratch, small};
use owned_io::Executor;
use owned_io_log::{Group, Journal, Observer, SyncPolicy};
use owned_io_sim::{Sim, run, seeds};

#[derive(Debug, Default)]
struct Seen {
    groups: RefCell<Vec<Group>>,
    syncs: RefCell<Vec<bool>>,
}

impl Observer for Seen {
    fn wrote(&self, group: Group) {
        self.groups.borrow_mut().push(group);
    }

    fn synced(&self, _time: Duration, is_ok: bool) {
        self.syncs.borrow_mut().push(is_ok);
    }
}

impl Seen {
    fn sum(&self, of: impl Fn(&Group) -> u64) -> u64 {
        self.groups.borrow().iter().map(of).sum()
    }
}

#[test]
fn each_batch_is_in_one_group_and_each_group_is_synced() {
    const BATCHES: u64 = 20;
    run(seeds(20), async |_| {
        let (log, _) = open::<Sim>(&scratch::<Sim>(), small()).await;
        let seen = Rc::new(Seen::default());
        log.observe(Rc::clone(&seen) as Rc<dyn Observer>);
        let appending: Vec<_> = (0..BATCHES)
            .map(|number| {
                let log = log.clone();
                Sim::spawn(async move { append(&log, number).await.unwrap() })
            })
            .collect();
        for appended in appending {
            appended.await.unwrap();
        }
        assert_eq!(seen.sum(|group| group.batches as u64), BATCHES);
        assert_eq!(seen.sum(|group| group.messages), log.offsets().next);
        assert!(seen.groups.borrow().iter().all(|group| group.batches > 0));
        // All bytes, but for the headers of segments.
        let headers = 40 * u64::from(log.size().segments);
        assert_eq!(seen.sum(|group| group.bytes) + headers, log.size().bytes);
        let syncs = seen.syncs.borrow();
        // Some batches waited together; a segment that is full is on the disk already.
        assert!(syncs.len() >= seen.groups.borrow().len() && syncs.iter().all(|is_ok| *is_ok));
        Ok(())
    });
}

#[test]
fn a_journal_that_is_not_synced_is_observed_too() {
    run(seeds(5), async |_| {
        let mut config = small();
        config.sync = SyncPolicy::Never;
        let (journal, _) = Journal::<Sim>::open(scratch::<Sim>(), config).await.unwrap();
        let seen = Rc::new(Seen::default());
        journal.observe(Rc::clone(&seen) as Rc<dyn Observer>);
        for record in 0..3_u8 {
            journal.append(Bytes::copy_from_slice(&[record; 100])).await.unwrap();
        }
        assert_eq!((seen.sum(|group| group.messages), seen.syncs.borrow().len()), (3, 0));
        journal.flush().await.unwrap();
        assert_eq!(*seen.syncs.borrow(), [true]);
        Ok(())
    });
}
