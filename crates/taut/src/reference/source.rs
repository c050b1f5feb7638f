//! Types in the source of the workspace, and what serde makes of them.

use std::fs;
use std::path::{Path, PathBuf};

use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, ExprLit, Field, Fields, Item, Lit, Meta, Token};

use super::root;

/// A struct or an enum, with the file that has it.
pub(super) struct Type {
    /// The crate's folder.
    pub(super) package: String,
    pub(super) file: PathBuf,
    pub(super) item: Item,
}

/// Returns the structs and enums of all crates but `netlab`, outside modules of tests.
pub(super) fn types() -> Vec<Type> {
    let mut types = Vec::new();
    for package in fs::read_dir(root().join("crates")).unwrap() {
        let package = package.unwrap();
        let name = package.file_name().into_string().unwrap();
        if name != "netlab" {
            read(&package.path().join("src"), &name, &mut types);
        }
    }
    types
}

fn read(folder: &Path, package: &str, types: &mut Vec<Type>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let file = entry.unwrap().path();
        if file.is_dir() {
            read(&file, package, types);
        } else if file.extension().is_some_and(|extension| extension == "rs") {
            types.extend(of_file(&file, package));
        }
    }
}

/// Returns the structs and enums of a file, by its path from crates/.
pub(super) fn types_in(path: &str) -> Vec<Type> {
    of_file(&root().join("crates").join(path), "")
}

fn of_file(file: &Path, package: &str) -> Vec<Type> {
    let text = fs::read_to_string(file).unwrap();
    let items = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let is_type = |item: &Item| matches!(item, Item::Struct(_) | Item::Enum(_));
    let types = items.items.into_iter().filter(is_type).map(|item| Type {
        package: package.to_owned(),
        file: file.to_owned(),
        item,
    });
    types.collect()
}

impl Type {
    pub(super) fn name(&self) -> String {
        match &self.item {
            Item::Struct(item) => item.ident.to_string(),
            Item::Enum(item) => item.ident.to_string(),
            _ => String::new(),
        }
    }

    pub(super) fn attributes(&self) -> &[Attribute] {
        match &self.item {
            Item::Struct(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            _ => &[],
        }
    }

    /// Returns whether serde's derive serializes it.
    pub(super) fn is_serialized(&self) -> bool {
        let derives = |attribute: &Attribute| {
            let Meta::List(list) = &attribute.meta else {
                return false;
            };
            let path = Punctuated::<syn::Path, Token![,]>::parse_terminated;
            list.path.is_ident("derive")
                && list.parse_args_with(path).is_ok_and(|derived| {
                    let last = |path: &syn::Path| path.segments.last().map(|s| s.ident.to_string());
                    derived
                        .iter()
                        .any(|path| last(path).as_deref() == Some("Serialize"))
                })
        };
        self.attributes().iter().any(derives)
    }

    /// Returns the named fields of a struct.
    pub(super) fn fields(&self) -> Vec<&Field> {
        match &self.item {
            Item::Struct(item) => match &item.fields {
                Fields::Named(fields) => fields.named.iter().collect(),
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    /// Returns whether `path`, from crates/, is its file.
    pub(super) fn is_in(&self, path: &str) -> bool {
        self.file.ends_with(Path::new("crates").join(path))
    }
}

/// Returns the text of the documentation comments.
pub(super) fn documentation(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter(|a| a.path().is_ident("doc"));
    let lines = lines.filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) => text(&pair.value),
        _ => None,
    });
    let lines: Vec<_> = lines.map(|line| line.trim().to_owned()).collect();
    lines.join(" ").trim().to_owned()
}

/// Returns the value of a setting of serde: `Some("")` if it has none.
pub(super) fn serde(attributes: &[Attribute], key: &str) -> Option<String> {
    let metas = attributes.iter().filter(|a| a.path().is_ident("serde"));
    let metas = metas.flat_map(|attribute| {
        attribute
            .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            .unwrap()
    });
    let mut found = metas.filter(|meta| meta.path().is_ident(key));
    found.next().map(|meta| match meta {
        Meta::NameValue(pair) => text(&pair.value).unwrap_or_default(),
        Meta::Path(_) | Meta::List(_) => String::new(),
    })
}

/// Returns the name that a field has outside.
pub(super) fn outside(field: &Field) -> String {
    let name = field.ident.as_ref().map(ToString::to_string);
    serde(&field.attrs, "rename").unwrap_or_else(|| name.unwrap_or_default())
}

fn text(value: &Expr) -> Option<String> {
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Some(text.value()),
        _ => None,
    }
}
