//! [`DataFolder`]: where a server keeps its data.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder for one server, which is removed with all that is in it when this is dropped. The server creates it.
pub(crate) struct DataFolder {
    path: PathBuf,
}

impl DataFolder {
    /// In `folder`, under a name that no other server of this process has. What a run that was killed left under that name
    /// is removed.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(crate) fn within(folder: &Path) -> io::Result<Self> {
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("data-{number}"));
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(Self { path }),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for DataFolder {
    fn drop(&mut self) {
        // It may not have been created.
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_removed_with_what_is_in_it() {
        let within = std::env::temp_dir().join(format!("data-folder-{}", std::process::id()));
        fs::create_dir(&within).unwrap();
        let [first, second] = [0, 1].map(|_| DataFolder::within(&within).unwrap());
        assert_ne!(first.path(), second.path());
        fs::create_dir(first.path()).unwrap();
        fs::write(first.path().join("log"), "data").unwrap();
        drop((first, second));
        assert_eq!(fs::read_dir(&within).unwrap().count(), 0);
        fs::remove_dir(within).unwrap();
    }
}
