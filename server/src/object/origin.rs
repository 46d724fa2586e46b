//! [`Origin`]: where objects come from.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use super::name::append_encoded;

/// Where objects come from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A server.
    Http(HttpOrigin),
    /// Files.
    Directory(Directory),
}

/// An HTTP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpOrigin {
    /// Its addresses, which are tried in order.
    addrs: Arc<[SocketAddr]>,
    /// The value of `Host`.
    host: Arc<str>,
    /// The path before the slash and the name.
    prefix: Arc<str>,
}

/// A directory whose regular files are the objects.
#[derive(Clone, Debug)]
pub struct Directory {
    root: Arc<Path>,
    /// Finds the file of a name.
    find: fn(&Path, &str) -> io::Result<PathBuf>,
}

impl HttpOrigin {
    /// A server at the first of these addresses that answers. The path of an object is `prefix`, a slash and its name.
    pub fn new(addrs: &[SocketAddr], host: &str, prefix: &str) -> Self {
        Self { addrs: addrs.into(), host: host.into(), prefix: prefix.into() }
    }

    /// Its addresses.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// The value of `Host`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The path before the slash and the name.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The request for an object. Each has a connection of its own, so that no answer can be taken for another one.
    /// It says nothing about the client: an object is the same for everybody.
    pub(crate) fn request(&self, name: &str) -> String {
        let mut request = format!("GET {}/", self.prefix);
        append_encoded(name, &mut request);
        request.push_str(" HTTP/1.1\r\nHost: ");
        request.push_str(&self.host);
        request.push_str("\r\nAccept-Encoding: identity\r\nConnection: close\r\n\r\n");
        request
    }
}

impl Directory {
    /// An existing directory. It looks at the file system, and blocks meanwhile.
    ///
    /// # Errors
    /// It is not there, or no directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let root = fs::canonicalize(path)?;
        if !fs::metadata(&root)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Self { root: root.into(), find })
    }

    /// A directory of a runtime whose files are not the system's: the simulator's. It has regular files only, and no
    /// links.
    pub fn of_runtime(path: &Path) -> Self {
        Self { root: path.into(), find: |root, name| Ok(root.join(name)) }
    }

    /// Finds the file of an object, on a thread that may block.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound): there is no such file, it is not regular, or a link leads out of the
    /// directory. Other errors are the file system's.
    pub(crate) fn finder(
        &self,
        name: &str,
    ) -> impl FnOnce() -> io::Result<PathBuf> + Send + use<> + 'static {
        let (root, find, name) = (Arc::clone(&self.root), self.find, name.to_owned());
        move || find(&root, &name)
    }
}

/// A link may be replaced between this and the open. Only who may change the directory could do that.
fn find(root: &Path, name: &str) -> io::Result<PathBuf> {
    let path = fs::canonicalize(root.join(name))?;
    // A FIFO would block the thread that opens it.
    if path.starts_with(root) && fs::metadata(&path)?.is_file() {
        Ok(path)
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_request_names_the_object_and_nothing_else() {
        let origin = HttpOrigin::new(&[], "origin:81", "/p");
        let expected = "GET /p/a%20b HTTP/1.1\r\nHost: origin:81\r\nAccept-Encoding: identity\r\n\
            Connection: close\r\n\r\n";
        assert_eq!(origin.request("a b"), expected);
    }

    #[test]
    fn only_regular_files_within_the_directory_are_objects() {
        let dir = std::env::temp_dir().join(format!("owned-io-origin-{}", std::process::id()));
        let root = dir.join("root");
        fs::create_dir_all(root.join("subdirectory")).unwrap();
        fs::write(root.join("file"), "f").unwrap();
        fs::write(dir.join("outside"), "o").unwrap();
        symlink("file", root.join("inner-link")).unwrap();
        symlink(dir.join("outside"), root.join("outer-link")).unwrap();
        symlink("/dev/zero", root.join("device")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let directory = Directory::open(&root).unwrap();
        let found = |name: &str| directory.finder(name)().map_err(|error| error.kind());
        let file = fs::canonicalize(root.join("file")).unwrap();
        assert_eq!(found("file"), Ok(file.clone()));
        assert_eq!(found("inner-link"), Ok(file));
        for name in ["absent", "outer-link", "device", "subdirectory"] {
            assert_eq!(found(name), Err(io::ErrorKind::NotFound), "{name}");
        }
        assert!(found("loop").is_err());
        assert!(Directory::open(&root.join("absent")).is_err());
        assert!(Directory::open(&root.join("file")).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
