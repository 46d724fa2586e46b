//! Files of `/proc`.

/// A field of a file of `/proc` that has a field in each line, such as `MemTotal` in `/proc/meminfo`. Sizes are in bytes:
/// the unit KiB, which some lines have, is taken into account. `None` if the field is not there, or is no number.
pub fn proc_field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?.trim();
    let (number, unit) = match value.strip_suffix(" kB") {
        Some(number) => (number, 1024),
        None => (value, 1),
    };
    Some(number.parse::<u64>().ok()?.saturating_mul(unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_in_bytes() {
        let text =
            "MemFree:  1 kB\nMemTotal:       16384 kB\nrchar: 1\nread_bytes: 4096\nbad: x kB\n";
        for (name, value) in [
            ("MemTotal", Some(16 << 20)),
            ("read_bytes", Some(4096)),
            ("rchar", Some(1)),
            ("bad", None),
            ("Mem", None),
            ("write_bytes", None),
        ] {
            assert_eq!(proc_field(text, name), value, "{name}");
        }
    }
}
