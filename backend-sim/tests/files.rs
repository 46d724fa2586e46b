//! The contract about files in the simulation, and what a loss of power keeps.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use owned_io::{Clock, File, Files, OpenMode, OwnedReadAtExt, OwnedWriteAtExt};
use owned_io_sim::{Config, Fault, Host, Sim, World};

mod contract {
    use super::*;

    owned_io::file_conformance! { runtime: Sim, config: Config::default() }
}

mod canaries {
    use super::*;

    owned_io::file_canaries! { runtime: Sim, config: Config::default() }
}

const DIR: &str = "/data";
const BLOCK: usize = 2000;

async fn contents(path: &Path) -> io::Result<Vec<u8>> {
    let file = Sim::open(path, OpenMode::Read).await?;
    let len = file.size().await? as usize;
    file.read_exact_at(Vec::with_capacity(len), len, 0).await.into_result().map(|(_, bytes)| bytes)
}

/// Crashes `host` while `before` runs on it, `after` it has run for a while. Returns what `then` returns, after the
/// host is up again.
async fn crash_during<T: 'static>(
    world: World,
    host: &Host,
    before: impl AsyncFn() -> io::Result<()> + 'static,
    then: impl AsyncFn() -> io::Result<T> + 'static,
) -> io::Result<T> {
    let running = host.spawn(async move { before().await });
    Sim::sleep(Duration::from_micros(world.random(20_000))).await;
    world.apply(Fault::Crash { host: host.clone(), down: Duration::from_secs(1) });
    drop(running);
    Sim::sleep(Duration::from_secs(2)).await;
    host.spawn(async move { then().await }).await.expect("no panic")
}

/// "They survive the loss of power when it returns": the bytes, the length, and the name after a sync of its directory.
#[test]
fn what_was_synced_survives_a_crash() {
    let torn = Rc::new(Cell::new(0));
    owned_io_sim::run(owned_io_sim::seeds(200), {
        let torn = Rc::clone(&torn);
        async move |world| {
            let host = world.host("disk");
            let synced = Rc::new(Cell::new(0));
            let writer = Rc::clone(&synced);
            let write = async move || {
                Sim::create_dir_all(Path::new(DIR)).await?;
                Sim::sync_dir(Path::new("/")).await?;
                let path = Path::new(DIR).join("file");
                let file = Sim::open(&path, OpenMode::CreateNew).await?;
                Sim::sync_dir(Path::new(DIR)).await?;
                for block in 0..100 {
                    let bytes = vec![block as u8 + 1; BLOCK];
                    file.write_all_at(bytes, (block * BLOCK) as u64).await.into_result()?;
                    if block % 3 == 2 {
                        file.sync_data().await?;
                        writer.set(block + 1);
                    }
                }
                Ok(())
            };
            let read = async || match contents(&Path::new(DIR).join("file")).await {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
                result => result,
            };
            let bytes = crash_during(world, &host, write, read).await?;
            let synced = synced.get();
            assert!(bytes.len() >= synced * BLOCK, "{} bytes after {synced} blocks", bytes.len());
            for (block, bytes) in bytes.chunks(BLOCK).enumerate() {
                let expected = block as u8 + 1;
                let is_whole = bytes.iter().all(|byte| *byte == expected);
                assert!(is_whole || block >= synced, "block {block} of {synced} that were synced");
                assert!(bytes.iter().all(|byte| [0, expected].contains(byte)), "bytes of nobody");
                if !is_whole && bytes.contains(&expected) {
                    torn.set(torn.get() + 1);
                }
            }
            Ok(())
        }
    });
    assert!(torn.get() > 0, "no seed has torn a write");
}

/// What was not synced is lost under some seed, and kept under another. The same for a name.
#[test]
fn what_was_not_synced_may_be_lost() {
    let outcomes = Rc::new(Cell::new([0; 3]));
    owned_io_sim::run(1..100, {
        let outcomes = Rc::clone(&outcomes);
        async move |world| {
            let host = world.host("disk");
            let write = async || {
                Sim::create_dir_all(Path::new(DIR)).await?;
                Sim::sync_dir(Path::new("/")).await?;
                let file = Sim::open(&Path::new(DIR).join("file"), OpenMode::CreateNew).await?;
                file.write_all_at("x", 0).await.into_result()?;
                Sim::sleep(Duration::from_secs(10)).await;
                Ok(())
            };
            let read = async || Ok(contents(&Path::new(DIR).join("file")).await);
            let mut seen = outcomes.get();
            match crash_during(world, &host, write, read).await? {
                Err(_) => seen[0] += 1,
                Ok(bytes) if bytes.is_empty() => seen[1] += 1,
                Ok(_) => seen[2] += 1,
            }
            outcomes.set(seen);
            Ok(())
        }
    });
    let seen = outcomes.get();
    assert!(seen.iter().all(|times| *times > 0), "no name, no bytes, all: {seen:?}");
}

/// "After a loss of power, the new name refers to one of the two files, whole."
#[test]
fn a_rename_is_one_step() {
    owned_io_sim::run(owned_io_sim::seeds(100), async |world| {
        let host = world.host("disk");
        let write = async || {
            let (dir, path) = (Path::new(DIR), Path::new(DIR).join("file"));
            Sim::create_dir_all(dir).await?;
            Sim::sync_dir(Path::new("/")).await?;
            for version in 0..20 {
                let new = dir.join("new");
                let file = Sim::open(&new, OpenMode::Create).await?;
                file.set_len(0).await?;
                file.write_all_at(vec![version; BLOCK], 0).await.into_result()?;
                file.sync_data().await?;
                Sim::rename(&new, &path).await?;
                Sim::sync_dir(dir).await?;
            }
            Ok(())
        };
        let read = async || match contents(&Path::new(DIR).join("file")).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(vec![0; BLOCK]),
            result => result,
        };
        let bytes = crash_during(world, &host, write, read).await?;
        assert_eq!(bytes.len(), BLOCK);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "two versions in one file");
        Ok(())
    });
}

/// "A second call may therefore succeed without them."
#[test]
fn a_failed_sync_may_lose_what_a_later_one_reports() {
    let lost = Rc::new(Cell::new(0));
    owned_io_sim::run(owned_io_sim::seeds(50), {
        let lost = Rc::clone(&lost);
        async move |world| {
            let host = world.host("disk");
            let (here, faulty) = (host.clone(), world);
            let write = async move || {
                Sim::create_dir_all(Path::new(DIR)).await?;
                Sim::sync_dir(Path::new("/")).await?;
                let file = Sim::open(&Path::new(DIR).join("file"), OpenMode::Create).await?;
                Sim::sync_dir(Path::new(DIR)).await?;
                file.write_all_at(vec![7; BLOCK], 0).await.into_result()?;
                let lasts = Duration::from_millis(10);
                faulty.apply(Fault::SyncErrors { host: here.clone(), lasts });
                let error = file.sync_data().await.expect_err("the fault is on");
                assert_eq!(error.raw_os_error(), Some(5));
                Sim::sleep(lasts).await;
                file.sync_data().await.expect("the second call succeeds");
                let bytes = contents(&Path::new(DIR).join("file")).await?;
                assert!(bytes.iter().all(|byte| *byte == 7), "reads still return them");
                io::Result::Ok(())
            };
            host.spawn(async move { write().await }).await.expect("no panic")?;
            world.apply(Fault::Crash { host: host.clone(), down: Duration::from_secs(1) });
            Sim::sleep(Duration::from_secs(2)).await;
            let read = async { contents(&Path::new(DIR).join("file")).await };
            let bytes = host.spawn(read).await.expect("no panic")?;
            if bytes.len() < BLOCK || bytes.contains(&0) {
                lost.set(lost.get() + 1);
            }
            Ok(())
        }
    });
    assert!(lost.get() > 0, "no seed has lost anything");
}

/// A full disk and errors of reads reach the caller with their codes, and end.
#[test]
fn a_full_disk_and_read_errors_reach_the_caller() {
    owned_io_sim::run(owned_io_sim::seeds(20), async |world| {
        let host = world.host("disk");
        let there = host.clone();
        let calls = host.spawn(async move {
            let host = there;
            let path = Path::new("/file");
            let file = Sim::open(path, OpenMode::Create).await?;
            let lasts = Duration::from_secs(1);
            world.apply(Fault::DiskFull { host: host.clone(), lasts });
            let error = file.write_all_at("x", 0).await.0.expect_err("the disk is full");
            assert_eq!(error.raw_os_error(), Some(28));
            Sim::sleep(lasts).await;
            host.limit_disk(1000);
            // The space of a removed directory is free once its removal is durable.
            Sim::create_dir_all(Path::new("/dir")).await?;
            let inner = Sim::open(Path::new("/dir/file"), OpenMode::Create).await?;
            inner.write_all_at(vec![3; 1000], 0).await.into_result()?;
            drop(inner);
            Sim::sync_dir(Path::new("/dir")).await?;
            Sim::sync_dir(Path::new("/")).await?;
            Sim::remove_file(Path::new("/dir/file")).await?;
            Sim::remove_dir(Path::new("/dir")).await?;
            Sim::sync_dir(Path::new("/")).await?;
            file.write_all_at(vec![1; 1000], 0).await.into_result()?;
            file.write_all_at(vec![2; 1000], 0).await.into_result()?;
            let error = file.write_all_at("x", 1000).await.0.expect_err("the disk is full");
            assert_eq!(error.raw_os_error(), Some(28));
            world.apply(Fault::ReadErrors { host, lasts });
            let error = contents(path).await.expect_err("reads fail");
            assert_eq!(error.raw_os_error(), Some(5));
            Sim::sleep(lasts).await;
            assert_eq!(contents(path).await?, [2; 1000]);
            Ok(())
        });
        calls.await.expect("no panic")
    });
}
