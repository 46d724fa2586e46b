//! From addresses to functions and lines, with `addr2line`.
//!
//! The files are read into memory, within a bound. They are not mapped: whoever may write to a file can truncate it,
//! and then a read of the mapping would end the program with SIGBUS.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use addr2line::Context;
use gimli::{Dwarf, EndianRcSlice, RunTimeEndian, SectionId};
use object::read::{CompressedData, CompressedFileRange, CompressionFormat};
use object::{Object, ObjectSection, ReadCache};

use super::Frame;
use super::unwind::{Module, open_module};

/// How many addresses keep their names, of some 200 bytes each. Stacks repeat.
const NAMED_MAX: usize = 4_096;
/// How long the names of one stack may take, without reading the files. The rest has addresses alone.
const NAMING_MAX: Duration = Duration::from_secs(1);
/// Files that were not used for so long are dropped.
const KEPT: Duration = Duration::from_secs(60);

type Bytes = EndianRcSlice<RunTimeEndian>;
type ElfFile<'a> = object::File<'a, &'a ReadCache<&'a File>>;

/// The symbols of each module, read when an address of it is first named, and kept for a while.
pub(super) struct Symbols {
    bytes_max: usize,
    bytes: usize,
    files: Vec<(PathBuf, Option<SymbolFile>)>,
    named: HashMap<u64, Vec<Frame>>,
    used: Instant,
    /// What was not read, and why.
    pub(super) unseen: Vec<String>,
}

impl Symbols {
    /// `bytes_max`: how much of the files may be in memory at once.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            bytes: 0,
            files: Vec::new(),
            named: HashMap::new(),
            used: Instant::now(),
            unseen: Vec::new(),
        }
    }

    pub(super) fn name(&mut self, modules: &[Module], addresses: &[u64]) -> Vec<Frame> {
        let mut frames = Vec::with_capacity(addresses.len());
        let mut spent = Duration::ZERO;
        for &address in addresses {
            if let Some(known) = self.named.get(&address) {
                frames.extend_from_slice(known);
                continue;
            }
            let Some(module) = modules.iter().find(|module| module.range.contains(&address)) else {
                frames.push(Frame { address, ..Frame::default() });
                continue;
            };
            let mut found = Vec::new();
            let offset = module.bias.map(|bias| address.wrapping_sub(bias));
            if spent < NAMING_MAX
                && let Some(offset) = offset
                && let Some(file) = self.file(&module.path)
            {
                let began = Instant::now();
                file.add_frames(&mut found, address, offset);
                spent += began.elapsed();
            }
            if found.is_empty() {
                found.push(Frame { address, ..Frame::default() });
            }
            let name = module.path.file_name().map(|name| name.to_string_lossy().into_owned());
            for frame in &mut found {
                frame.module.clone_from(&name);
                frame.offset = offset;
            }
            frames.extend_from_slice(&found);
            if spent < NAMING_MAX {
                if self.named.len() == NAMED_MAX {
                    self.named.clear();
                }
                self.named.insert(address, found);
            }
        }
        frames
    }

    /// Drops the files if they were not used for a while.
    pub(super) fn drop_unused(&mut self) {
        if !self.files.is_empty() && self.used.elapsed() >= KEPT {
            self.files.clear();
            self.bytes = 0;
        }
    }

    fn file(&mut self, path: &Path) -> Option<&SymbolFile> {
        self.used = Instant::now();
        let known = self.files.iter().position(|(known, _)| known == path);
        let at = known.unwrap_or_else(|| {
            let file = self.read(path);
            self.files.push((path.to_owned(), file));
            self.files.len() - 1
        });
        self.files[at].1.as_ref()
    }

    /// Reads the names of functions, and then the debug information, if there is room for it.
    fn read(&mut self, path: &Path) -> Option<SymbolFile> {
        let file = open_module(path)?;
        // A failed allocation would end the program, which may be short of memory. This may fail instead.
        let file_bytes = usize::try_from(file.metadata().ok()?.len()).ok()?;
        let probe = file_bytes.min(self.bytes_max).saturating_mul(2);
        Vec::<u8>::new().try_reserve_exact(probe).ok()?;
        let cache = ReadCache::new(&file);
        let object = object::File::parse(&cache).ok()?;
        let room = self.bytes_max - self.bytes;
        let functions = Functions::read(&file, &object, room);
        if let Some(bytes) = functions.left_out_bytes {
            self.note_left_out("names of functions", path, bytes, room as u64);
        }
        self.bytes += functions.bytes();
        let room = self.bytes_max - self.bytes;
        let bytes = debug_bytes(&object);
        let debug = (bytes <= room).then(|| read_debug(&file, &object)).flatten();
        if debug.is_some() {
            self.bytes += bytes;
        } else if bytes > room {
            self.note_left_out("lines and inlined functions", path, bytes as u64, room as u64);
        }
        Some(SymbolFile { debug, functions })
    }

    fn note_left_out(&mut self, what: &str, path: &Path, bytes: u64, room: u64) {
        let subject = format!("{what} of {}: ", path.display());
        let unseen = format!(
            "{subject}they take {bytes} bytes, and there is room for {room} (Config::symbol_bytes_max)"
        );
        self.unseen.retain(|known| !known.starts_with(&subject));
        self.unseen.push(unseen);
    }
}

/// What was read of a file.
struct SymbolFile {
    debug: Option<Context<Bytes>>,
    functions: Functions,
}

impl SymbolFile {
    /// Adds the function at `probe`, an address of the file, and what is inlined into it.
    fn add_frames(&self, frames: &mut Vec<Frame>, address: u64, probe: u64) {
        let symbol =
            || Some(addr2line::demangle_auto(self.functions.name(probe)?, None).into_owned());
        let found = self.debug.as_ref().map(|debug| debug.find_frames(probe).skip_all_loads());
        let mut is_outermost_named = false;
        if let Some(Ok(mut inlined)) = found {
            while let Ok(Some(frame)) = inlined.next() {
                let name = frame.function.as_ref().and_then(|name| name.demangle().ok());
                let location = frame.location.as_ref().and_then(|location| {
                    Some(format!("{}:{}", location.file?, location.line.unwrap_or(0)))
                });
                is_outermost_named = name.is_some();
                if let Some(name) = name {
                    let function = Some(name.into_owned());
                    frames.push(Frame { address, function, location, ..Frame::default() });
                }
            }
        }
        match frames.last_mut() {
            // In an optimized program the debug information may have the last part of the name alone. Only the function
            // that the others are inlined into has a symbol.
            Some(outermost) if is_outermost_named && is_last_part(outermost) => {
                outermost.function = symbol().or_else(|| outermost.function.take());
            }
            Some(_) => {}
            None => {
                let function = symbol();
                frames.extend(function.is_some().then(|| Frame {
                    address,
                    function,
                    ..Frame::default()
                }));
            }
        }
    }
}

/// Whether the name of a function has no path, as `read` and `read<shop::Order>`, but not `<shop::Order as
/// Read>::read`. Functions with the same code may share an address, so a symbol replaces no name that has a path.
fn is_last_part(frame: &Frame) -> bool {
    let name = frame.function.as_deref().unwrap_or_default().trim_start_matches(['<', '&']);
    let end = name.find(['<', ' ', '>']).unwrap_or(name.len());
    !name[..end].contains("::")
}

/// The functions of the symbol tables, in the order of their addresses.
#[derive(Default)]
struct Functions {
    functions: Vec<Function>,
    /// The tables of strings.
    names: Vec<u8>,
    /// What a table has that did not fit.
    left_out_bytes: Option<u64>,
}

struct Function {
    address: u64,
    bytes: u64,
    /// Where its name begins in `names`. It ends with a 0.
    name_at: usize,
}

/// An `Elf64_Sym`: the name (4 bytes), the type, and from byte 8 on address and size. `object` would read each name
/// from the file by itself.
const SYMBOL_BYTES: usize = 24;
const STT_FUNC: u8 = 2;

impl Functions {
    /// A table that takes more than `room` bytes is left out.
    fn read(file: &File, object: &ElfFile<'_>, room: usize) -> Self {
        let mut table = Self::default();
        for (symbols, names) in [(".symtab", ".strtab"), (".dynsym", ".dynstr")] {
            let range = |name| object.section_by_name(name)?.compressed_file_range().ok();
            let (Some(symbols), Some(names)) = (range(symbols), range(names)) else { continue };
            let bytes = symbols.uncompressed_size.saturating_add(names.uncompressed_size);
            if !object.is_64() {
                continue;
            }
            if bytes > room.saturating_sub(table.bytes()) as u64 {
                table.left_out_bytes = Some(bytes);
                continue;
            }
            let (Some(symbols), Some(names)) =
                (read_section(file, symbols), read_section(file, names))
            else {
                continue;
            };
            let names_at = table.names.len();
            match table.names.is_empty() {
                true => table.names = names, // some MB, that need no copy
                false => {
                    table.names.reserve_exact(names.len());
                    table.names.extend_from_slice(&names);
                }
            }
            table.functions.extend(
                symbols.as_chunks().0.iter().filter_map(|symbol| Function::parse(symbol, names_at)),
            );
        }
        table.functions.sort_by_key(|function| function.address);
        table.functions.shrink_to_fit();
        table
    }

    fn bytes(&self) -> usize {
        self.names.len() + self.functions.len() * size_of::<Function>()
    }

    fn name(&self, probe: u64) -> Option<Cow<'_, str>> {
        let end = self.functions.partition_point(|function| function.address <= probe);
        let function = self.functions[..end].last()?;
        let is_within = probe - function.address < function.bytes.max(1);
        let name = self.names.get(function.name_at..)?.split(|byte| *byte == 0).next()?;
        (is_within && !name.is_empty()).then(|| String::from_utf8_lossy(name))
    }
}

impl Function {
    /// None if it is something else, or in another file.
    fn parse(symbol: &[u8; SYMBOL_BYTES], names_at: usize) -> Option<Self> {
        let (name, rest) = symbol.split_at(4);
        let (kind, rest) = rest.split_at(4);
        let (address, bytes) = rest.split_at(8);
        let name_at = names_at + u32::from_ne_bytes(name.try_into().ok()?) as usize;
        let address = u64::from_ne_bytes(address.try_into().ok()?);
        let bytes = u64::from_ne_bytes(bytes.try_into().ok()?);
        let is_function = kind[0] & 0xF == STT_FUNC && address != 0;
        is_function.then_some(Self { address, bytes, name_at })
    }
}

/// The sections that names and lines need.
const SECTIONS: [SectionId; 10] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
];

/// How many bytes of debug information would be in memory.
fn debug_bytes(object: &ElfFile<'_>) -> usize {
    let bytes = |id: &SectionId| {
        let section = object.section_by_name(id.name())?;
        usize::try_from(section.compressed_file_range().ok()?.uncompressed_size).ok()
    };
    SECTIONS.iter().filter_map(bytes).fold(0, usize::saturating_add)
}

/// None if there is none, or it cannot be read.
fn read_debug(file: &File, object: &ElfFile<'_>) -> Option<Context<Bytes>> {
    object.section_by_name(SectionId::DebugInfo.name())?;
    let endian = match object.is_little_endian() {
        true => RunTimeEndian::Little,
        false => RunTimeEndian::Big,
    };
    let load = |id: SectionId| {
        let section = object.section_by_name(id.name()).filter(|_| SECTIONS.contains(&id));
        let range = section.map(|section| section.compressed_file_range());
        let bytes = match range {
            Some(range) => read_section(file, range.map_err(drop)?).ok_or(())?.into(),
            None => Rc::default(),
        };
        Ok::<_, ()>(Bytes::new(bytes, endian))
    };
    Context::from_dwarf(Dwarf::load(load).ok()?).ok()
}

fn read_section(file: &File, range: CompressedFileRange) -> Option<Vec<u8>> {
    if range.compressed_size > file.metadata().ok()?.len() {
        return None; // it may have been truncated
    }
    let mut data = vec![0; usize::try_from(range.compressed_size).ok()?];
    file.read_exact_at(&mut data, range.offset).ok()?;
    let CompressedFileRange { format, uncompressed_size, .. } = range;
    if format == CompressionFormat::None {
        return Some(data);
    }
    let data = CompressedData { format, data: &data, uncompressed_size };
    Some(data.decompress().ok()?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::super::unwind::Unwind;
    use super::*;

    /// This function, as a module of a copy of this program.
    fn copy_of_this_program(name: &str) -> (PathBuf, Vec<Module>, u64) {
        let path = std::env::temp_dir().join(format!("stalls-{}-{name}", std::process::id()));
        std::fs::copy("/proc/self/exe", &path).unwrap();
        let address = copy_of_this_program as *const () as u64 + 1;
        let mut unwind = Unwind::new();
        unwind.load_modules();
        let mut modules = unwind.modules;
        modules.retain(|module| module.range.contains(&address));
        modules[0].path.clone_from(&path);
        (path, modules, address)
    }

    fn is_named(frames: &[Frame]) -> bool {
        let function = frames[0].function.as_deref();
        function.is_some_and(|name| name.contains("copy_of_this_program"))
    }

    #[test]
    fn a_symbol_replaces_no_name_with_a_path() {
        let is_last_part = |name: &str| {
            is_last_part(&Frame { function: Some(name.to_owned()), ..Frame::default() })
        };
        for name in ["read", "read<shop::Order>", "{closure#0}", "<T as shop::Read>::read"] {
            assert!(is_last_part(name), "{name}");
        }
        for name in ["shop::read", "<shop::Order>::read", "<&shop::Order as std::io::Read>::read"] {
            assert!(!is_last_part(name), "{name}");
        }
    }

    /// Nothing is mapped, so truncating a file harms nobody, before it is read or after.
    #[test]
    fn a_file_that_is_truncated() {
        let (path, modules, address) = copy_of_this_program("truncated");
        let mut symbols = Symbols::new(1 << 30);
        assert!(is_named(&symbols.name(&modules, &[address])));
        File::options().write(true).open(&path).unwrap().set_len(5_000).unwrap();
        let frames = symbols.name(&modules, &[address, address + 1]);
        assert!(is_named(&frames) && is_named(&frames[1..]), "{frames:?}");
        for bytes in [5_000, 100, 0] {
            File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();
            let frames = Symbols::new(1 << 30).name(&modules, &[address]);
            assert_eq!(frames[0].function, None, "{bytes}");
        }
        std::fs::remove_file(path).unwrap();
    }

    /// Debug information that does not fit is left out, and the names of functions stay; then they go, too.
    #[test]
    fn no_more_is_read_than_there_is_room_for() {
        let (path, modules, address) = copy_of_this_program("bound");
        let mut symbols = Symbols::new(1 << 30);
        let frames = symbols.name(&modules, &[address]);
        assert!(frames[0].location.as_ref().is_some_and(|at| at.contains("symbols.rs")));
        assert!(symbols.unseen.is_empty());
        let functions = symbols.files[0].1.as_ref().unwrap().functions.bytes();

        let mut symbols = Symbols::new(2 * functions);
        let frames = symbols.name(&modules, &[address]);
        assert!(is_named(&frames) && frames[0].location.is_none(), "{frames:?}");
        assert!(symbols.unseen[0].contains("symbol_bytes_max"), "{:?}", symbols.unseen);
        assert!(symbols.bytes <= symbols.bytes_max);

        let mut symbols = Symbols::new(functions / 4);
        assert_eq!(symbols.name(&modules, &[address])[0].function, None);
        assert!(symbols.bytes <= symbols.bytes_max);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn files_that_are_not_used_are_dropped() {
        let (path, modules, address) = copy_of_this_program("dropped");
        let mut symbols = Symbols::new(1 << 30);
        symbols.name(&modules, &[address]);
        symbols.drop_unused();
        assert!(symbols.bytes > 0);
        symbols.used = Instant::now().checked_sub(KEPT).unwrap();
        symbols.drop_unused();
        assert_eq!((symbols.bytes, symbols.files.len()), (0, 0));
        assert!(is_named(&symbols.name(&modules, &[address, address + 1])[1..]));
        std::fs::remove_file(path).unwrap();
    }
}
