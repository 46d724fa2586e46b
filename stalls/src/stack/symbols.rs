//! From addresses to functions and lines, with `addr2line`.

use std::borrow::Cow;
use std::path::PathBuf;

use addr2line::Loader;

use super::Frame;
use super::unwind::Module;

/// The symbols of each module, read when an address of it is first named.
pub(super) struct Symbols {
    loaders: Vec<(PathBuf, Option<Loader>)>,
}

impl Symbols {
    pub(super) fn new() -> Self {
        Self { loaders: Vec::new() }
    }

    pub(super) fn name(&mut self, modules: &[Module], addresses: &[u64]) -> Vec<Frame> {
        let mut frames = Vec::with_capacity(addresses.len());
        for &address in addresses {
            let Some(module) = modules.iter().find(|module| module.range.contains(&address)) else {
                frames.push(Frame { address, ..Frame::default() });
                continue;
            };
            let name = module.path.file_name().map(|name| name.to_string_lossy().into_owned());
            let before = frames.len();
            if let Some(loader) = self.loader(module) {
                add_frames(&mut frames, loader, address, address.wrapping_sub(module.bias));
            }
            if frames.len() == before {
                frames.push(Frame { address, ..Frame::default() });
            }
            for frame in &mut frames[before..] {
                frame.module.clone_from(&name);
            }
        }
        frames
    }

    fn loader(&mut self, module: &Module) -> Option<&Loader> {
        let found = self.loaders.iter().position(|(path, _)| *path == module.path);
        let at = found.unwrap_or_else(|| {
            self.loaders.push((module.path.clone(), Loader::new(&module.path).ok()));
            self.loaders.len() - 1
        });
        self.loaders[at].1.as_ref()
    }
}

/// Adds the function at `probe`, an address of the file, and what is inlined into it.
fn add_frames(frames: &mut Vec<Frame>, loader: &Loader, address: u64, probe: u64) {
    if let Ok(mut inlined) = loader.find_frames(probe) {
        while let Ok(Some(frame)) = inlined.next() {
            let function =
                frame.function.as_ref().and_then(|name| name.demangle().ok()).map(Cow::into_owned);
            let location = frame.location.as_ref().and_then(|location| {
                Some(format!("{}:{}", location.file?, location.line.unwrap_or(0)))
            });
            if function.is_some() {
                frames.push(Frame { address, function, location, module: None });
            }
        }
    }
    if frames.last().is_none_or(|frame| frame.address != address) {
        let function = loader
            .find_symbol(probe)
            .map(|name| addr2line::demangle_auto(Cow::from(name), None).into_owned());
        if function.is_some() {
            frames.push(Frame { address, function, ..Frame::default() });
        }
    }
}
