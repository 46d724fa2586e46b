//! Changes of files, as bytes say.

use std::path::{Path, PathBuf};

use owned_io::{File, Files, OpenMode, OwnedReadAtExt, OwnedWriteAtExt};
use owned_io_sim::Sim;

/// The bytes of a segment header and of a batch header.
const SEGMENT_HEADER: usize = 40;
const BATCH_HEADER: usize = 48;

/// A snapshot and the mark of the clean end have their CRC before these bytes, which it is of.
const CHECKED_START: usize = 16;

/// Changes a file. The bytes are: which file; what to do (the two high bits) and the high bits of a position; the low
/// bits of the position; a value. Returns whether something was forged that is trusted, because its CRC is right.
pub(crate) async fn change(paths: &[PathBuf], [which, what, position, value]: [u8; 4]) -> bool {
    let path = &paths[which as usize % paths.len()];
    let Ok(mut bytes) = read(path).await else { return false };
    let position = usize::from(what & 0x3f) << 8 | usize::from(position);
    let mut is_forged = false;
    match what >> 6 {
        0 => {
            if let Some(byte) = bytes.get_mut(position) {
                *byte ^= value | 1;
            }
        }
        1 => bytes.truncate(position),
        2 => bytes.extend(std::iter::repeat_n(position as u8, value.into())),
        _ if path.ends_with("snapshot") => is_forged = forge_file(&mut bytes, position, value),
        // The mark is not trusted: it hides no batch.
        _ if path.ends_with("clean") => _ = forge_file(&mut bytes, position, value),
        _ => is_forged = forge_batch(&mut bytes, position, value),
    }
    write(path, bytes).await;
    is_forged
}

/// The files of a partition or a journal, with the mark of the clean end, and without the lock.
pub(crate) async fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = Sim::list_dir(dir).await.expect("the directory is listed");
    let paths = entries.into_iter().map(|entry| dir.join(entry.name));
    paths.filter(|path| !path.ends_with("lock")).collect()
}

pub(crate) async fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = Sim::open(path, OpenMode::Read).await?;
    let len = file.size().await.expect("the length") as usize;
    let read = file.read_exact_at(Vec::with_capacity(len), len, 0).await;
    Ok(read.into_result().expect("it is read").1)
}

pub(crate) async fn write(path: &Path, bytes: Vec<u8>) {
    let file = Sim::open(path, OpenMode::Create).await.expect("it is opened");
    file.set_len(bytes.len() as u64).await.expect("it is cut");
    file.write_all_at(bytes, 0).await.into_result().expect("it is written");
}

/// Changes a field of one of the first batches, and makes the CRC right.
fn forge_batch(bytes: &mut [u8], position: usize, value: u8) -> bool {
    let mut at = SEGMENT_HEADER;
    for _ in 0..position >> 8 {
        let Some(len) = bytes.get(at + 12..at + 16) else { return false };
        let len = u32::from_le_bytes(len.try_into().expect("four bytes"));
        at = at.saturating_add(BATCH_HEADER + len as usize);
    }
    let Some(header) = bytes.get_mut(at..at.saturating_add(BATCH_HEADER)) else { return false };
    header[8 + (position & 0xff) % 40] = value;
    let crc = crc32c::crc32c(&header[8..]);
    header[4..8].copy_from_slice(&crc.to_le_bytes());
    true
}

/// Changes a byte of a snapshot or of a mark, and makes the CRC right.
fn forge_file(bytes: &mut [u8], position: usize, value: u8) -> bool {
    let Some(byte) = bytes.get_mut(CHECKED_START + position) else { return false };
    *byte = value;
    let crc = crc32c::crc32c(&bytes[CHECKED_START..]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    true
}
