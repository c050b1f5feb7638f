//! Each promise of SPECIFICATION.md is held by what runs: a test of `make test`, or a step of `make test-all`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// What SPECIFICATION.md says instead of a test's name.
const NO_TEST: [&str; 2] = ["code review; no test", "reading: "];

#[test]
fn every_promise_is_held_by_a_test_of_make_test_or_a_step_of_make_test_all() {
    let (promises, holders) = (promises(), Holders::read());
    assert!(promises.len() > 40, "{} promises", promises.len());
    let mut wrong = Vec::new();
    for (place, held_by) in promises {
        let names = names_in(&held_by);
        if names.is_empty() && !NO_TEST.iter().any(|words| held_by.starts_with(words)) {
            wrong.push(format!("{place}: no test is named: {held_by}"));
        }
        let unknown = names.iter().filter(|name| holders.holder(name).is_none());
        wrong.extend(unknown.map(|name| {
            format!("{place}: `{name}` is neither in `make test` nor in `make test-all`")
        }));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_make_test_all_holds_has_passed_there() {
    let (record, holders) = (record(), Holders::read());
    let mut wrong = Vec::new();
    for (place, held_by) in promises() {
        for name in names_in(&held_by) {
            let holder = holders.holder(name);
            if !holder.is_some_and(|holder| has_passed(&holder, &record)) {
                wrong.push(format!(
                    "{place}: `{name}` has not passed in `make test-all`"
                ));
            }
        }
    }
    let hint = "run its step (scripts/test-all STEP) and commit test-all.json";
    assert!(wrong.is_empty(), "{}\n{hint}", wrong.join("\n"));
}

// === SPECIFICATION.md ===

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the place of each promise and its cell "held by".
fn promises() -> Vec<(String, String)> {
    let text = read("SPECIFICATION.md");
    let rows = text.lines().enumerate().filter_map(|(at, line)| {
        let (_, held_by) = line.strip_suffix(" |")?.rsplit_once("| ")?;
        (held_by != "held by").then(|| (format!("SPECIFICATION.md:{}", at + 1), held_by.to_owned()))
    });
    rows.collect()
}

/// Returns what is in backquotes, without options of a command.
fn names_in(cell: &str) -> Vec<&str> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted.filter(|name| !name.starts_with("--")).collect()
}

// === What runs ===

#[derive(Debug, PartialEq)]
enum Holder {
    MakeTest,
    /// One of these tests in a module `long`.
    Long(Vec<String>),
    /// A step of scripts/test-all.
    Step(String),
}

struct Holders {
    tests: Tests,
    /// The files that have tests of `make test`.
    files: BTreeSet<PathBuf>,
    /// The steps of scripts/test-all.
    steps: BTreeSet<String>,
    /// scripts/test.
    make_test: String,
}

/// The tests of the sources, by name.
#[derive(Default)]
struct Tests {
    usual: BTreeSet<String>,
    /// Those that are ignored in a module `long`, with their body.
    long: BTreeMap<String, String>,
}

impl Holders {
    fn read() -> Self {
        let (mut tests, mut files) = (Tests::default(), BTreeSet::new());
        let mut folders = vec![root().join("crates"), root().join("lab")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|end| end == "rs") {
                    let below = path.strip_prefix(root()).unwrap();
                    let found = tests_in(below, &fs::read_to_string(&path).unwrap());
                    if !found.usual.is_empty() {
                        files.insert(below.to_owned());
                    }
                    tests.usual.extend(found.usual);
                    tests.long.extend(found.long);
                }
            }
        }
        let script = read("scripts/test-all");
        let steps = script.lines().skip_while(|line| *line != "STEPS = {");
        let steps = steps.take_while(|line| *line != "}");
        let steps = steps.filter_map(|line| Some(line.strip_prefix("    \"")?.split_once('"')?.0));
        Self {
            tests,
            files,
            steps: steps.map(str::to_owned).collect(),
            make_test: read("scripts/test"),
        }
    }

    fn holder(&self, name: &str) -> Option<Holder> {
        let step = |name: &str| {
            let is_step = self.steps.contains(name);
            is_step.then(|| Holder::Step(name.to_owned()))
        };
        if let Some(target) = name.strip_prefix("make ") {
            let mut words = self.make_test.split_whitespace();
            return if words.any(|word| word == target) {
                Some(Holder::MakeTest)
            } else {
                step(target)
            };
        }
        if let Some(experiment) = name.strip_prefix("taut lab run ") {
            let text = format!("\"{experiment}\"");
            let measure = self.tests.long.iter().filter(|test| test.1.contains(&text));
            let names: Vec<_> = measure.map(|test| test.0.clone()).collect();
            return (!names.is_empty()).then_some(Holder::Long(names));
        }
        if self.tests.usual.contains(name) || self.files.iter().any(|file| file.starts_with(name)) {
            return Some(Holder::MakeTest);
        }
        if self.tests.long.contains_key(name) {
            return Some(Holder::Long(vec![name.to_owned()]));
        }
        let target = root().join(format!("fuzz/fuzz_targets/{name}.rs"));
        target.exists().then(|| step("fuzz"))?
    }
}

// === What has run ===

/// Returns the outcomes of the last runs of scripts/test-all, by step.
fn record() -> Value {
    serde_json::from_str(&read("test-all.json")).expect("what scripts/test-all has written")
}

/// Returns whether a test of `make test-all` has passed. Those of `make test` pass or fail where this one does.
fn has_passed(holder: &Holder, record: &Value) -> bool {
    let has_date = |step: &Value| step["date"].as_str().is_some_and(|date| date.len() == 10);
    match holder {
        Holder::MakeTest => true,
        Holder::Step(step) => has_date(&record[step]) && record[step]["result"] == "passed",
        Holder::Long(tests) => {
            let passed = record["long"]["tests"].as_array().into_iter().flatten();
            let mut passed = passed.filter_map(|path| path.as_str()?.rsplit("::").next());
            has_date(&record["long"]) && passed.any(|name| tests.iter().any(|test| test == name))
        }
    }
}

#[test]
fn only_a_dated_success_is_one() {
    let record = serde_json::json!({
        "fuzz": {"result": "passed", "date": "2026-11-29"},
        "msrv": {"result": "skipped", "date": "2026-11-29"},
        "test-guest": {"result": "passed"},
        "long": {"result": "failed", "date": "2026-11-29", "tests": ["long::a_soak"]},
    });
    let passed = |holder| has_passed(&holder, &record);
    assert!(passed(Holder::Step("fuzz".into())));
    for step in ["msrv", "test-guest", "test-old-kernel"] {
        assert!(!passed(Holder::Step(step.into())), "{step}");
    }
    // Other tests of the step may have failed.
    assert!(passed(Holder::Long(vec!["b".into(), "a_soak".into()])));
    assert!(!passed(Holder::Long(vec!["soak".into()])));
}

/// Returns the tests of a source. It is formatted, so a block ends where its indent does.
fn tests_in(path: &Path, source: &str) -> Tests {
    let is_long = path.with_extension("").iter().any(|part| part == "long");
    // The end of the module `long` that a line is in.
    let mut end_of_long = None;
    let mut attributes = Vec::new();
    let mut tests = Tests::default();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        let end = format!("{}}}", &line[..line.len() - code.len()]);
        if code == "mod long {" {
            end_of_long = Some(end);
        } else if end_of_long.as_deref() == Some(line) {
            end_of_long = None;
        } else if code.starts_with("#[") {
            attributes.push(code);
            continue;
        } else if let Some((_, name)) = code.split_once("fn ")
            && let Some(name) = name.split(['(', '<']).next()
        {
            let has = |start| attributes.iter().any(|text: &&str| text.starts_with(start));
            let is_test = has("#[test]") || has("#[tokio::test") || is_case(source, name);
            if is_test && !has("#[ignore") {
                tests.usual.insert(name.to_owned());
            } else if is_test && (is_long || end_of_long.is_some()) {
                let body = lines.by_ref().take_while(|line| *line != end);
                tests.long.insert(name.to_owned(), body.collect());
            }
        }
        // A test that a macro defines.
        if let Some((name, _)) = code.split_once(" => \"")
            && source.contains("fn $test()")
        {
            tests.usual.insert(name.to_owned());
        }
        attributes.clear();
    }
    tests
}

/// Returns whether a function is in the list of cases of a test with a `main` of its own.
fn is_case(source: &str, name: &str) -> bool {
    let entry = format!("{name},");
    source.contains("fn main()") && source.lines().any(|line| line.trim() == entry)
}

#[test]
fn a_test_that_is_ignored_holds_nothing_outside_of_long() {
    let source = "
#[test]
fn usual() {}
#[test]
#[ignore = \"a child\"]
fn ignored() {
    child();
}
mod long {
    #[test]
    #[ignore = \"minutes\"]
    fn slow() {
        once(\"soak\");
    }
}
#[test]
#[ignore = \"minutes\"]
fn after() {
    once(\"after\");
}
fn helper() {}
macro_rules! smoke { ($($test:ident => $name:literal { })*) => { $(#[test] fn $test() {})* }; }
smoke! {
    small => \"soak\" {}
}
";
    let found = tests_in(Path::new("crates/a/tests/a/main.rs"), source);
    assert_eq!(found.usual, ["small".to_owned(), "usual".to_owned()].into());
    let long: Vec<_> = found.long.into_iter().collect();
    assert_eq!(long, [("slow".into(), "        once(\"soak\");".into())]);
    let found = tests_in(Path::new("crates/a/tests/a/long.rs"), source);
    assert_eq!(
        found.long.into_keys().collect::<Vec<_>>(),
        ["after", "ignored", "slow"]
    );
}
