//! No circle of imports between the modules of a crate.
//!
//! The test reads the sources: `use` items and paths that begin with `crate`, `super`, `self` or a child
//! module. Tests in the sources do not count, nor does what a module takes from the modules around it
//! (`use super::Error`): a parent and its child may know each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

/// The path of a module in its crate: `["net", "addr"]`. The crate's root is empty.
type Module = Vec<String>;

/// Imports of a crate: from a module, to a module, and the path that says so.
type Imports = BTreeMap<Module, BTreeMap<Module, String>>;

#[test]
fn no_room_of_the_relay_is_part_of_a_circle_of_imports() {
    let mut rooms = Imports::new();
    for (from, imports) in imports_of(&crates().join("relay")) {
        for (to, path) in imports {
            let (from, to) = (from[..from.len().min(1)].to_vec(), to[..1].to_vec());
            if !from.is_empty() && from != to {
                rooms.entry(from).or_default().entry(to).or_insert(path);
            }
        }
    }
    assert!(rooms.len() > 10, "the rooms were not found: {rooms:?}");
    if let Some(circle) = circle(&rooms) {
        panic!("relay: rooms import one another in a circle:\n{circle}");
    }
}

#[test]
fn no_modules_of_a_crate_import_one_another_in_a_circle() {
    let all = fs::read_dir(crates()).expect("the crates");
    let circles: Vec<_> = all
        .map(|entry| entry.expect("a crate").path())
        .chain([crates().join("../lab")])
        .filter(|path| path.join("src").is_dir())
        .filter_map(|path| {
            let circle = circle(&imports_of(&path))?;
            Some(format!("{}:\n{circle}", path.display()))
        })
        .collect();
    assert!(circles.is_empty(), "{}", circles.join("\n"));
}

/// The root names what it starts, so whoever imports from it imports upwards. So do the modules of `experiment` that import from
/// the list of experiments, if it stands among them.
#[test]
fn no_room_of_the_relay_the_lab_and_the_commands_imports_upwards() {
    let room = |module: &Module| {
        let depth = match module.first().is_some_and(|room| room == "experiment") {
            true => 2,
            false => 1,
        };
        module[..module.len().min(depth)].to_vec()
    };
    for name in ["relay", "taut", "../lab"] {
        let mut rooms = Imports::new();
        for (from, imports) in imports_with_parents_of(&crates().join(name)) {
            for (to, path) in imports {
                let (from, to) = (room(&from), room(&to));
                if from != to {
                    rooms.entry(from).or_default().entry(to).or_insert(path);
                }
            }
        }
        if let Some(circle) = circle(&rooms) {
            panic!("{name}: a room imports upwards:\n{circle}");
        }
    }
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the folder of all crates")
        .to_owned()
}

// === graph ===

/// Returns a shortest circle in words, one import a line.
fn circle(imports: &Imports) -> Option<String> {
    let circle = imports
        .keys()
        .filter_map(|start| shortest_way_back(imports, start))
        .min_by_key(Vec::len)?;
    let lines = circle
        .iter()
        .zip(circle.iter().cycle().skip(1))
        .map(|(from, to)| {
            let path = &imports[from][to];
            format!("  {} -> {} ({path})\n", from.join("::"), to.join("::"))
        });
    Some(lines.collect())
}

fn shortest_way_back(imports: &Imports, start: &Module) -> Option<Vec<Module>> {
    let mut reached_from = BTreeMap::<&Module, &Module>::new();
    let mut queue = VecDeque::from([start]);
    while let Some(module) = queue.pop_front() {
        for next in imports.get(module).into_iter().flat_map(BTreeMap::keys) {
            if next == start {
                let mut way = vec![module.clone()];
                let mut at = module;
                while at != start {
                    at = reached_from[at];
                    way.push(at.clone());
                }
                way.reverse();
                return Some(way);
            }
            reached_from.entry(next).or_insert_with(|| {
                queue.push_back(next);
                module
            });
        }
    }
    None
}

// === sources ===

/// Returns the imports of a crate, without those of a module from the modules around it.
fn imports_of(krate: &Path) -> Imports {
    let mut imports = imports_with_parents_of(krate);
    for (module, targets) in &mut imports {
        targets.retain(|target, _| !module.starts_with(target));
    }
    imports
}

fn imports_with_parents_of(krate: &Path) -> Imports {
    let mut sources = BTreeMap::new();
    read_sources(&krate.join("src"), &mut Vec::new(), &mut sources);
    for test in sources
        .values()
        .flat_map(|s| s.tests.clone())
        .collect::<Vec<_>>()
    {
        sources.retain(|module, _| !module.starts_with(&test));
    }
    let modules: BTreeSet<_> = sources.keys().cloned().collect();
    let mut imports = Imports::new();
    for (module, source) in &sources {
        for path in &source.paths {
            let Some(target) = resolve(module, path, &modules) else {
                continue;
            };
            if *module != target {
                let targets = imports.entry(module.clone()).or_default();
                targets.entry(target).or_insert_with(|| path.join("::"));
            }
        }
    }
    imports
}

/// What a file says.
#[derive(Default)]
struct Source {
    paths: Vec<Vec<String>>,
    /// Modules that are compiled for tests alone.
    tests: Vec<Module>,
}

/// Reads the files of a folder, which is the folder of `module`.
fn read_sources(folder: &Path, module: &mut Module, into: &mut BTreeMap<Module, Source>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("a file").path();
        let stem = path
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            module.push(stem);
            read_sources(&path, module, into);
            module.pop();
        } else if path.extension().is_some_and(|e| e == "rs") {
            let mut of_file = module.clone();
            if !matches!(stem.as_str(), "mod" | "lib" | "main") {
                of_file.push(stem);
            }
            let text = fs::read_to_string(&path).expect("a source");
            let source = into.entry(of_file.clone()).or_default();
            read_source(&tokens(&text), &of_file, source);
        }
    }
}

fn read_source(tokens: &[String], module: &Module, source: &mut Source) {
    const TESTS: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut at = 0;
    while at < tokens.len() {
        let rest = &tokens[at..];
        if rest.starts_with(&TESTS.map(String::from)) {
            at += TESTS.len();
            if let Some(i) = tokens[at..].iter().take(8).position(|t| t == "mod") {
                let [name, next, ..] = &tokens[at + i + 1..] else {
                    return;
                };
                source
                    .tests
                    .push([module.as_slice(), std::slice::from_ref(name)].concat());
                at += i + 2;
                if next == "{" {
                    at += end_of_block(&tokens[at..]);
                }
            }
        } else if rest[0] == "use" {
            at += 1 + read_use(&rest[1..], &mut Vec::new(), &mut source.paths);
        } else if is_name(&rest[0]) {
            let mut path = vec![rest[0].clone()];
            let mut steps = rest[1..].chunks_exact(2);
            while let Some([colons, name]) = steps.next() {
                if colons != "::" || !is_name(name) {
                    break;
                }
                path.push(name.clone());
            }
            at += 2 * path.len() - 1;
            if path.len() > 1 {
                source.paths.push(path);
            }
        } else {
            at += 1;
        }
    }
}

/// Reads a tree of a `use` item and returns how many tokens it takes.
fn read_use(tokens: &[String], before: &mut Vec<String>, paths: &mut Vec<Vec<String>>) -> usize {
    let depth = before.len();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.as_str() {
            "::" => at += 1,
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|t| t != "}") {
                    at += read_use(&tokens[at..], before, paths);
                    at += usize::from(tokens.get(at).is_some_and(|t| t == ","));
                }
                at += 1;
                before.truncate(depth);
                return at;
            }
            name if is_name(name) && name != "as" => {
                before.push(token.clone());
                at += 1;
            }
            _ => break,
        }
    }
    paths.push(before.clone());
    before.truncate(depth);
    // A new name, or `*`.
    at + tokens[at..]
        .iter()
        .take_while(|t| ![",", "}", ";"].contains(&t.as_str()))
        .count()
}

/// Returns the module that a path of `module` leads to, if it is one of the crate's.
fn resolve(module: &Module, path: &[String], modules: &BTreeSet<Module>) -> Option<Module> {
    let mut names = path.iter().peekable();
    let mut target = match names.peek()?.as_str() {
        "crate" => Module::new(),
        "self" | "super" => module.clone(),
        name => {
            let child = [module.as_slice(), &[name.to_owned()]].concat();
            return modules
                .contains(&child)
                .then(|| descend(child, &path[1..], modules));
        }
    };
    while let Some(name) = names.next_if(|n| ["crate", "self", "super"].contains(&n.as_str())) {
        if name == "super" {
            target.pop();
        }
    }
    let rest: Vec<_> = names.cloned().collect();
    Some(descend(target, &rest, modules))
}

fn descend(mut module: Module, names: &[String], modules: &BTreeSet<Module>) -> Module {
    for name in names {
        module.push(name.clone());
        if !modules.contains(&module) {
            module.pop();
            break;
        }
    }
    module
}

fn end_of_block(tokens: &[String]) -> usize {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return i + 1;
        }
    }
    tokens.len()
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Splits a source into names, `::` and single signs; comments and literals are left out.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            string_length(rest)
        } else if let Some(hashes) = raw_string_hashes(rest) {
            let end = format!("\"{}", "#".repeat(hashes));
            let open = hashes + 2;
            rest[open..]
                .find(&end)
                .map_or(rest.len(), |i| open + i + end.len())
        } else if let Some(len) = char_length(rest) {
            len
        } else if is_name(rest) {
            let len = rest
                .find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(rest.len());
            tokens.push(rest[..len].to_owned());
            len
        } else {
            let len = if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            if !first.is_whitespace() {
                tokens.push(rest[..len].to_owned());
            }
            len
        };
        rest = &rest[len..];
    }
    tokens
}

fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (i, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return i + 1,
            _ => {}
        }
    }
    text.len()
}

/// The number of `#` before the quote of a raw string.
fn raw_string_hashes(text: &str) -> Option<usize> {
    let after = text.strip_prefix('r')?;
    let quote = after.find(|c| c != '#')?;
    after[quote..].starts_with('"').then_some(quote)
}

/// The length of a character literal; `None` for a lifetime.
fn char_length(text: &str) -> Option<usize> {
    let mut chars = text.char_indices();
    if chars.next()?.1 != '\'' {
        return None;
    }
    match chars.next()?.1 {
        '\\' => text[3..].find('\'').map(|i| 3 + i + 1),
        _ => match chars.next()? {
            (i, '\'') => Some(i + 1),
            _ => None,
        },
    }
}
