//! Where `unsafe` is, and how often: whoever adds one meets this list in the review.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Uses of `unsafe` by file below `crates`.
const INVENTORY: &[(&str, usize)] = &[
    ("sys/testing/src/faults.rs", 4),
    ("sys/src/activation.rs", 2),
    ("sys/src/bpf.rs", 7),
    ("sys/src/bpf/tc.rs", 4),
    ("sys/src/child.rs", 1),
    ("sys/src/enclosure.rs", 3),
    ("sys/src/interface.rs", 6),
    ("sys/src/kernel_tls.rs", 6),
    ("sys/src/netns.rs", 1),
    ("sys/src/packet.rs", 4),
    ("sys/src/pidfd_socket.rs", 1),
    ("sys/src/probe/bpf.rs", 7),
    ("sys/src/probe/link.rs", 3),
    ("sys/src/probe/network.rs", 1),
    ("sys/src/probe/process.rs", 2),
    ("sys/src/probe/socket.rs", 2),
    ("sys/src/raw_sockopt.rs", 2),
    ("sys/src/sandbox.rs", 1),
    ("sys/src/schedule.rs", 2),
    ("sys/src/socket.rs", 1),
    ("sys/src/socket/receiver.rs", 1),
    ("sys/src/tap.rs", 5),
    ("sys/src/tcp_info.rs", 1),
    ("sys/testing/src/network.rs", 3),
    ("sys/testing/src/stalled_receive.rs", 8),
];

#[test]
fn unsafe_code_is_in_the_files_of_the_inventory_alone() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let crates = crates.expect("the folder of all crates");
    let mut found = BTreeMap::new();
    let mut folders = vec![crates.to_owned(), crates.join("../lab")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let uses = uses_in(&fs::read_to_string(&path).expect("a source"));
                if uses > 0 {
                    found.insert(below(crates, &path), uses);
                }
            }
        }
    }
    let known: BTreeMap<_, _> = INVENTORY
        .iter()
        .map(|&(path, uses)| (PathBuf::from(path), uses))
        .collect();
    assert_eq!(found, known, "found is on the left; update INVENTORY");
    let outside = known.keys().find(|path| !path.starts_with("sys"));
    assert_eq!(outside, None, "unsafe code belongs in crates/sys");
}

fn below(crates: &Path, path: &Path) -> PathBuf {
    path.strip_prefix(crates).expect("below it").to_owned()
}

/// Returns the number of blocks, functions, implementations and foreign items that are unsafe.
fn uses_in(source: &str) -> usize {
    let code = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let words = code.flat_map(|line| line.split_whitespace().collect::<Vec<_>>());
    let words: Vec<_> = words.collect();
    let begins = |next: &str| {
        ["{", "fn", "impl", "extern", "trait"]
            .iter()
            .any(|&word| next == word || (word == "{" && next.starts_with('{')))
    };
    words
        .windows(2)
        .filter(|pair| pair[0].ends_with("unsafe") && begins(pair[1]))
        .count()
}

#[test]
fn each_kind_of_unsafe_code_is_counted() {
    // Not the word itself: this file is searched, too.
    let source =
        "let a = X { f() };\nX fn g() {}\nX impl Send for A {}\n// X {\ndrop(X {\nh() });\n\
                  #[forbid(X_code)]"
            .replace('X', "unsafe");
    assert_eq!(uses_in(&source), 4);
}
