//! The contract about files, on monoio.

#![cfg(target_os = "linux")]

use std::future::{Future, poll_fn};
use std::path::Path;
use std::task::Poll;
use std::{env, fs, process};

use owned_io::{Executor, Files, OpenMode, OwnedWriteAt};
use owned_io_monoio::{Config, Monoio};

owned_io::file_conformance! { runtime: Monoio, config: Config::default() }

/// "Dropping it closes it." The ring cannot be relied on for that: a close that has to wait is not executed.
#[test]
fn a_dropped_file_has_no_descriptor() {
    let path = env::temp_dir().join(format!("owned-io-monoio-{}", process::id()));
    let opened = Monoio::block_on(Config::default(), async {
        for is_write_dropped in [false, true] {
            let file = Monoio::open(&path, OpenMode::Create).await?;
            assert_eq!(descriptors_of(&path), 2);
            if is_write_dropped {
                let mut write = Box::pin(file.write_at(vec![7; 1 << 20], 0));
                let _ = poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx))).await;
            }
            drop(file);
            assert_eq!(descriptors_of(&path), 0, "after a dropped write: {is_write_dropped}");
        }
        Monoio::remove_file(&path).await
    });
    opened.unwrap().unwrap();
}

/// The descriptors of this process that refer to the file.
fn descriptors_of(path: &Path) -> usize {
    let all = fs::read_dir("/proc/self/fd").unwrap();
    let is_it = |fd: &fs::DirEntry| fs::read_link(fd.path()).is_ok_and(|target| target == path);
    all.filter(|fd| fd.as_ref().is_ok_and(is_it)).count()
}
