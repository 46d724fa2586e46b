//! [`ObjectsFolder`]: the objects that servers serve.

use std::fs;
use std::path::{Path, PathBuf};

use super::Failure;
use crate::load::object;

/// A file for each object that a run asks for, in a folder that is removed when this is dropped.
pub(crate) struct ObjectsFolder {
    path: PathBuf,
}

impl ObjectsFolder {
    /// Writes objects of these lengths into the folder of a run.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(crate) fn create(run: &Path, lengths: impl Iterator<Item = u64>) -> Result<Self, Failure> {
        let folder = Self { path: Self::path(run) };
        for bytes in lengths {
            let file = folder.path.join(object::name(bytes));
            fs::create_dir_all(&folder.path)
                .and_then(|()| fs::write(file, object::content(bytes)))
                .map_err(|error| Failure::new(format!("cannot make an object: {error}")))?;
        }
        Ok(folder)
    }

    /// Where it is in the folder of a run.
    pub(crate) fn path(run: &Path) -> PathBuf {
        run.join("objects")
    }
}

impl Drop for ObjectsFolder {
    fn drop(&mut self) {
        // Most runs have no objects.
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_of_a_run_are_files_as_long_as_they_are_to_be() {
        let run = std::env::temp_dir().join(format!("objects-folder-{}", std::process::id()));
        fs::create_dir(&run).unwrap();
        let folder = ObjectsFolder::create(&run, [5, 100_000].into_iter()).unwrap();
        for bytes in [5, 100_000] {
            let content = fs::read(ObjectsFolder::path(&run).join(object::name(bytes))).unwrap();
            assert_eq!(content.len() as u64, bytes);
            assert_eq!(content, object::content(bytes));
        }
        drop(folder);
        assert_eq!(fs::read_dir(&run).unwrap().count(), 0);
        fs::remove_dir(run).unwrap();
    }
}
