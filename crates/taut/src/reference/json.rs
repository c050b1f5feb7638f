//! Every field of the JSON that the commands print.

mod outputs;

use std::fmt::Write as _;

use clap::{Command, CommandFactory as _};
use syn::{Fields, GenericArgument, Item, PathArguments, PathSegment, Variant};
use taut_observe::instruments::INSTRUMENTS;

use self::outputs::{FieldByHand, OUTPUTS, WRITTEN_BY_HAND};
use super::source::{self, Type};
use super::{cell, doc};
use crate::Cli;

const HEAD: &str = "\
# JSON fields

Every field that a command prints with `--json`, that `taut watch` records, and that a relay writes into its session log. A dot leads
into an object, `[]` into each part of a list. A field is absent only where that is said. This page is written from the code (`make
reference`), and a test compares it with what the commands print.

Everything that is printed is an object, and has `version`: the version of the program that printed it. Where a command prints lines, each
line is an object and has it, so that a line means the same after `grep` or a rotation, and in a file with lines of several hosts or from
before and after an upgrade. A program that reads JSON should ignore fields that it does not know: any version may add some. A field is
removed, renamed, or given another meaning or unit only in a version whose CHANGELOG says so. (`taut lab run --json` writes an outcome, which
has `version`, too: see [its page](../lab.md#json).)
";

/// Returns the page.
pub(super) fn page() -> String {
    let types = source::types();
    let mut page = HEAD.to_owned();
    for (commands, shape, file, name) in OUTPUTS {
        let (name, variant) = match name.split_once("::") {
            Some((name, variant)) => (name, Some(variant)),
            None => (*name, None),
        };
        let found = types.iter().find(|t| t.is_in(file) && t.name() == name);
        let found = found.unwrap_or_else(|| panic!("there is no {name} in crates/{file}"));
        let names: Vec<_> = commands.iter().map(|name| format!("`{name}`")).collect();
        let _ = write!(
            page,
            "\n## {}\n\nPrints {shape}.\n\n| field | value | meaning |\n|---|---|---|\n",
            names.join(", ")
        );
        Rows {
            types: &types,
            page: &mut page,
        }
        .members_of_output(found, variant);
    }
    page
}

#[test]
fn every_command_that_prints_json_is_in_the_reference() {
    fn commands(command: &Command, found: &mut Vec<String>) {
        if command.get_arguments().any(|arg| arg.get_id() == "json") {
            found.push(format!(
                "{} --json",
                command.get_bin_name().unwrap_or_default()
            ));
        }
        for below in command.get_subcommands() {
            commands(below, found);
        }
    }
    let mut cli = Cli::command();
    cli.build();
    let mut found = Vec::new();
    commands(&cli, &mut found);
    assert!(found.len() > 10, "{found:?}");
    let known: Vec<_> = OUTPUTS.iter().flat_map(|output| output.0).collect();
    found.retain(|command| !known.iter().any(|known| *known == command));
    assert!(found.is_empty(), "not in OUTPUTS: {found:?}");
}

#[test]
fn every_instrument_is_explained() {
    let page = doc("instruments.md");
    for instrument in INSTRUMENTS {
        let name = instrument.name;
        assert!(
            page.contains(&format!("| `{name}` |")),
            "no row for {name} in docs/instruments.md"
        );
    }
}

/// Writes the rows of a table.
struct Rows<'a> {
    types: &'a [Type],
    page: &'a mut String,
}

impl<'a> Rows<'a> {
    /// Writes the rows of an output. The head of the page tells of the version.
    fn members_of_output(&mut self, of: &Type, variant: Option<&str>) {
        match (&of.item, variant) {
            (Item::Enum(item), Some(name)) => {
                let variant = item.variants.iter().find(|v| v.ident == name);
                let variant = variant.unwrap_or_else(|| panic!("no variant {name}"));
                let rename = source::serde(&item.attrs, "rename_all");
                self.variant(of, variant, "", None, rename.as_deref());
            }
            _ => self.members(of, ""),
        }
    }

    /// Writes the rows of what is inside of a type.
    fn members(&mut self, of: &Type, path: &str) {
        let rename = source::serde(of.attributes(), "rename_all");
        match &of.item {
            Item::Struct(_) => {
                for field in of.fields() {
                    self.field(of, field, path, "");
                }
            }
            Item::Enum(item) => {
                let tag = source::serde(&item.attrs, "tag");
                if let Some(tag) = &tag {
                    let names = item.variants.iter();
                    let names = names.map(|v| renamed(&v.ident.to_string(), rename.as_deref()));
                    let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
                    self.row(&format!("{path}{tag}"), &names.join(", "), "Which it is");
                }
                for variant in &item.variants {
                    self.variant(of, variant, path, tag.as_deref(), rename.as_deref());
                }
            }
            _ => {}
        }
    }

    fn variant(
        &mut self,
        of: &Type,
        variant: &Variant,
        path: &str,
        tag: Option<&str>,
        rename: Option<&str>,
    ) {
        let name = renamed(&variant.ident.to_string(), rename);
        let meaning = source::documentation(&variant.attrs);
        let place = match tag {
            Some(_) => path.to_owned(),
            None => format!("{path}{name}"),
        };
        match &variant.fields {
            Fields::Named(fields) => {
                let only = match tag {
                    Some(tag) => format!("if `{tag}` is `{name}`: "),
                    None => {
                        self.row(&place, "object", &meaning);
                        String::new()
                    }
                };
                let inside = match tag {
                    Some(_) => path.to_owned(),
                    None => format!("{place}."),
                };
                for field in &fields.named {
                    self.field(of, field, &inside, &only);
                }
            }
            Fields::Unnamed(fields) => {
                for field in &fields.unnamed {
                    self.value(of, &field.ty, &place, &meaning);
                }
            }
            Fields::Unit => {}
        }
    }

    fn field(&mut self, of: &Type, field: &syn::Field, path: &str, only: &str) {
        let attributes = &field.attrs;
        if source::serde(attributes, "skip").is_some() {
            return;
        }
        if source::serde(attributes, "flatten").is_some() {
            // The only one that others contain is that of the first section.
            let name = ty_name(&field.ty);
            assert_eq!(name, "Record", "{}", of.file.display());
            match self.find(of, &field.ty, &name) {
                Some(record) if of.is_in(OUTPUTS[0].2) => self.members(record, path),
                _ => {
                    *self.page +=
                        "| all of [`taut top --json`](#taut-top---json) but `time` | | |\n";
                }
            }
            return;
        }
        let name = source::outside(field);
        let mut meaning = source::documentation(attributes);
        assert!(
            !meaning.is_empty(),
            "{}: `{name}` of {} is printed as JSON and has no documentation comment",
            of.file.display(),
            of.name()
        );
        match source::serde(attributes, "skip_serializing_if").as_deref() {
            Some("is_false" | "std::ops::Not::not") => meaning += " Absent if false.",
            Some(_) => meaning += " Absent if there is none.",
            None => {}
        }
        self.value(
            of,
            &field.ty,
            &format!("{path}{name}"),
            &format!("{only}{meaning}"),
        );
    }

    /// Writes the row of a value, and those of what is inside of it.
    fn value(&mut self, of: &Type, ty: &syn::Type, path: &str, meaning: &str) {
        let (kind, inside) = self.kind(of, ty);
        self.row(path, &kind, meaning);
        let path = format!(
            "{path}{}.",
            if kind.starts_with("list") { "[]" } else { "" }
        );
        match inside {
            Some(Inside::Type(inner)) => self.members(inner, &path),
            Some(Inside::ByHand(fields)) => {
                for (name, ty, meaning) in fields {
                    let path = format!("{path}{name}");
                    match syn::parse_str::<syn::Type>(ty) {
                        Ok(ty @ syn::Type::Path(_)) if ty_name(&ty) == "Option" => {
                            self.value(of, &ty, &path, meaning);
                        }
                        _ if ty.starts_with("list of ") => {
                            let inner = syn::parse_str(&format!("Vec<{}>", &ty[8..])).unwrap();
                            self.value(of, &inner, &path, meaning);
                        }
                        _ => self.row(&path, ty, meaning),
                    }
                }
            }
            None => {}
        }
    }

    fn row(&mut self, path: &str, kind: &str, meaning: &str) {
        // Of links, which lead into the code, the text stays.
        let meaning = meaning
            .replace("`None`", "null")
            .replace("[`", "`")
            .replace("`]", "`");
        let meaning = cell(&meaning);
        let _ = writeln!(
            self.page,
            "| `{path}` | {kind} | {} |",
            meaning.strip_suffix('.').unwrap_or(&meaning)
        );
    }

    /// Returns how a type is written, and the type or the fields inside of it.
    fn kind(&self, of: &Type, ty: &syn::Type) -> (String, Option<Inside<'a>>) {
        match ty {
            syn::Type::Reference(reference) => self.kind(of, &reference.elem),
            syn::Type::Slice(slice) => self.list(of, &slice.elem),
            syn::Type::Array(array) => self.list(of, &array.elem),
            syn::Type::Tuple(tuple) => {
                let kinds: Vec<_> = tuple.elems.iter().map(|ty| self.kind(of, ty).0).collect();
                (format!("pair of {}", kinds.join(" and ")), None)
            }
            _ => {
                let segment =
                    named(ty).unwrap_or_else(|| panic!("a type without a name in {}", of.name()));
                self.kind_of(of, ty, segment)
            }
        }
    }

    fn kind_of(
        &self,
        of: &Type,
        ty: &syn::Type,
        segment: &PathSegment,
    ) -> (String, Option<Inside<'a>>) {
        let arguments = arguments(segment);
        let plain = |kind: &str| (kind.to_owned(), None);
        match (&*segment.ident.to_string(), &*arguments) {
            ("Option", [inner]) => {
                let (kind, inside) = self.kind(of, inner);
                (format!("{kind} or null"), inside)
            }
            // Serialized by hand as what it is without an error.
            ("Result", [inner, _]) => {
                let (kind, inside) = self.kind(of, inner);
                (format!("{kind} or null"), inside)
            }
            ("Box" | "Arc", [inner]) => self.kind(of, inner),
            ("Vec", [inner]) => self.list(of, inner),
            ("BTreeMap" | "HashMap", [_, inner]) => {
                (format!("object of {}", self.kind(of, inner).0), None)
            }
            ("bool", _) => plain("true or false"),
            ("u8" | "u16" | "u32" | "u64" | "usize" | "i64" | "f64" | "Duration", _) => {
                plain("number")
            }
            (
                "str" | "String" | "Cow" | "SocketAddr" | "IpAddr" | "SystemTime" | "PathBuf"
                | "SessionId",
                _,
            ) => plain("text"),
            (name, _) => {
                if let Some((_, kind, fields)) =
                    WRITTEN_BY_HAND.iter().find(|known| known.0 == name)
                {
                    return ((*kind).to_owned(), Some(Inside::ByHand(fields)));
                }
                let Some(inner) = self.find(of, ty, name) else {
                    panic!(
                        "{}: how is {name} written as JSON? Add it to WRITTEN_BY_HAND",
                        of.file.display()
                    )
                };
                match names(inner) {
                    Some(names) => (names, None),
                    None => ("object".to_owned(), Some(Inside::Type(inner))),
                }
            }
        }
    }

    fn list(&self, of: &Type, inner: &syn::Type) -> (String, Option<Inside<'a>>) {
        let (kind, inside) = self.kind(of, inner);
        (format!("list of {kind}"), inside)
    }

    /// Returns the serialized type of this name: of the same file, or of the module in front of the
    /// name, or of the same crate, or of another one.
    fn find(&self, of: &Type, ty: &syn::Type, name: &str) -> Option<&'a Type> {
        let module = match ty {
            syn::Type::Path(path) => path.path.segments.iter().rev().nth(1),
            _ => None,
        };
        let module = module.map(|segment| segment.ident.to_string());
        let all = self.types;
        let of_name = || {
            let types = all.iter();
            types.filter(move |t| t.name() == name && t.is_serialized())
        };
        let in_module = |t: &&Type| match &module {
            Some(module) => t.file.file_stem().is_some_and(|stem| *stem == **module),
            None => t.file == of.file,
        };
        let found = of_name().find(in_module);
        let found = found.or_else(|| of_name().find(|t| t.package == of.package));
        found.or_else(|| of_name().next())
    }
}

/// What is inside of a value.
enum Inside<'a> {
    Type(&'a Type),
    ByHand(&'static [FieldByHand]),
}

/// Returns the names of an enum's values, if all are names.
fn names(of: &Type) -> Option<String> {
    let Item::Enum(item) = &of.item else {
        return None;
    };
    let rename = source::serde(&item.attrs, "rename_all");
    let mut names = Vec::new();
    for variant in &item.variants {
        let name = renamed(&variant.ident.to_string(), rename.as_deref());
        match &variant.fields {
            Fields::Unit => names.push(format!("`{name}`")),
            // Such as `{"failed": "a reason"}`.
            Fields::Unnamed(_) if item.variants.iter().any(|v| v.fields.is_empty()) => {
                names.push(format!("an object with the text `{name}`"));
            }
            Fields::Unnamed(_) | Fields::Named(_) => return None,
        }
    }
    Some(names.join(", "))
}

fn renamed(name: &str, rename: Option<&str>) -> String {
    let separated = |separator: char| {
        let mut text = String::new();
        for (i, c) in name.char_indices() {
            if c.is_uppercase() && i > 0 {
                text.push(separator);
            }
            text.extend(c.to_lowercase());
        }
        text
    };
    match rename {
        Some("lowercase") => name.to_lowercase(),
        Some("kebab-case") => separated('-'),
        Some("snake_case") => separated('_'),
        Some(other) => panic!("rename_all = {other:?}"),
        None => name.to_owned(),
    }
}

fn named(ty: &syn::Type) -> Option<&PathSegment> {
    match ty {
        syn::Type::Path(path) => path.path.segments.last(),
        _ => None,
    }
}

fn ty_name(ty: &syn::Type) -> String {
    named(ty)
        .map(|segment| segment.ident.to_string())
        .unwrap_or_default()
}

fn arguments(segment: &PathSegment) -> Vec<&syn::Type> {
    match &segment.arguments {
        PathArguments::AngleBracketed(list) => {
            let types = list.args.iter().filter_map(|argument| match argument {
                GenericArgument::Type(ty) => Some(ty),
                _ => None,
            });
            types.collect()
        }
        _ => Vec::new(),
    }
}
