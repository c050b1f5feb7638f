//! Splits a stream of bytes into lines of bounded length.

/// The maximum length of a line in bytes. Relevant messages of QEMU have a few hundred bytes.
const LINE_MAX: usize = 64 * 1024;

/// The unfinished line.
#[derive(Debug, Default)]
pub(super) struct Lines {
    line: Vec<u8>,
    /// Whether the line is too long and is discarded up to its end.
    too_long: bool,
}

// === impl Lines ===

impl Lines {
    /// Reads input and calls `each` for every line that it completes, except lines that are too
    /// long.
    pub(super) fn read(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let ends = part.last() == Some(&b'\n');
            if self.line.len() + part.len() > LINE_MAX {
                self.too_long = true;
                self.line.clear();
            } else if !self.too_long {
                self.line.extend_from_slice(part);
            }
            if ends {
                if !std::mem::take(&mut self.too_long) {
                    each(self.line.trim_ascii());
                }
                self.line.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(parts: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut lines = Lines::default();
        let mut seen = Vec::new();
        for part in parts {
            lines.read(part, |line| seen.push(line.to_vec()));
        }
        assert!(lines.line.len() <= LINE_MAX);
        seen
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_the_next_is_not() {
        let long = vec![b'x'; LINE_MAX + 1];
        assert_eq!(lines(&[&long, &long, b"end\r\nnext\r\n"]), [b"next"]);
        let fits = &long[..LINE_MAX - 1];
        assert_eq!(lines(&[fits, b"\n"]), [fits]);
        assert!(lines(&[&long[..LINE_MAX], b"\n"]).is_empty());
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_how_the_bytes_are_split(
            bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), any::<u8>()], 0..300),
            size in 1usize..50,
        ) {
            let parts: Vec<_> = bytes.chunks(size).collect();
            prop_assert_eq!(lines(&parts), lines(&[&bytes]));
        }
    }
}
