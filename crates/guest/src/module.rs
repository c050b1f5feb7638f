//! The counters of Taut's kernel module.

use std::fs;
use std::io;
use std::path::Path;

/// The module's counters: lines of a name and a number.
pub const PATH: &str = "/proc/taut_pvtcp";
/// The maximum number of bytes to read; the module writes fewer.
const LONGEST: usize = 64 << 10;
/// The maximum number of counters to report.
const LINES: usize = 200;

/// Reads the counters in the module's order. Returns `None` if the module is not loaded.
pub fn counters() -> Option<Vec<(String, u64)>> {
    read(Path::new(PATH)).ok().flatten()
}

fn read(path: &Path) -> io::Result<Option<Vec<(String, u64)>>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(parse(&text))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Parses lines that begin with a name and a number. Skips all other lines, because a newer module
/// may write headers or units.
fn parse(text: &str) -> Vec<(String, u64)> {
    let line = |line: &str| {
        let mut words = line.split(|c: char| c.is_ascii_whitespace() || c == ':' || c == '=');
        let mut words = words.by_ref().filter(|word| !word.is_empty());
        let name = words.next()?;
        let number = words.next()?.parse().ok()?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        (name.chars().all(is_name)).then(|| (name.to_owned(), number))
    };
    let text = text.get(..LONGEST).unwrap_or(text);
    text.lines().filter_map(line).take(LINES).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_read_and_everything_else_is_skipped() {
        let text = "taut_pvtcp 2\n# counters\ntimers_postponed 12\nrtt_samples_dropped: 7 samples\n\
                    gap=3\n\nbad\nworse -1\n\u{1b}[31m 5\nlast 18446744073709551615";
        let expected = [
            ("taut_pvtcp", 2),
            ("timers_postponed", 12),
            ("rtt_samples_dropped", 7),
            ("gap", 3),
            ("last", u64::MAX),
        ];
        let expected: Vec<_> = expected.map(|(n, v)| (n.to_owned(), v)).into();
        assert_eq!(parse(text), expected);
        assert_eq!(parse(""), []);
        assert_eq!(parse(&"a 1\n".repeat(1000)).len(), LINES);
    }

    #[test]
    fn a_module_that_is_not_loaded_has_no_counters() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(&folder.path().join("none")).unwrap(), None);
        let path = folder.path().join("some");
        fs::write(&path, "x 1\n").unwrap();
        assert_eq!(read(&path).unwrap(), Some(vec![("x".to_owned(), 1)]));
    }
}
