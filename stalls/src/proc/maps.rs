//! `maps`: the mappings of the process.

use std::ops::Range;

/// One mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// Its addresses.
    pub range: Range<u64>,
    /// Whether code runs in it.
    pub is_executable: bool,
    /// Where it begins in the file.
    pub offset: u64,
    /// The file, a name in brackets, or nothing.
    pub path: &'a str,
}

/// The mappings, without lines that are odd.
pub fn parse(text: &str) -> impl Iterator<Item = Mapping<'_>> {
    text.lines().filter_map(|line| {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let is_executable = fields.next()?.contains('x');
        let offset = hex(fields.next()?)?;
        let path = fields.nth(2).unwrap_or_default().trim_start();
        Some(Mapping { range: hex(start)?..hex(end)?, is_executable, offset, path })
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn mappings() {
        let text = "\
7f10-7f20 r-xp 00001000 fe:00 393 /usr/lib/with space.so
odd
7f20-7f30 rw-p 00000000 00:00 0 \n";
        let mappings: Vec<_> = super::parse(text).collect();
        assert_eq!(mappings.len(), 2);
        assert_eq!(mappings[0].range, 0x7F10..0x7F20);
        assert_eq!((mappings[0].is_executable, mappings[0].offset), (true, 0x1000));
        assert_eq!(mappings[0].path, "/usr/lib/with space.so");
        assert_eq!(mappings[1].path, "");
    }
}
