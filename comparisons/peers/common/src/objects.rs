//! Objects, which servers have in memory: `GET /object/NAME`.

use std::io::{self, ErrorKind};
use std::num::NonZero;
use std::path::Path;
use std::{fmt, fs};

/// The beginning of the paths of objects.
pub const PATH: &str = "/object/";

/// The beginning of every request that is answered.
const REQUEST: &[u8] = b"GET /object/";

/// Reads the objects of a folder, each with its name.
///
/// # Errors
/// Those of reading the folder and its files, naming the folder.
pub fn read(folder: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let read = || {
        let mut objects = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            objects.push((name, fs::read(entry.path())?));
        }
        Ok(objects)
    };
    let what = format!("read the objects in {}", folder.display());
    read().map_err(|error| crate::cannot(&what, error))
}

/// The answers of a server that only serves objects: head and body, as they are sent. They stay in memory until the
/// process ends, so that a kernel may read them at any time.
pub struct Answers {
    by_name: Vec<(String, &'static [u8])>,
}

impl Answers {
    /// Prepares them, with bodies in chunks of so many bytes if that is given.
    ///
    /// # Errors
    /// Those of [`read`].
    pub fn prepare(folder: &Path, chunk_bytes: Option<NonZero<usize>>) -> io::Result<Self> {
        let answers = read(folder)?.into_iter().map(|(name, object)| {
            let answer: &'static [u8] = answer(&object, chunk_bytes).leak();
            (name, answer)
        });
        Ok(Self { by_name: answers.collect() })
    }

    /// The first request in `bytes`: its length and its answer. None: it is not complete. Its headers are not read.
    ///
    /// # Errors
    /// When it does not ask for an object that is there.
    pub fn first(&self, bytes: &[u8]) -> io::Result<Option<(usize, &'static [u8])>> {
        let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") else {
            return Ok(None);
        };
        let rest = bytes.strip_prefix(REQUEST).unwrap_or_default();
        let name = rest.split(|byte| *byte == b' ').next().unwrap_or_default();
        let found = self.by_name.iter().find(|it| it.0.as_bytes() == name);
        let (_, answer) = found.ok_or(ErrorKind::InvalidData)?;
        Ok(Some((end + 4, *answer)))
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.by_name.iter().map(|(name, _)| name)).finish()
    }
}

fn answer(object: &[u8], chunk_bytes: Option<NonZero<usize>>) -> Vec<u8> {
    let mut answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n".to_vec();
    let Some(chunk_bytes) = chunk_bytes else {
        answer.extend(format!("Content-Length: {}\r\n\r\n", object.len()).into_bytes());
        answer.extend_from_slice(object);
        return answer;
    };
    answer.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
    for chunk in object.chunks(chunk_bytes.get()) {
        answer.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
        answer.extend_from_slice(chunk);
        answer.extend_from_slice(b"\r\n");
    }
    answer.extend_from_slice(b"0\r\n\r\n");
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_length_or_is_chunked() {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n";
        let whole = format!("{head}Content-Length: 5\r\n\r\n12345");
        assert_eq!(answer(b"12345", None), whole.as_bytes());
        let chunked = "Transfer-Encoding: chunked\r\n\r\n3\r\n123\r\n2\r\n45\r\n0\r\n\r\n";
        assert_eq!(answer(b"12345", NonZero::new(3)), format!("{head}{chunked}").as_bytes());
    }

    fn named(name: &str, answer: &'static [u8]) -> (String, &'static [u8]) {
        (name.to_owned(), answer)
    }

    #[test]
    fn requests_are_answered_one_after_the_other() {
        let answers = Answers { by_name: vec![named("1", b"one"), named("22", b"two")] };
        let requests =
            b"GET /object/22 HTTP/1.1\r\nHost: a\r\n\r\nGET /object/1 HTTP/1.1\r\n\r\nGET";
        let (len, answer) = answers.first(requests).unwrap().unwrap();
        assert_eq!(answer, b"two");
        let rest = &requests[len..];
        let (len, answer) = answers.first(rest).unwrap().unwrap();
        assert_eq!((answer, &rest[len..]), (&b"one"[..], &b"GET"[..]));
        assert!(answers.first(&rest[len..]).unwrap().is_none());
        for wrong in ["GET /object/2 HTTP/1.1\r\n\r\n", "POST /object/1 HTTP/1.1\r\n\r\n"] {
            assert!(answers.first(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
