//! The layout of the programs' structures, read from their header, so that a field may move.

use std::collections::HashMap;

const HEADER: &str = include_str!("../../src/bpf/snoop.h");

/// The fields of a structure in the header.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) size: usize,
    alignment: usize,
    /// Offset of each field in bytes.
    fields: HashMap<&'static str, usize>,
}

/// Returns the body in braces after these words in the header.
fn body_of(words: &str) -> &'static str {
    let (_, rest) = HEADER
        .split_once(&format!("\n{words} {{"))
        .unwrap_or_else(|| panic!("the programs' header has no {words}"));
    let (body, _) = rest.split_once("\n};").expect("it ends");
    body
}

/// Returns a type's size and alignment.
fn size_and_alignment(kind: &str) -> (usize, usize) {
    let plain = |size| (size, size);
    match kind {
        "__u8" => plain(1),
        "__u16" | "__be16" => plain(2),
        "__u32" | "struct bpf_spin_lock" => plain(4),
        "__u64" => plain(8),
        other => {
            let layout = Layout::of(other.strip_prefix("struct ").expect("a structure"));
            (layout.size, layout.alignment)
        }
    }
}

// === impl Layout ===

impl Layout {
    /// Returns the layout of this structure.
    pub(crate) fn of(name: &str) -> Self {
        let mut fields = HashMap::new();
        let (mut at, mut alignment) = (0_usize, 1);
        for line in body_of(&format!("struct {name}")).lines() {
            let declaration = line.split(';').next().unwrap_or_default().trim();
            let Some((kind, field)) = declaration.rsplit_once(' ') else {
                continue;
            };
            if !line.contains(';') || !declaration.starts_with(['_', 's']) {
                continue;
            }
            let (field, count) = match field.split_once('[') {
                None => (field, 1),
                Some((field, count)) => (field, count.trim_end_matches(']').parse().unwrap()),
            };
            let (size, aligned) = size_and_alignment(kind);
            at = at.next_multiple_of(aligned);
            alignment = alignment.max(aligned);
            fields.insert(field, at);
            at += size * count;
        }
        Self {
            size: at.next_multiple_of(alignment),
            alignment,
            fields,
        }
    }

    fn at(&self, field: &str) -> usize {
        *self
            .fields
            .get(field)
            .unwrap_or_else(|| panic!("the programs have no field `{field}`"))
    }

    pub(crate) fn u8(&self, bytes: &[u8], field: &str) -> u8 {
        bytes[self.at(field)]
    }

    pub(crate) fn u16(&self, bytes: &[u8], field: &str) -> u16 {
        let at = self.at(field);
        u16::from_ne_bytes(bytes[at..at + 2].try_into().expect("2 bytes are 2"))
    }

    pub(crate) fn u32(&self, bytes: &[u8], field: &str) -> u32 {
        let at = self.at(field);
        u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes are 4"))
    }

    pub(crate) fn set(&self, bytes: &mut [u8], field: &str, value: &[u8]) {
        let at = self.at(field);
        bytes[at..at + value.len()].copy_from_slice(value);
    }
}

/// Returns the names of an enumeration in order, in lower case and without the prefix. They are
/// leaked.
pub(crate) fn names(enumeration: &str, prefix: &str) -> Vec<&'static str> {
    let lines = body_of(&format!("enum {enumeration}")).lines();
    let names = lines.filter_map(|line| {
        let name = line.trim().strip_prefix(prefix)?;
        let name = name.split([',', ' ', '=', '\t']).next()?;
        Some(&*name.to_lowercase().leak())
    });
    names.collect()
}
