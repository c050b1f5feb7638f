//! Rust definitions of C types, from their BTF.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use libbpf_rs::btf::types::{Array, Enum, Int, IntEncoding, MemberAttr, Struct, Typedef};
use libbpf_rs::btf::{Btf, BtfType, HasSize, ReferencesType};

/// A constant of an enum that counts the others begins so, and is no variant.
const COUNT_OF: &str = "NR_";

/// What a header declares.
#[derive(Debug, Default)]
pub(crate) struct Names {
    structs: Vec<String>,
    enums: Vec<String>,
    /// Macros that are not empty and take no arguments.
    constants: Vec<String>,
    /// Comments on the line of an enum's constant.
    comments: BTreeMap<String, String>,
}

// === impl Names ===

impl Names {
    pub(crate) fn declared(header: &str) -> Self {
        let mut names = Self::default();
        for line in header.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                ["struct", name, "{", ..] => names.structs.push(name.to_owned()),
                ["enum", name, "{", ..] => names.enums.push(name.to_owned()),
                ["#define", name, value, ..] if !name.contains('(') && !value.starts_with("/*") => {
                    names.constants.push(name.to_owned());
                }
                [name, "/*", .., "*/"] if name.ends_with(',') => {
                    let comment = words[2..words.len() - 1].join(" ");
                    names
                        .comments
                        .insert(name.trim_end_matches(',').to_owned(), comment);
                }
                _ => {}
            }
        }
        names
    }

    /// A program whose BTF has all of them.
    pub(crate) fn program(&self, header: &Path) -> String {
        let mut text = format!("#include <linux/bpf.h>\n#include {header:?}\n");
        for (kind, names) in [("struct", &self.structs), ("enum", &self.enums)] {
            for name in names {
                text += &format!("{kind} {name} {kind}_{name};\n");
            }
        }
        for name in &self.constants {
            text += &format!("enum constant_{name} {{ value_{name} = {name} }} of_{name};\n");
        }
        text
    }
}

/// The definitions.
///
/// # Errors
/// A sentence that names the type that has no safe counterpart in Rust.
pub(crate) fn generate(btf: &Btf<'_>, names: &Names) -> Result<String, String> {
    let mut rust = String::new();
    let mut structs: Vec<_> = names.structs.clone();
    let mut done = BTreeSet::new();
    while let Some(name) = structs.pop() {
        if done.insert(name.clone()) {
            let (text, uses) = composite(btf, &name).map_err(|e| format!("struct {name} {e}"))?;
            rust += &text;
            structs.extend(uses);
        }
    }
    for name in &names.enums {
        rust += &enumeration(btf, name, &names.comments).map_err(|e| format!("enum {name} {e}"))?;
    }
    for name in &names.constants {
        let values = values(btf, &format!("constant_{name}"))
            .ok_or_else(|| format!("the macro {name} is no number of 32 bits"))?;
        let [(_, value)] = values[..] else {
            return Err(format!("the macro {name} has no value"));
        };
        let _ = writeln!(rust, "pub const {name}: u32 = {value};");
    }
    Ok(rust)
}

/// A struct, and the names of those it contains.
fn composite(btf: &Btf<'_>, name: &str) -> Result<(String, Vec<String>), String> {
    let found: Struct<'_> = btf.type_by_name(name).ok_or("is not in the BTF")?;
    let rust = camel(name);
    let (mut fields, mut checks) = (String::new(), String::new());
    let (mut end, mut uses) = (0, Vec::new());
    for member in found.iter() {
        let field = member.name.ok_or("has a member without a name")?;
        let field = field.to_string_lossy();
        let MemberAttr::Normal { offset } = member.attr else {
            return Err(format!("has the bit field {field}"));
        };
        let offset = offset as usize / 8;
        if offset != end {
            return Err(format!(
                "has {} bytes of padding before {field}: name them",
                offset - end
            ));
        }
        let ty = btf
            .type_by_id(member.ty)
            .ok_or("has a member without a type")?;
        let (ty, size) =
            field_type(ty, &mut uses).ok_or(format!("has {field}, of no plain type"))?;
        end += size;
        let _ = writeln!(fields, "    pub {field}: {ty},");
        let _ = writeln!(
            checks,
            "    assert!(::core::mem::offset_of!({rust}, {field}) == {offset});"
        );
    }
    let size = found.size();
    if size != end {
        return Err(format!(
            "has {} bytes of padding at its end: name them",
            size - end
        ));
    }
    let text = format!(
        "#[derive(Clone, Copy, Debug, PartialEq, Eq, ::taut_bpf::zerocopy::FromBytes, \
         ::taut_bpf::zerocopy::IntoBytes, ::taut_bpf::zerocopy::Immutable, ::taut_bpf::zerocopy::KnownLayout)]\n\
         #[zerocopy(crate = \"::taut_bpf::zerocopy\")]\n\
         #[repr(C)]\n\
         pub struct {rust} {{\n{fields}}}\n\
         impl Default for {rust} {{\n    \
             fn default() -> Self {{ ::taut_bpf::zerocopy::FromZeros::new_zeroed() }}\n\
         }}\n\
         const _: () = {{\n    assert!(::core::mem::size_of::<{rust}>() == {size});\n{checks}}};\n"
    );
    Ok((text, uses))
}

/// The Rust type of a field and its size; `None` if not all bytes are values of it.
fn field_type(ty: BtfType<'_>, uses: &mut Vec<String>) -> Option<(String, usize)> {
    if let Ok(alias) = Typedef::try_from(ty) {
        return match alias.name()?.to_str()? {
            "__be16" => Some(("::taut_bpf::Be16".to_owned(), 2)),
            "__be32" => Some(("::taut_bpf::Be32".to_owned(), 4)),
            _ => field_type(alias.referenced_type(), uses),
        };
    }
    if let Ok(array) = Array::try_from(ty) {
        let (element, size) = field_type(array.contained_type(), uses)?;
        let len = array.capacity();
        return Some((format!("[{element}; {len}]"), size * len));
    }
    if let Ok(int) = Int::try_from(ty) {
        let sign = match int.encoding {
            IntEncoding::Signed => 'i',
            IntEncoding::None => 'u',
            // clang's `char`.
            IntEncoding::Char => 'u',
            IntEncoding::Bool => return None,
        };
        // A C `char` is text here.
        let sign = if int.size() == 1 && int.name()? == "char" {
            'u'
        } else {
            sign
        };
        return Some((format!("{sign}{}", 8 * int.size()), int.size()));
    }
    if let Ok(found) = Enum::try_from(ty) {
        return Some((format!("u{}", 8 * found.size()), found.size()));
    }
    let found = Struct::try_from(ty).ok()?;
    let name = found.name()?.to_str()?;
    uses.push(name.to_owned());
    Some((camel(name), found.size()))
}

fn enumeration(
    btf: &Btf<'_>,
    name: &str,
    comments: &BTreeMap<String, String>,
) -> Result<String, String> {
    let mut values = values(btf, name).ok_or("has a value that is no number of 32 bits")?;
    values.retain(|(name, _)| !name.starts_with(COUNT_OF));
    let prefix = prefix(values.iter().map(|(name, _)| name.as_str()));
    let rust = camel(name);
    let [mut variants, mut all, mut labels, mut arms] = [const { String::new() }; 4];
    for (name, value) in &values {
        let label = name[prefix..].to_lowercase();
        let variant = camel(&label);
        if let Some(comment) = comments.get(name) {
            let _ = writeln!(variants, "    #[doc = {comment:?}]");
        }
        let _ = writeln!(variants, "    {variant} = {value},");
        let _ = write!(all, "Self::{variant}, ");
        let _ = write!(labels, "\"{label}\", ");
        let _ = write!(arms, "Self::{variant} => \"{label}\", ");
    }
    Ok(format!(
        "#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]\n\
         #[repr(u32)]\n\
         pub enum {rust} {{\n{variants}}}\n\
         impl {rust} {{\n    \
             /// The name in lower case.\n    \
             pub fn label(self) -> &'static str {{\n        \
                 match self {{ {arms} }}\n    \
             }}\n\
         }}\n\
         impl ::taut_bpf::CEnum for {rust} {{\n    \
             const ALL: &'static [Self] = &[{all}];\n    \
             const LABELS: &'static [&'static str] = &[{labels}];\n    \
             fn raw(self) -> u32 {{ self as u32 }}\n\
         }}\n"
    ))
}

fn values(btf: &Btf<'_>, name: &str) -> Option<Vec<(String, u32)>> {
    let found: Enum<'_> = btf.type_by_name(name)?;
    let value = |value: i64| u32::try_from(value).ok();
    found
        .iter()
        .map(|member| Some((member.name?.to_str()?.to_owned(), value(member.value)?)))
        .collect()
}

/// The length of what all names begin with, up to an underscore.
fn prefix<'a>(mut names: impl Iterator<Item = &'a str> + Clone) -> usize {
    let Some(first) = names.next() else {
        return 0;
    };
    let is_common = |at: &usize| names.clone().all(|name| name.starts_with(&first[..*at]));
    let ends = first.match_indices('_').map(|(at, _)| at + 1);
    ends.take_while(is_common).last().unwrap_or(0)
}

/// `snoop_flow` as Rust names types: `SnoopFlow`.
fn camel(name: &str) -> String {
    let word = |word: &str| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_uppercase() + rest
    };
    name.split('_').map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_searched_for_what_it_declares() {
        let names = Names::declared(
            "#ifndef X_H\n#define X_H\n#define ROOM\t16 /* bytes */\n#define TWICE(x) (2 * (x))\n\
             struct flow {\n\tstruct key key;\n};\nenum exit {\n};\n/* struct other { */\n",
        );
        assert_eq!(names.structs, ["flow"]);
        assert_eq!(names.enums, ["exit"]);
        assert_eq!(names.constants, ["ROOM"]);
    }

    #[test]
    fn variants_lose_what_their_names_begin_with() {
        let len = prefix(["SNOOP_TG_NO_FLOW", "SNOOP_TG_NO_DATA", "SNOOP_TG_SYN"].into_iter());
        assert_eq!(len, "SNOOP_TG_".len());
        assert_eq!(prefix(["ONE", "TWO"].into_iter()), 0);
        assert_eq!(camel("no_flow"), "NoFlow");
        assert_eq!(camel("__pad"), "Pad");
    }
}
