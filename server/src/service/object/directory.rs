//! Reads an origin that is a directory.

use std::io;
use std::rc::Rc;

use async_lock::SemaphoreGuardArc;
use owned_io::{BufResult, File, Files, OpenMode, OwnedReadAt, Runtime, coop, is_exhaustion};

use super::fetch::{FETCH_TIME_MAX, HEAD_TIME_MAX, Outcome, PIECE_TIME_MAX, wake};
use super::within;
use crate::object::{BLOCK_BYTES, CacheControl, Directory, Failure, Fetch, Head};

/// Reads an object from a file. It has the length that the file has when it is opened.
///
/// On a disk that hangs, what has begun cannot be ended, and may hold a thread of the process. Each operation is a task
/// that keeps `permit` until it has ended, so such a disk never holds more threads and files than there are permits.
pub(super) async fn fetch<R: Runtime + Files>(
    directory: &Directory,
    fetch: &mut Fetch,
    permit: &Rc<SemaphoreGuardArc>,
) -> Result<Outcome, Failure> {
    let finder = directory.finder(fetch.name());
    let held = Rc::clone(permit);
    let opening = R::spawn(async move {
        let _held = held;
        let path = R::spawn_blocking(finder).await.map_err(|_| io::ErrorKind::Other)??;
        let file = R::open(&path, OpenMode::Read).await?;
        let length = file.size().await?;
        io::Result::Ok((Rc::new(file), length))
    });
    let opened = within::<R, _>(HEAD_TIME_MAX, opening).await?;
    let (file, length) = match opened.map_err(|_| Failure::Unreadable)? {
        Ok(opened) => opened,
        Err(error) if is_exhaustion(&error) => return Err(Failure::Busy),
        Err(error) if is_missing(&error) => {
            fetch.missing(404, &CacheControl::default(), R::now());
            return Ok(Outcome::Missing);
        }
        Err(_) => return Err(Failure::Unreadable),
    };
    let headers = vec![("Content-Type", content_type(fetch.name()).into())];
    let head = Head { length: Some(length), headers, ..Head::default() };
    fetch.begin(head, &CacheControl::default())?;
    let deadline = R::now() + FETCH_TIME_MAX;
    let (mut at, mut buf) = (0, Vec::<u8>::new());
    // Each round reads bytes of the file, or ends.
    while at < length {
        wake::<R>(fetch.transfer()).await;
        coop::yield_if_exhausted::<R>().await;
        let wanted = usize::try_from(length - at).map_or(BLOCK_BYTES, |it| it.min(BLOCK_BYTES));
        if buf.capacity() == 0 {
            buf = Vec::with_capacity(wanted);
        }
        let time = PIECE_TIME_MAX.min(deadline.saturating_duration_since(R::now()));
        let (held, of) = (Rc::clone(permit), Rc::clone(&file));
        let reading = R::spawn(async move {
            let _held = held;
            of.read_at(buf, at).await
        });
        let read = within::<R, _>(time, reading).await?;
        let BufResult(read, back) = read.map_err(|_| Failure::Unreadable)?;
        buf = back;
        match read {
            Ok(0) => return Err(Failure::Truncated),
            Ok(_) => {}
            Err(_) => return Err(Failure::Unreadable),
        }
        let content = &buf[..buf.len().min(wanted)]; // the file may have grown
        coop::consume(coop::cost::body_piece(2 * content.len())); // it is copied and hashed
        fetch.append(content)?;
        at += content.len() as u64;
    }
    fetch.complete(R::now())?;
    Ok(Outcome::Complete)
}

fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename
    )
}

/// The type that the extension of a name stands for. A browser that knows none would guess.
fn content_type(name: &str) -> &'static str {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    match &*extension.to_ascii_lowercase() {
        "css" => "text/css",
        "gif" => "image/gif",
        "html" | "htm" => "text/html",
        "jpeg" | "jpg" => "image/jpeg",
        "js" | "mjs" => "text/javascript",
        "json" => "application/json",
        "mp4" => "video/mp4",
        "pdf" => "application/pdf",
        "png" => "image/png",
        "svg" => "image/svg+xml",
        "txt" => "text/plain",
        "wasm" => "application/wasm",
        "webp" => "image/webp",
        "xml" => "application/xml",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extension_stands_for_a_type() {
        for (name, expected) in [
            ("a.HTML", "text/html"),
            ("a.tar.json", "application/json"),
            ("a", "application/octet-stream"),
            ("json", "application/octet-stream"),
            ("a.", "application/octet-stream"),
        ] {
            assert_eq!(content_type(name), expected, "{name}");
        }
    }
}
