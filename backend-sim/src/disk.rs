//! [`Disk`]: the file system of a host, with a page cache that a crash loses.
//!
//! A file has its contents as processes see them, and as they are on the disk. A write changes the former, in sectors
//! that are dirty until they are written back: by a sync, or at any time. A crash keeps any of the dirty sectors. So
//! what was not synced can be lost, torn, or there while something older is not.
//!
//! The names in a directory are handled alike. A crash keeps a prefix of the changes of each directory since its last
//! sync.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use owned_io::{DirEntry, OpenMode};

use crate::core::Time;
use crate::errno::{
    EAGAIN, EBADF, EEXIST, EINVAL, EIO, EISDIR, ENOENT, ENOSPC, ENOTDIR, ENOTEMPTY, error,
};
use crate::rng::Rng;

/// What a disk writes at once, in bytes: a crash tears a write at these bounds.
const SECTOR_BYTES: usize = 512;

/// The disk of a host.
pub(crate) struct Disk {
    inodes: BTreeMap<u64, Inode>,
    /// The names as processes see them. The root is not among them, and always exists.
    names: BTreeMap<PathBuf, Node>,
    /// The names that a crash keeps.
    durable_names: BTreeMap<PathBuf, Node>,
    /// The changes of each directory since its last sync, in order.
    changes: BTreeMap<PathBuf, Vec<Change>>,
    opened: BTreeMap<u64, Opened>,
    last_id: u64,
    /// How many crashes there were. What was opened before a crash is closed.
    pub(crate) boots: u32,
    /// The most bytes that all files have together.
    pub(crate) bytes_max: u64,
    pub(crate) full_until: Time,
    pub(crate) read_errors_until: Time,
    pub(crate) sync_errors_until: Time,
    pub(crate) slow_until: Time,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Node {
    Dir,
    File(u64),
}

/// A change of the names in a directory: some are removed, and some refer to a node from then on. It is one step.
struct Change {
    removed: Option<PathBuf>,
    set: Option<(PathBuf, Node)>,
}

#[derive(Default)]
struct Inode {
    /// The contents as processes see them.
    cached: Vec<u8>,
    /// The contents on the disk.
    durable: Vec<u8>,
    /// The sectors that are to be written back. After a failed sync, a sector may be clean although its contents
    /// differ: nothing writes it back then.
    dirty: BTreeSet<usize>,
    /// Reserved space, in bytes.
    allocated: u64,
    /// The open file that has the lock.
    locked_by: Option<u64>,
}

/// An open file.
struct Opened {
    inode: u64,
    is_writable: bool,
    /// Operations that have not ended.
    operations: u32,
    /// Whether the file was dropped. It stays open until its operations have ended.
    is_dropped: bool,
}

/// What a sync makes durable: what was dirty when it began.
pub(crate) struct Syncing {
    sectors: BTreeSet<usize>,
    len: usize,
}

impl Disk {
    pub(crate) const fn new() -> Self {
        Self {
            inodes: BTreeMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            changes: BTreeMap::new(),
            opened: BTreeMap::new(),
            last_id: 0,
            boots: 0,
            bytes_max: u64::MAX,
            full_until: 0,
            read_errors_until: 0,
            sync_errors_until: 0,
            slow_until: 0,
        }
    }

    /// Opens a file and returns its number.
    pub(crate) fn open(&mut self, path: &Path, mode: OpenMode) -> io::Result<u64> {
        let path = normal(path)?;
        let inode = match self.node(&path) {
            Some(Node::Dir) if mode == OpenMode::Read => return Err(error(EINVAL)), // nothing reads directories so
            Some(Node::Dir) => return Err(error(EISDIR)),
            Some(Node::File(_)) if mode == OpenMode::CreateNew => return Err(error(EEXIST)),
            Some(Node::File(inode)) => inode,
            None if matches!(mode, OpenMode::Create | OpenMode::CreateNew) => {
                self.check_parent(&path)?;
                let inode = self.next_id();
                self.inodes.insert(inode, Inode::default());
                self.change(None, Some((path, Node::File(inode))));
                inode
            }
            None => return Err(error(ENOENT)),
        };
        let id = self.next_id();
        let is_writable = mode != OpenMode::Read;
        self.opened.insert(id, Opened { inode, is_writable, operations: 0, is_dropped: false });
        Ok(id)
    }

    /// The file was dropped.
    pub(crate) fn close(&mut self, id: u64) {
        if let Some(opened) = self.opened.get_mut(&id) {
            opened.is_dropped = true;
            self.release(id);
        }
    }

    /// An operation on the file begins.
    pub(crate) fn begin(&mut self, id: u64) {
        if let Some(opened) = self.opened.get_mut(&id) {
            opened.operations += 1;
        }
    }

    /// An operation on the file has ended.
    pub(crate) fn end(&mut self, id: u64) {
        if let Some(opened) = self.opened.get_mut(&id) {
            opened.operations -= 1;
            self.release(id);
        }
    }

    pub(crate) fn read(&self, now: Time, id: u64, offset: u64, len: usize) -> io::Result<&[u8]> {
        if self.read_errors_until > now {
            return Err(error(EIO));
        }
        let contents = &self.inode(id)?.cached;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(contents.len());
        let end = start.saturating_add(len).min(contents.len());
        Ok(&contents[start..end])
    }

    /// Checks that a write of `len` bytes may begin. Returns how many of them fit.
    pub(crate) fn check_write(
        &self,
        now: Time,
        id: u64,
        offset: u64,
        len: usize,
    ) -> io::Result<usize> {
        if !self.opened.get(&id).ok_or_else(|| error(EIO))?.is_writable {
            return Err(error(EBADF));
        }
        let inode = self.inode(id)?;
        let size = inode.size();
        let bytes_max = if self.full_until > now { 0 } else { self.bytes_max };
        let free = match bytes_max {
            u64::MAX => u64::MAX,
            limited => limited.saturating_sub(self.bytes()),
        };
        let fits = size.saturating_add(free).saturating_sub(offset).min(len as u64) as usize;
        if fits == 0 { Err(error(ENOSPC)) } else { Ok(fits) }
    }

    pub(crate) fn write(&mut self, id: u64, offset: u64, bytes: &[u8], rng: &mut Rng) {
        let Ok(inode) = self.inode_mut(id) else { return };
        let start = offset as usize;
        let end = start + bytes.len();
        if inode.cached.len() < end {
            inode.resize(end);
        }
        inode.cached[start..end].copy_from_slice(bytes);
        inode.soil(start, end);
        // The kernel writes back when it likes.
        if rng.one_in(8) {
            let some: Vec<_> = inode.dirty.iter().copied().filter(|_| rng.one_in(2)).collect();
            inode.write_back(some);
        }
    }

    pub(crate) fn set_len(&mut self, now: Time, id: u64, len: u64) -> io::Result<()> {
        let old = self.inode(id)?.cached.len() as u64;
        if !self.opened.get(&id).is_some_and(|opened| opened.is_writable) {
            return Err(error(EINVAL));
        }
        if len > old {
            self.check_write(now, id, len - 1, 1)?;
        }
        self.inode_mut(id)?.resize(len as usize);
        Ok(())
    }

    pub(crate) fn allocate(&mut self, now: Time, id: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        self.check_write(now, id, len - 1, 1)?;
        let inode = self.inode_mut(id)?;
        inode.allocated = inode.allocated.max(len);
        Ok(())
    }

    pub(crate) fn size(&self, id: u64) -> io::Result<u64> {
        Ok(self.inode(id)?.cached.len() as u64)
    }

    pub(crate) fn try_lock(&mut self, id: u64) -> io::Result<()> {
        let inode = self.inode_mut(id)?;
        match inode.locked_by {
            Some(other) if other != id => Err(error(EAGAIN)),
            _ => {
                inode.locked_by = Some(id);
                Ok(())
            }
        }
    }

    pub(crate) fn begin_sync(&self, id: u64) -> io::Result<Syncing> {
        let inode = self.inode(id)?;
        Ok(Syncing { sectors: inode.dirty.clone(), len: inode.cached.len() })
    }

    pub(crate) fn end_sync(
        &mut self,
        now: Time,
        id: u64,
        syncing: Syncing,
        rng: &mut Rng,
    ) -> io::Result<()> {
        let fails = self.sync_errors_until > now;
        let inode = self.inode_mut(id)?;
        if !fails {
            inode.write_back(syncing.sectors);
            // Cut meanwhile, the file is shorter; extended meanwhile, the rest may be on the disk or not.
            let len = syncing.len.min(inode.cached.len());
            let durable_len = inode.durable.len().clamp(len, inode.cached.len());
            let durable_len = if inode.cached.len() == len { len } else { durable_len };
            inode.durable.resize(durable_len, 0);
            return Ok(());
        }
        // As Linux does: what could not be written is clean from then on, and only the cache has it.
        let (written, lost): (Vec<_>, Vec<_>) =
            syncing.sectors.into_iter().partition(|_| rng.one_in(2));
        inode.write_back(written);
        lost.iter().for_each(|sector| _ = inode.dirty.remove(sector));
        Err(error(EIO))
    }

    pub(crate) fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let path = normal(path)?;
        self.check_dir(&path)?;
        let entry = |(child, node): (&PathBuf, &Node)| {
            let name: OsString = child.file_name()?.to_owned();
            Some(DirEntry::new(name, *node == Node::Dir))
        };
        let children = self.names.iter().filter(|(child, _)| child.parent() == Some(&path));
        Ok(children.filter_map(entry).collect())
    }

    pub(crate) fn create_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let path = normal(path)?;
        let above: Vec<_> = path.ancestors().map(Path::to_owned).collect();
        for dir in above.into_iter().rev() {
            match self.node(&dir) {
                Some(Node::Dir) => {}
                Some(Node::File(_)) if dir == path => return Err(error(EEXIST)),
                Some(Node::File(_)) => return Err(error(ENOTDIR)),
                None => self.change(None, Some((dir, Node::Dir))),
            }
        }
        Ok(())
    }

    pub(crate) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (normal(from)?, normal(to)?);
        let Some(node) = self.node(&from) else { return Err(error(ENOENT)) };
        if node == Node::Dir {
            return Err(error(EINVAL)); // the simulator renames files only
        }
        if self.node(&to) == Some(Node::Dir) {
            return Err(error(EISDIR));
        }
        self.check_parent(&to)?;
        if from != to {
            self.change(Some(from), Some((to, node)));
        }
        Ok(())
    }

    pub(crate) fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        let path = normal(path)?;
        match self.node(&path) {
            None => Err(error(ENOENT)),
            Some(Node::Dir) => Err(error(EISDIR)),
            Some(Node::File(_)) => {
                self.change(Some(path), None);
                Ok(())
            }
        }
    }

    pub(crate) fn remove_dir(&mut self, path: &Path) -> io::Result<()> {
        let path = normal(path)?;
        self.check_dir(&path)?;
        if !self.list(&path)?.is_empty() {
            return Err(error(ENOTEMPTY));
        }
        self.change(Some(path), None);
        Ok(())
    }

    pub(crate) fn sync_dir(&mut self, now: Time, path: &Path) -> io::Result<()> {
        let path = normal(path)?;
        self.check_dir(&path)?;
        if self.sync_errors_until > now {
            return Err(error(EIO));
        }
        let changes = self.changes.remove(&path).unwrap_or_default();
        changes.iter().for_each(|change| change.apply(&mut self.durable_names));
        // What was in a removed directory goes with it.
        for gone in changes.iter().filter_map(|change| change.removed.as_ref()) {
            if !self.durable_names.contains_key(gone) {
                self.durable_names.retain(|name, _| !name.starts_with(gone));
                self.changes.remove(gone);
            }
        }
        self.free_inodes();
        Ok(())
    }

    /// The host loses its power: the cache is gone.
    pub(crate) fn crash(&mut self, rng: &mut Rng) {
        self.boots += 1;
        self.opened.clear();
        for (_, changes) in std::mem::take(&mut self.changes) {
            let kept = match rng.below(3) {
                0 => 0,
                1 => changes.len(),
                _ => rng.index(changes.len() + 1),
            };
            changes.into_iter().take(kept).for_each(|change| change.apply(&mut self.durable_names));
        }
        // A name is lost with the directory that it is in.
        let found: BTreeSet<_> = self.durable_names.keys().cloned().collect();
        let is_reachable = |path: &PathBuf| {
            let mut above = path.ancestors().skip(1);
            above.all(|dir| dir == Path::new("/") || found.contains(dir))
        };
        self.durable_names.retain(|path, _| is_reachable(path));
        self.names = self.durable_names.clone();
        self.inodes.values_mut().for_each(|inode| inode.crash(rng));
        self.free_inodes();
    }

    /// The bytes of all files that have a name or are open. The name of a file may be gone before that is on the disk: then
    /// a crash may bring the file back, and its space is free already.
    fn bytes(&self) -> u64 {
        let named = self.names.values().filter_map(|node| match node {
            Node::File(inode) => Some(*inode),
            Node::Dir => None,
        });
        let inodes: BTreeSet<_> =
            named.chain(self.opened.values().map(|opened| opened.inode)).collect();
        inodes.iter().filter_map(|inode| self.inodes.get(inode)).map(Inode::size).sum()
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn node(&self, path: &Path) -> Option<Node> {
        if path == Path::new("/") { Some(Node::Dir) } else { self.names.get(path).copied() }
    }

    fn check_dir(&self, path: &Path) -> io::Result<()> {
        match self.node(path) {
            Some(Node::Dir) => Ok(()),
            Some(Node::File(_)) => Err(error(ENOTDIR)),
            None => Err(error(ENOENT)),
        }
    }

    fn check_parent(&self, path: &Path) -> io::Result<()> {
        self.check_dir(path.parent().ok_or_else(|| error(EISDIR))?)
    }

    /// Changes names, of which a crash may know nothing until their directory is synced.
    fn change(&mut self, removed: Option<PathBuf>, set: Option<(PathBuf, Node)>) {
        let changed = set.as_ref().map(|(path, _)| path).or(removed.as_ref());
        let dir =
            changed.and_then(|path| path.parent()).expect("the root never changes").to_owned();
        let change = Change { removed, set };
        change.apply(&mut self.names);
        self.changes.entry(dir).or_default().push(change);
        self.free_inodes();
    }

    fn inode(&self, id: u64) -> io::Result<&Inode> {
        let opened = self.opened.get(&id).ok_or_else(|| error(EIO))?;
        Ok(&self.inodes[&opened.inode])
    }

    fn inode_mut(&mut self, id: u64) -> io::Result<&mut Inode> {
        let opened = self.opened.get(&id).ok_or_else(|| error(EIO))?;
        Ok(self.inodes.get_mut(&opened.inode).expect("an open file has its inode"))
    }

    /// Closes the file if it was dropped and its operations have ended.
    fn release(&mut self, id: u64) {
        let is_over = |opened: &Opened| opened.is_dropped && opened.operations == 0;
        if !self.opened.get(&id).is_some_and(is_over) {
            return;
        }
        if let Ok(inode) = self.inode_mut(id)
            && inode.locked_by == Some(id)
        {
            inode.locked_by = None;
        }
        self.opened.remove(&id);
        self.free_inodes();
    }

    /// Forgets the files that have no name and are not open. A crash may still bring a name back.
    fn free_inodes(&mut self) {
        let named = self.names.values().chain(self.durable_names.values());
        let pending = self.changes.values().flatten().filter_map(|change| change.set.as_ref());
        let named = named.chain(pending.map(|(_, node)| node));
        let named = named.filter_map(|node| match node {
            Node::File(inode) => Some(*inode),
            Node::Dir => None,
        });
        let used: BTreeSet<_> =
            named.chain(self.opened.values().map(|opened| opened.inode)).collect();
        self.inodes.retain(|inode, _| used.contains(inode));
    }
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<PathBuf, Node>) {
        if let Some(removed) = &self.removed {
            names.remove(removed);
        }
        if let Some((path, node)) = &self.set {
            names.insert(path.clone(), *node);
        }
    }
}

impl Inode {
    /// The space that it takes, in bytes.
    fn size(&self) -> u64 {
        self.allocated.max(self.cached.len() as u64)
    }

    fn resize(&mut self, len: usize) {
        let (shorter, longer) = (self.cached.len().min(len), self.cached.len().max(len));
        self.cached.resize(len, 0);
        self.soil(shorter, longer);
    }

    /// Marks the sectors of these bytes as dirty.
    fn soil(&mut self, start: usize, end: usize) {
        self.dirty.extend(start / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES));
    }

    /// Writes sectors to the disk.
    fn write_back(&mut self, sectors: impl IntoIterator<Item = usize>) {
        for sector in sectors {
            self.dirty.remove(&sector);
            let start = sector * SECTOR_BYTES;
            let end = (start + SECTOR_BYTES).min(self.cached.len());
            if start < end {
                if self.durable.len() < end {
                    self.durable.resize(end, 0);
                }
                self.durable[start..end].copy_from_slice(&self.cached[start..end]);
            }
            // Bytes after the end are zeros, should the file be longer again.
            let cleared = end.max(start)..(start + SECTOR_BYTES).min(self.durable.len());
            if !cleared.is_empty() {
                self.durable[cleared].fill(0);
            }
        }
    }

    fn crash(&mut self, rng: &mut Rng) {
        self.locked_by = None;
        let (short, long) = {
            let lens = [self.durable.len(), self.cached.len()];
            (lens[0].min(lens[1]), lens[0].max(lens[1]))
        };
        let dirty = std::mem::take(&mut self.dirty);
        let is_clean = dirty.is_empty();
        let kept: Vec<_> = match rng.below(4) {
            0 => Vec::new(),
            1 => dirty.into_iter().collect(),
            _ => dirty.into_iter().filter(|_| rng.one_in(2)).collect(),
        };
        let len = match rng.below(3) {
            0 => self.durable.len(),
            1 => self.cached.len(),
            _ => short + rng.index(long - short + 1),
        };
        self.write_back(kept);
        // Without dirty sectors, the length is as it was synced, or its sync has failed.
        if !is_clean {
            self.durable.resize(len, 0);
        }
        self.cached.clone_from(&self.durable);
    }
}

/// The path from the root, without `.`.
fn normal(path: &Path) -> io::Result<PathBuf> {
    use std::path::Component;
    let mut normal = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) if name.as_encoded_bytes().contains(&0) => {
                return Err(error(EINVAL));
            }
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => _ = normal.pop(),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Ok(normal)
}
