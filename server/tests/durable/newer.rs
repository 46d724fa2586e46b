//! Files of a newer version, and a catalogue that is damaged: a start is refused by a sentence that names the file.

use std::path::Path;

use owned_io_log::Journal;
use owned_io_server::iggy::catalogue::{Catalogue, Record};
use owned_io_sim::{Sim, block_on};

use super::client::Client;
use super::damage::{
    End, MESSAGES, UNREADABLE, base_offset, edit, expect_others_undisturbed, files, fill,
    poll_each, why_not,
};
use super::restart::start;

const CATALOGUE: &str = "/data/catalogue";

/// The journal of the catalogue, and what it has.
async fn open_catalogue() -> (Journal<Sim>, Catalogue) {
    let opened = Journal::<Sim>::open(CATALOGUE, Default::default()).await;
    let (journal, replay) = opened.expect("the server has ended");
    let snapshot = replay.snapshot.unwrap_or_default();
    let mut catalogue = Catalogue::from_bytes(&snapshot).unwrap();
    for record in &replay.records {
        catalogue.replay(&Record::decode(record).unwrap()).unwrap();
    }
    (journal, catalogue)
}

#[test]
fn a_last_file_of_a_newer_version_refuses_the_start() {
    for ending in [End::Clean, End::Killed] {
        block_on(async {
            fill(ending).await;
            let last = files().await.pop().unwrap();
            edit(&last, |bytes| bytes[8] = 2).await;
            let why = why_not().await;
            let culprit = format!("{} has format version 2, this program knows 1", last.display());
            assert!(why.contains(&culprit), "{ending:?}: {why}");
            edit(&last, |bytes| bytes[8] = 1).await;
            let mut client = Client::login(&start().await).await;
            assert_eq!(poll_each(&mut client).await, (vec![], MESSAGES));
        });
    }
}

/// A start reads no older files.
#[test]
fn an_older_file_of_a_newer_version_is_told_to_who_reads_there() {
    block_on(async {
        fill(End::Clean).await;
        let files = files().await;
        edit(&files[1], |bytes| bytes[8] = 2).await;
        let iggy = start().await;
        let (mut reader, mut other) = (Client::login(&iggy).await, Client::login(&iggy).await);
        let (unreadable, end) = poll_each(&mut reader).await;
        let (base, next) = (base_offset(&files[1]), base_offset(&files[2]));
        assert!(unreadable.into_iter().eq(base..next));
        assert_eq!(end, MESSAGES);
        let all = reader.poll_all("t", 0, 7).await;
        assert_eq!(all, Err(UNREADABLE.code().get()));
        expect_others_undisturbed(&mut other).await;
    });
}

#[test]
fn a_record_or_a_snapshot_of_a_newer_version_refuses_the_start() {
    block_on(async {
        fill(End::Clean).await;
        let (journal, catalogue) = open_catalogue().await;
        journal.snapshot(catalogue.to_bytes().into()).await.unwrap();
        journal.close().await.unwrap();
        let snapshot = Path::new(CATALOGUE).join("snapshot");
        edit(&snapshot, |bytes| bytes[8] = 2).await;
        let why = why_not().await;
        assert!(why.contains("/data/catalogue/snapshot has format version 2"), "{why}");
        edit(&snapshot, |bytes| bytes[8] = 1).await;
        let mut client = Client::login(&start().await).await;
        assert_eq!(poll_each(&mut client).await, (vec![], MESSAGES));
    });
    block_on(async {
        fill(End::Clean).await;
        let (journal, _) = open_catalogue().await;
        journal.append(vec![200, 1, 2].into()).await.unwrap();
        journal.close().await.unwrap();
        let why = why_not().await;
        let reason = "there is no record of kind 200: a newer server may have written it";
        assert_eq!(why, format!("{CATALOGUE}: {reason}"));
    });
}

/// Nothing is changed: once the bytes are right again, everything is there.
#[test]
fn a_damaged_catalogue_refuses_the_start() {
    for (has_snapshot, name, at) in [
        (false, "00000000000000000000.log", 45), // the header of the first record
        (false, "00000000000000000000.log", 90), // the first record
        (true, "snapshot", 10),
        (true, "snapshot", 17),
        (true, "snapshot", 30),
    ] {
        block_on(async {
            fill(End::Killed).await;
            if has_snapshot {
                let (journal, catalogue) = open_catalogue().await;
                journal.snapshot(catalogue.to_bytes().into()).await.unwrap();
                journal.close().await.unwrap();
            }
            let path = Path::new(CATALOGUE).join(name);
            edit(&path, |bytes| bytes[at] ^= 2).await;
            let why = why_not().await;
            assert!(why.contains(&path.display().to_string()), "{name}, byte {at}: {why}");
            edit(&path, |bytes| bytes[at] ^= 2).await;
            let mut client = Client::login(&start().await).await;
            assert_eq!(poll_each(&mut client).await, (vec![], MESSAGES));
        });
    }
}
