//! Every key of the configuration file, with the table that explains it.

use clap::CommandFactory as _;

use super::{cell, doc, source};
use crate::{Cli, options};

/// A section: as it is written, the file and the struct that read it, and the pages that explain it.
type Section = (
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
);

/// The keys of a relay and of a mesh, beside the page that is generated here.
const RELAY_KEYS: &str = "reference/relay-keys.md";

const SECTIONS: &[Section] = &[
    (
        "[relay]",
        "relay/src/config/file.rs",
        "Section",
        &[RELAY_KEYS],
    ),
    (
        "[[relay.forward]]",
        "relay/src/config/file/forward.rs",
        "ForwardSection",
        &[RELAY_KEYS],
    ),
    (
        "[relay.mesh]",
        "relay/src/config/mesh/section.rs",
        "MeshSection",
        &[RELAY_KEYS],
    ),
    (
        "[[relay.mesh.peer]]",
        "relay/src/config/mesh/section.rs",
        "PeerSection",
        &[RELAY_KEYS],
    ),
    (
        "[relay.mesh.etcd]",
        "relay/src/config/etcd.rs",
        "EtcdSection",
        &[RELAY_KEYS],
    ),
    ("[snoop]", "snoop/src/config.rs", "Settings", &["snoop.md"]),
    (
        "[mesh.dns]",
        "dns/src/config/file.rs",
        "Section",
        &["mesh-dns.md"],
    ),
    (
        "[[mesh.dns.name_server]]",
        "dns/src/config/file.rs",
        "NameServerSection",
        &["mesh-dns.md"],
    ),
    (
        "[[mesh.dns.relay]]",
        "dns/src/config/file.rs",
        "RelaySection",
        &["mesh-dns.md"],
    ),
    (
        "[[mesh.dns.name]]",
        "dns/src/config/file.rs",
        "NameSection",
        &["mesh-dns.md"],
    ),
    ("[[member]]", "mesh/src/members.rs", "Entry", &[RELAY_KEYS]),
];

const HEAD: &str = "\
# Configuration keys

Every key of `/etc/taut/taut.toml`, and of a mesh's list of members (`[[member]]`), with the page that explains it. An unknown key is
an error, and the message suggests the nearest known one. `taut check` checks all sections. This page is written from the code (`make reference`).

| section | keys | explained in |
|---|---|---|
";

/// Returns the page.
pub(super) fn page() -> String {
    let mut page = HEAD.to_owned();
    for (section, file, name, pages) in SECTIONS {
        let keys = keys(file, name);
        let keys: Vec<_> = keys.iter().map(|key| format!("`{key}`")).collect();
        let links: Vec<_> = pages
            .iter()
            .map(|page| match page.strip_prefix("reference/") {
                Some(sibling) => format!("[{sibling}]({sibling})"),
                None => format!("[{page}](../{page})"),
            })
            .collect();
        page += &format!(
            "| `{}` | {} | {} |\n",
            cell(section),
            keys.join(", "),
            links.join(", ")
        );
    }
    for section in &options::SECTIONS {
        let keys = section.keys(&Cli::command()).into_iter();
        let keys: Vec<_> = keys.map(|(key, _)| format!("`{key}`")).collect();
        page += &format!(
            "| `[{}]` | {} | the options of [`taut {}`](commands.md#taut-{}) |\n",
            section.name,
            keys.join(", "),
            section.command.join(" "),
            section.command.join("-"),
        );
    }
    page
}

#[test]
fn every_configuration_key_is_explained() {
    for (section, file, name, pages) in SECTIONS {
        let text: String = pages.iter().map(|page| doc(page)).collect();
        for key in keys(file, name) {
            // In a table, in an example, as the option of the same name, or as a section.
            let option = format!("`--{}", key.trim_end_matches('s').replace('_', "-"));
            let within = section.trim_matches(['[', ']']);
            let explained = [
                format!("`{key}`"),
                format!("\n    {key} = "),
                option,
                format!("[{within}.{key}]"),
            ];
            assert!(
                explained.iter().any(|written| text.contains(written)),
                "`{key}` of {section} is explained in none of {pages:?}"
            );
        }
    }
}

#[test]
fn tables_of_configuration_keys_have_no_key_that_the_code_lacks() {
    for (section, file, name, pages) in SECTIONS {
        let known = keys(file, name);
        for page in *pages {
            let text = doc(page);
            let head = format!("| key of `{section}` |");
            let tables = text.split(&head).skip(1);
            for row in tables.flat_map(|table| {
                let rows = table.lines().skip(2);
                rows.take_while(|line| line.starts_with('|'))
            }) {
                let first = row.split('|').nth(1).unwrap_or_default();
                for key in first.split('`').skip(1).step_by(2) {
                    assert!(
                        known.iter().any(|known| known == key),
                        "{page}: {section} has no key `{key}`"
                    );
                }
            }
        }
    }
}

/// Returns the keys that a struct reads, in order.
fn keys(file: &str, name: &str) -> Vec<String> {
    let types = source::types_in(file);
    let found = types.iter().find(|t| t.name() == name);
    let found = found.unwrap_or_else(|| panic!("there is no {name} in crates/{file}"));
    let fields = found.fields().into_iter();
    fields.map(source::outside).collect()
}
