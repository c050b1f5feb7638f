//! The manifests in packaging/kubernetes: their commands, capabilities and configuration.
//!
//! A test of this crate, because the commands are visible only inside it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use taut_relay::config::Config;

use crate::Cli;

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes")
}

/// Returns the manifests: their names and texts.
fn manifests() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(packaging()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "yaml") {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            found.push((name, std::fs::read_to_string(path).unwrap()));
        }
    }
    assert!(found.len() > 1, "no manifests");
    found
}

/// Returns the lists with this key, each on one line, as JSON allows it.
fn lists(manifest: &str, key: &str) -> Vec<Vec<String>> {
    manifest
        .lines()
        .filter_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": "))
        .map(|list| serde_json::from_str(list).unwrap_or_else(|e| panic!("{key}: {list}: {e}")))
        .collect()
}

#[test]
fn every_command_is_one_of_this_version() {
    let mut commands = 0;
    for (name, manifest) in manifests() {
        for args in lists(&manifest, "args") {
            let line = ["taut".to_owned()].into_iter().chain(args);
            if let Err(e) = Cli::try_parse_from(line) {
                panic!("{name}: {e}");
            }
            commands += 1;
        }
    }
    assert_eq!(commands, 4);
}

#[test]
fn capabilities_are_those_of_the_table_of_containers() {
    let guide = include_str!("../../../docs/packages.md");
    let row = |job: &str| {
        let row = guide
            .lines()
            .find(|line| line.starts_with(&format!("| `{job}`")));
        row.unwrap_or_else(|| panic!("docs/packages.md has no row for {job}"))
    };
    for (name, manifest) in manifests() {
        if name == "namespace" {
            continue;
        }
        let row = match name.as_str() {
            "watch" | "tune" => row("top"),
            job => row(job),
        };
        assert!(row.contains(&format!("`{name}`")), "{name}: {row}");
        let wanted: BTreeSet<_> = row
            .split("--cap-add ")
            .skip(1)
            .filter_map(|rest| rest.split([' ', '`']).next())
            .map(str::to_owned)
            .collect();
        let added: BTreeSet<_> = lists(&manifest, "add").into_iter().flatten().collect();
        assert_eq!(added, wanted, "{name}");
        let is_privileged = manifest.contains("privileged: true, ");
        assert_eq!(is_privileged, row.contains("--privileged"), "{name}");
        // All others are dropped.
        let dropped: Vec<_> = lists(&manifest, "drop").into_iter().flatten().collect();
        let expected: &[&str] = if is_privileged { &[] } else { &["ALL"] };
        assert_eq!(dropped, expected, "{name}");
    }
}

#[test]
fn the_configuration_of_the_relay_is_valid() {
    let (_, manifest) = manifests()
        .into_iter()
        .find(|(name, _)| name == "relay")
        .unwrap();
    let (_, rest) = manifest.split_once("  taut.toml: |\n").unwrap();
    let (text, _) = rest.split_once("---\n").unwrap();
    Config::parse(text, Path::new("relay.yaml")).unwrap();
}
