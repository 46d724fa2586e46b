//! From registers and a copy of the stack to return addresses, with `framehop`.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use framehop::{ExplicitModuleSectionInfo, FrameAddress, Unwinder};
use gimli::{BaseAddresses, EhFrame, EhFrameHdr, NativeEndian, UnwindSection};
use object::{Object, ObjectSection, ObjectSegment, ReadCache, SegmentFlags};

use super::signal::Registers;
use crate::proc::maps;

#[cfg(target_arch = "aarch64")]
use framehop::aarch64::{CacheAarch64 as Cache, UnwindRegsAarch64, UnwinderAarch64 as Native};
#[cfg(not(target_arch = "aarch64"))]
use framehop::x86_64::{CacheX86_64 as Cache, UnwindRegsX86_64, UnwinderX86_64 as Native};

/// More frames are cut off: recursion would fill a report. The layers of a framework may be dozens of frames, and
/// without a frame of the runtime below them nothing tells the program from the runtime.
const FRAMES_MAX: usize = 128;
/// How many values of the frame pointer of each kind are tried.
const CANDIDATES_MAX: usize = 32;
/// How many bytes of unwind tables are read of all modules together. They stay in memory. Those of a server have some MB,
/// those of a browser some 20.
const TABLE_BYTES_MAX: u64 = 32 << 20;
/// A program with more libraries than this has stacks that end early.
const MODULES_MAX: usize = 256;

/// The executable or a library in memory.
pub(super) struct Module {
    pub(super) path: PathBuf,
    pub(super) range: Range<u64>,
    /// What is added to an address of the file. `None`: the file cannot be read, or is not what was mapped.
    pub(super) bias: Option<u64>,
    tables: Option<Tables>,
}

/// The unwind tables of a module.
struct Tables {
    eh_frame: Table,
    eh_frame_hdr: Table,
}

/// A section: its address in the file, and its bytes.
type Table = (u64, Arc<[u8]>);

impl Tables {
    /// Where the function begins that has code at an address of the file.
    fn function(&self, address: u64) -> Option<u64> {
        let (eh_frame, eh_frame_hdr) = (&self.eh_frame, &self.eh_frame_hdr);
        let bases =
            BaseAddresses::default().set_eh_frame(eh_frame.0).set_eh_frame_hdr(eh_frame_hdr.0);
        let header = EhFrameHdr::new(&eh_frame_hdr.1, NativeEndian).parse(&bases, 8).ok()?;
        let eh_frame = EhFrame::new(&eh_frame.1, NativeEndian);
        let table = header.table()?;
        let fde =
            table.fde_for_address(&eh_frame, &bases, address, EhFrame::cie_from_offset).ok()?;
        Some(fde.initial_address())
    }
}

impl Module {
    /// Where the function begins that has code at `address`.
    fn function(&self, address: u64) -> Option<u64> {
        let bias = self.bias?;
        Some(self.tables.as_ref()?.function(address.wrapping_sub(bias))?.wrapping_add(bias))
    }
}

pub(super) struct Unwound {
    pub(super) addresses: Vec<u64>,
    pub(super) is_complete: bool,
}

pub(super) struct Unwind {
    native: Native<Arc<[u8]>>,
    cache: Cache,
    /// How many bytes of [`TABLE_BYTES_MAX`] are left. A module whose tables do not fit has stacks that end early.
    table_bytes_left: u64,
    pub(super) modules: Vec<Module>,
}

impl Unwind {
    pub(super) fn new() -> Self {
        let (native, cache) = (Native::new(), Cache::new());
        Self { native, cache, table_bytes_left: TABLE_BYTES_MAX, modules: Vec::new() }
    }

    pub(super) fn unwind(&mut self, registers: &Registers) -> Unwound {
        let mut unwound = self.attempt(registers);
        if unwound.addresses.iter().any(|&address| !self.is_code(address)) && self.load_modules() {
            unwound = self.attempt(registers);
        }
        unwound
    }

    /// As [`unwind`](Self::unwind) if the frame pointer is unknown. `memory` is that of this process.
    ///
    /// A function that keeps a frame pointer has pushed that of its caller, next to the return address. First the pairs
    /// are tried whose return address is behind a call of the function that needs it, and then, the innermost first, those
    /// that may belong to its caller:
    ///
    /// - The return address is behind a call of a pointer, which may have been that function.
    /// - The first half is a frame pointer too. A caller that keeps none has anything there.
    ///
    /// The first pair that leads to the end is taken, or else the one that leads furthest. It may be a stale one. Then the
    /// innermost frames name functions that have returned, or some are missing.
    pub(super) fn unwind_without_frame_pointer(
        &mut self,
        registers: &Registers,
        memory: Option<&File>,
    ) -> Unwound {
        // The frame pointer is 0, which is the end: the last frame is the one that needs it, or the outermost.
        let mut best = self.unwind(registers);
        let Some(&last) = best.addresses.last() else { return best };
        for fp in self.frame_pointers(registers, memory, last) {
            let unwound = self.attempt(&Registers { fp, ..registers.clone() });
            if self.code_frames(&unwound) > self.code_frames(&best) {
                best = unwound;
                if best.is_complete && self.code_frames(&best) == best.addresses.len() {
                    break;
                }
            }
        }
        best
    }

    /// The values that the frame pointer may have, for the frame with code at `last`, which needs it.
    fn frame_pointers(&self, registers: &Registers, memory: Option<&File>, last: u64) -> Vec<u64> {
        let top = registers.sp + registers.words.len() as u64 * 8;
        let pairs = || {
            (registers.sp..)
                .step_by(8)
                .zip(registers.words.windows(2))
                .filter(|(_, pair)| self.is_code(pair[1]))
        };
        let function = self.module(last).and_then(|module| module.function(last));
        let calls_last = |pair: &[u64]| {
            function.is_some() && memory.and_then(|it| called_function(it, pair[1])) == function
        };
        let follows_call_of_pointer = |pair: &[u64]| {
            memory.and_then(|it| code_before(it, pair[1])).is_some_and(|code| calls_pointer(&code))
        };
        let may_be_caller = |at: u64, pair: &[u64]| {
            (at + 16..top).contains(&pair[0]) || follows_call_of_pointer(pair)
        };
        let callers = pairs().filter(|(_, pair)| calls_last(pair)).take(CANDIDATES_MAX);
        let others = pairs().filter(|(at, pair)| may_be_caller(*at, pair)).take(CANDIDATES_MAX);
        callers.chain(others).map(|(at, _)| at).collect()
    }

    fn module(&self, address: u64) -> Option<&Module> {
        self.modules.iter().find(|module| module.range.contains(&address))
    }

    fn is_code(&self, address: u64) -> bool {
        self.module(address).is_some()
    }

    /// How many frames come before the first whose address is no code.
    fn code_frames(&self, unwound: &Unwound) -> usize {
        unwound.addresses.iter().take_while(|&&address| self.is_code(address)).count()
    }

    fn attempt(&mut self, registers: &Registers) -> Unwound {
        #[cfg(not(target_arch = "aarch64"))]
        let native = UnwindRegsX86_64::new(registers.pc, registers.sp, registers.fp);
        #[cfg(target_arch = "aarch64")]
        let native = UnwindRegsAarch64::new(registers.lr, registers.sp, registers.fp);
        let mut addresses = Vec::new();
        let mut read = |address: u64| {
            let offset = address.checked_sub(registers.sp).ok_or(())?;
            registers.words.get(offset as usize / 8).copied().ok_or(())
        };
        if cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) {
            return Unwound { addresses: vec![registers.pc], is_complete: false };
        }
        let mut frames = self.native.iter_frames(registers.pc, native, &mut self.cache, &mut read);
        let is_complete = loop {
            match frames.next() {
                Ok(Some(frame)) if addresses.len() < FRAMES_MAX => addresses.push(match frame {
                    FrameAddress::InstructionPointer(pc) => pc,
                    // The call is before the address that it returns to.
                    FrameAddress::ReturnAddress(pc) => pc.get() - 1,
                }),
                Ok(Some(_)) | Err(_) => break false,
                Ok(None) => break true,
            }
        };
        Unwound { addresses, is_complete }
    }

    /// Loads the modules that are new. Whether there are any.
    pub(super) fn load_modules(&mut self) -> bool {
        let text = crate::proc::read("/proc/self/maps").unwrap_or_default();
        let before = self.modules.len();
        for mapping in maps::parse(&text).filter(|mapping| mapping.is_executable) {
            let is_known = self.is_code(mapping.range.start);
            if is_known || self.modules.len() == MODULES_MAX || !mapping.path.starts_with('/') {
                continue;
            }
            // A program that was replaced on disk since it started is still there as /proc/self/exe. A library is not.
            let is_program = std::fs::read_link("/proc/self/exe")
                .is_ok_and(|program| program == Path::new(mapping.path));
            let path = match is_program && mapping.path.ends_with(" (deleted)") {
                true => PathBuf::from("/proc/self/exe"),
                false => PathBuf::from(mapping.path),
            };
            let (bias, tables) = self.add(&path, &mapping).unzip();
            let tables = tables.flatten();
            self.modules.push(Module { path, range: mapping.range, bias, tables });
        }
        self.modules.len() > before
    }

    /// Reads the unwind tables of one file. `None` if it has none that can be used.
    fn add(&mut self, path: &Path, mapping: &maps::Mapping<'_>) -> Option<(u64, Option<Tables>)> {
        let cache = ReadCache::new(open_module(path)?);
        let file = object::File::parse(&cache).ok()?;
        // The segment that this mapping shows. A mapping begins at a page, and shares it with the segment before.
        let is_code = |flags| match flags {
            SegmentFlags::Elf { p_flags, .. } => (p_flags & object::elf::PF_X).0 != 0,
            _ => false,
        };
        let segment = file.segments().find(|segment| {
            let (offset, bytes) = segment.file_range();
            let end = offset.saturating_add(bytes);
            is_code(segment.flags()) && (offset & !0xFFF..end).contains(&mapping.offset)
        })?;
        let bias = mapping
            .range
            .start
            .wrapping_sub(mapping.offset)
            .wrapping_sub(segment.address().wrapping_sub(segment.file_range().0));
        let left = &mut self.table_bytes_left;
        let mut section = |name: &str| {
            let section = file.section_by_name(name)?;
            section.address().checked_add(section.size())?;
            *left = left.checked_sub(section.size())?; // before it is read
            Some((section.address(), Arc::from(section.data().ok()?)))
        };
        let (eh_frame, eh_frame_hdr): (Option<Table>, Option<Table>) =
            (section(".eh_frame"), section(".eh_frame_hdr"));
        let range = |(address, bytes): &Table| *address..address + bytes.len() as u64;
        let info = ExplicitModuleSectionInfo {
            eh_frame_svma: eh_frame.as_ref().map(range),
            eh_frame: eh_frame.as_ref().map(|(_, bytes)| bytes.clone()),
            eh_frame_hdr_svma: eh_frame_hdr.as_ref().map(range),
            eh_frame_hdr: eh_frame_hdr.as_ref().map(|(_, bytes)| bytes.clone()),
            ..ExplicitModuleSectionInfo::default()
        };
        let tables = eh_frame
            .zip(eh_frame_hdr)
            .map(|(eh_frame, eh_frame_hdr)| Tables { eh_frame, eh_frame_hdr });
        let name = path.display().to_string();
        self.native.add_module(framehop::Module::new(name, mapping.range.clone(), bias, info));
        Some((bias, tables))
    }
}

/// The code that ends at a return address. `None`: it cannot be read, or nothing is known about the processor's code.
fn code_before(memory: &File, return_address: u64) -> Option<[u8; CALL_BYTES_MAX]> {
    if cfg!(not(target_arch = "x86_64")) {
        return None;
    }
    let mut code = [0; CALL_BYTES_MAX];
    memory.read_exact_at(&mut code, return_address.checked_sub(CALL_BYTES_MAX as u64)?).ok()?;
    Some(code)
}

/// Where the function begins that the call before a return address names. `None` if that is no call, or one of a pointer
/// in a register or elsewhere in memory than beside the code.
fn called_function(memory: &File, return_address: u64) -> Option<u64> {
    let code = code_before(memory, return_address)?;
    let offset = i64::from(i32::from_le_bytes(*code.last_chunk()?));
    let address = return_address.checked_add_signed(offset)?;
    match code {
        [_, 0xFF, 0x15, ..] => {
            // By a pointer beside the code: a function of a library.
            let mut pointer = [0; 8];
            memory.read_exact_at(&mut pointer, address).ok()?;
            Some(u64::from_le_bytes(pointer))
        }
        [_, _, 0xE8, ..] => Some(address),
        _ => None,
    }
}

/// The longest call of a pointer, in bytes, without prefixes.
const CALL_BYTES_MAX: usize = 7;

/// Whether code ends with a call of a pointer: FF /2, in Intel's notation.
fn calls_pointer(code: &[u8; CALL_BYTES_MAX]) -> bool {
    (2..=code.len()).any(|len| {
        let [0xFF, operand, rest @ ..] = &code[code.len() - len..] else { return false };
        let (mode, extension, register) = (operand >> 6, operand >> 3 & 7, operand & 7);
        let has_index = mode < 3 && register == 4;
        let base = if has_index { rest.first().map_or(0, |index| index & 7) } else { register };
        let offset_bytes = match mode {
            0 if base == 5 => 4,
            1 => 1,
            2 => 4,
            _ => 0,
        };
        extension == 2 && len == 2 + usize::from(has_index) + offset_bytes
    })
}

/// Opens the file of a module. There may be something else at its path by now, for example a FIFO, which would block.
pub(super) fn open_module(path: &Path) -> Option<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::process::{self, Command};
    use std::sync::mpsc::{Receiver, TryRecvError, channel};
    use std::time::Duration;

    use super::*;
    use crate::proc::thread::{Syscall, parse_syscall};
    use crate::stack::{Stacks, ThreadRef};

    #[inline(never)]
    fn waits(receiver: &Receiver<()>) {
        let _ = receiver.recv_timeout(Duration::from_secs(60));
    }

    /// Waits by a function of the standard library that is called by a pointer.
    #[inline(never)]
    fn waits_by_a_pointer(receiver: &Receiver<()>) {
        let park: fn(Duration) = black_box(std::thread::park_timeout);
        while receiver.try_recv() == Err(TryRecvError::Empty) {
            park(Duration::from_secs(60));
        }
    }

    /// The registers and the stack of a thread in `waits`, where it waits for a futex.
    fn blocked(stacks: &Stacks, waits: fn(&Receiver<()>)) -> Registers {
        let (sender, receiver) = channel();
        let (end, ended) = channel();
        let waiting = std::thread::spawn(move || {
            sender.send(ThreadRef::current()).unwrap();
            waits(&ended);
        });
        let thread = receiver.recv().unwrap();
        let file = format!("/proc/self/task/{}/syscall", thread.tid);
        let Syscall { pc, sp, .. } = loop {
            let syscall = parse_syscall(&std::fs::read_to_string(&file).unwrap());
            match syscall.filter(|syscall| syscall.number == libc::SYS_futex) {
                Some(syscall) => break syscall,
                None => std::thread::yield_now(),
            }
        };
        let registers = stacks.copy_blocked(&thread, pc, sp).unwrap();
        drop(end);
        waiting.thread().unpark();
        waiting.join().unwrap();
        registers
    }

    /// The code of a function.
    fn code_of(function: fn(&Receiver<()>)) -> Range<u64> {
        let start = function as usize as u64;
        start..start + 256
    }

    /// Makes the innermost words of a stack, the frames of `syscall` and `park_timeout`, no frame pointers.
    fn overwrite_frame_pointers(registers: &mut Registers) {
        const INNERMOST_WORDS: usize = 32;
        let top = registers.sp + registers.words.len() as u64 * 8;
        for word in &mut registers.words[..INNERMOST_WORDS] {
            if (registers.sp..top).contains(word) {
                *word = 5;
            }
        }
    }

    /// The register that is the frame pointer of the standard library's `park_timeout` may be anything in its caller.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_caller_without_a_frame_pointer_is_found_by_its_call() {
        let stacks = Stacks::new(0);
        let mut registers = blocked(&stacks, waits);
        // The frames from the system call to `waits`.
        let mut unwind = Unwind::new();
        let mut frames = |registers: &Registers, memory| {
            let mut frames = unwind.unwind_without_frame_pointer(registers, memory).addresses;
            let end = frames.iter().position(|at| code_of(waits).contains(at));
            frames.truncate(end.map_or(0, |end| end + 1));
            frames
        };
        let expected = frames(&registers, stacks.memory().ok());
        assert!(expected.len() > 3, "{expected:x?}");

        overwrite_frame_pointers(&mut registers);
        assert_eq!(frames(&registers, stacks.memory().ok()), expected);
        assert_ne!(frames(&registers, None), expected);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_caller_that_calls_a_pointer_comes_before_the_frames_around_it() {
        let stacks = Stacks::new(0);
        let mut registers = blocked(&stacks, waits_by_a_pointer);
        overwrite_frame_pointers(&mut registers);
        let mut unwind = Unwind::new();
        assert!(unwind.load_modules());
        let return_address =
            registers.words.iter().position(|word| code_of(waits_by_a_pointer).contains(word));
        let at = registers.sp + 8 * (return_address.unwrap() as u64 - 1);
        let park_timeout = registers.words[0]; // `syscall` returns there
        let first =
            |memory| unwind.frame_pointers(&registers, memory, park_timeout).first().copied();
        assert_eq!(first(stacks.memory().ok()), Some(at));
        assert_ne!(first(None), Some(at));
    }

    #[test]
    fn calls_of_pointers_are_told_from_other_instructions() {
        let calls: [&[u8]; 9] = [
            &[0xFF, 0xD3],                               // call rbx
            &[0x41, 0xFF, 0xD4],                         // call r12
            &[0xFF, 0x50, 0x18],                         // call [rax + 0x18]
            &[0xFF, 0x54, 0x24, 0x08],                   // call [rsp + 8]
            &[0xFF, 0x14, 0xC8],                         // call [rax + 8 * rcx]
            &[0xFF, 0x90, 0x00, 0x01, 0x00, 0x00],       // call [rax + 0x100]
            &[0xFF, 0x94, 0x24, 0x00, 0x01, 0x00, 0x00], // call [rsp + 0x100]
            &[0xFF, 0x14, 0xC5, 0x00, 0x01, 0x00, 0x00], // call [8 * rax + 0x100]
            &[0xFF, 0x15, 0x00, 0x01, 0x00, 0x00],       // call [rip + 0x100]
        ];
        let others: [&[u8]; 5] = [
            &[0xFF, 0xE0],                   // jmp rax
            &[0xFF, 0x30],                   // push [rax]
            &[0xFF, 0xC0],                   // inc eax
            &[0xE8, 0x00, 0x01, 0x00, 0x00], // call of an address
            &[0xFF, 0xD3, 0x90],             // call rbx, nop
        ];
        for (instructions, is_call) in [(&calls[..], true), (&others[..], false)] {
            for instruction in instructions {
                let mut code = [0x90; CALL_BYTES_MAX];
                code[CALL_BYTES_MAX - instruction.len()..].copy_from_slice(instruction);
                assert_eq!(calls_pointer(&code), is_call, "{instruction:x?}");
            }
        }
    }

    #[test]
    fn what_is_no_file_is_no_module_and_does_not_block() {
        let fifo = std::env::temp_dir().join(format!("stalls-fifo-{}", process::id()));
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let opened = open_module(&fifo);
        std::fs::remove_file(&fifo).unwrap();
        assert!(opened.is_none());
        assert!(open_module(Path::new("/dev/zero")).is_none());
        assert!(open_module(Path::new("/proc/self/exe")).is_some());
    }

    /// Modules that come later, or whose tables are long, have none. They are known all the same.
    #[test]
    fn all_tables_together_have_a_bound() {
        let read = |table_bytes_left: u64| {
            let mut unwind = Unwind { table_bytes_left, ..Unwind::new() };
            assert!(unwind.load_modules());
            (table_bytes_left - unwind.table_bytes_left, unwind.modules.len())
        };
        let (all, modules) = read(TABLE_BYTES_MAX);
        assert!(all > 0);
        let (some, as_many) = read(all / 2);
        assert!(some <= all / 2);
        assert_eq!(as_many, modules);
        assert_eq!(read(0).0, 0);
    }
}
