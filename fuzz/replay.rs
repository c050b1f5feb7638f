//! Replays the inputs in `fuzz/seeds`: a module of the unit tests of each crate that has fuzz targets.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The crates whose unit tests call [`replay`].
const CRATES: [&str; 3] = ["taut_dns", "taut_mesh", "taut_observe"];

/// A fuzz target's name and function.
pub(crate) type Target<'a> = (&'a str, fn(&[u8]));

/// Calls each fuzz target of the crate `of` with every file of `fuzz/seeds/TARGET`.
///
/// # Panics
/// If `targets` is not what `fuzz/fuzz_targets` has for this crate, if one has no seeds, or if a target panics.
pub(crate) fn replay(of: &str, targets: &[Target<'_>]) {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let mut there = BTreeSet::new();
    for source in files(&fuzz.join("fuzz_targets")) {
        let text = fs::read_to_string(&source).expect("a fuzz target");
        let calls = |name: &&str| text.contains(&format!("{name}::fuzzing::"));
        let called = CRATES.into_iter().find(calls);
        let called = called.unwrap_or_else(|| panic!("{source:?} is of none of {CRATES:?}"));
        if called == of {
            let name = source.file_stem().expect("a name");
            there.insert(name.to_string_lossy().into_owned());
        }
    }
    let known: BTreeSet<_> = targets.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(there, known, "fuzz/fuzz_targets, and the targets replayed");
    for (name, target) in targets {
        let seeds = files(&fuzz.join("seeds").join(name));
        assert!(!seeds.is_empty(), "fuzz/seeds/{name} has no file");
        for seed in seeds {
            // Shown if the target panics.
            println!("{}", seed.display());
            target(&fs::read(&seed).expect("a seed"));
        }
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder);
    let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    paths
}
