//! The metrics of every job as it runs: the page of the reference, and a real Prometheus that evaluates the dashboards and
//! the alerts in packaging/.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use taut_sys_testing::skip::has_programs;

use crate::jobs::{JOBS, Jobs, PATIENCE, until};

/// The port of Prometheus.
const PROMETHEUS: u16 = 9090;

/// Asks Prometheus.
fn ask(jobs: &Jobs, path: &str) -> Option<Value> {
    let answer: Value = serde_json::from_str(&jobs.get(PROMETHEUS, path)?).ok()?;
    Some(answer["data"].clone()).filter(|_| answer["status"] == "success")
}

/// A metric as its job describes it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Described {
    name: String,
    kind: String,
    help: String,
}

/// Returns the metrics of an exposition.
fn described(text: &str) -> Vec<Described> {
    let mut found: Vec<Described> = Vec::new();
    for line in text.lines() {
        let line = line
            .strip_prefix("# ")
            .and_then(|line| line.split_once(' '));
        match line.and_then(|(what, rest)| Some((what, rest.split_once(' ')?))) {
            Some(("HELP", (name, help))) => found.push(Described {
                name: name.to_owned(),
                kind: String::new(),
                help: help.trim_end_matches('.').to_owned(),
            }),
            Some(("TYPE", (name, kind))) => {
                let metric = found.iter_mut().find(|metric| metric.name == name);
                if let Some(metric) = metric {
                    kind.clone_into(&mut metric.kind);
                    // In the text format of taut guest the name has it.
                    if kind == "counter" && !name.ends_with("_total") {
                        metric.name += "_total";
                    }
                }
            }
            _ => {}
        }
    }
    found
}

const HEAD: &str = "\
# Metrics

Every metric that a job exports (OpenMetrics, at `/metrics` of the address of `metrics`). The page of the job explains the labels and their
values; [Dashboards and alerts](../dashboards.md) use them. Those of `taut guest`, which is no process, are what `taut guest status --prometheus` prints. A histogram `NAME`
has the series `NAME_bucket`, `NAME_sum` and `NAME_count`. This page is written from running jobs (`make reference`).
";

#[test]
fn the_page_of_metrics_says_what_the_jobs_export() {
    let Some(jobs) = Jobs::new("page") else {
        return;
    };
    let mut sections = BTreeMap::<_, BTreeMap<_, _>>::new();
    for (job, port, page) in JOBS {
        let text = jobs.get(port, "/metrics").unwrap();
        let section = sections
            .entry((job.replace("taut-", "taut ").replace('-', " "), page))
            .or_default();
        for metric in described(&text) {
            section.insert(metric.name.clone(), metric);
        }
    }
    let mut text = HEAD.to_owned();
    for ((job, page), metrics) in &sections {
        let _ = write!(
            text,
            "\n## {job}\n\n[{page}](../{page}#metrics)\n\n| name | kind | meaning |\n|---|---|---|\n"
        );
        for metric in metrics.values() {
            let Described { name, kind, help } = metric;
            let _ = writeln!(text, "| `{name}` | {kind} | {help} |");
        }
    }
    let page = root().join("docs/reference/metrics.md");
    if std::env::var_os("TAUT_WRITE_REFERENCE").is_some() {
        fs::write(&page, &text).unwrap();
    }
    let written = fs::read_to_string(&page).unwrap();
    for (written, exported) in written.lines().zip(text.lines()) {
        assert_eq!(
            written, exported,
            "docs/reference/metrics.md is stale; `make reference` writes it again"
        );
    }
    assert_eq!(written.lines().count(), text.lines().count());

    // A metric that no job here exports would be missing above.
    for name in names_in_source() {
        assert!(
            text.contains(&format!("`{name}")),
            "`{name}` is in no exposition of this test"
        );
    }
    every_metric_of_the_pages_exists(&text);
}

/// Returns the names of metrics in the source.
fn names_in_source() -> BTreeSet<String> {
    let is_name = |literal: &&str| {
        ["taut_relay_", "taut_snoop_"]
            .iter()
            .any(|job| literal.starts_with(job))
            && literal.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
    };
    let mut names = BTreeSet::new();
    for path in source_files() {
        if path.to_string_lossy().contains("metrics") {
            let text = fs::read_to_string(&path).unwrap();
            let literals = text.split('"').skip(1).step_by(2);
            names.extend(literals.filter(is_name).map(str::to_owned));
        }
    }
    assert!(names.len() > 50, "{names:?}");
    names
}

/// Fails if a page of the guide names a metric that is not in the reference.
fn every_metric_of_the_pages_exists(reference: &str) {
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for code in text.split('`').skip(1).step_by(2) {
            let name = code.split(['{', ' ']).next().unwrap_or_default();
            let jobs = ["relay", "snoop", "watch", "dns", "tune", "guest"]
                .map(|job| format!("taut_{job}_"));
            if jobs.iter().any(|job| name.starts_with(&**job)) && !name.ends_with('*') {
                let histogram = ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|end| name.strip_suffix(end));
                let known = [Some(name), histogram].into_iter().flatten();
                let is_known = known
                    .into_iter()
                    .any(|name| reference.contains(&format!("`{name}`")));
                assert!(is_known, "{}: no job exports `{name}`", path.display());
            }
        }
    }
}

#[test]
fn a_real_prometheus_evaluates_every_expression_of_the_dashboards_and_alerts() {
    if !has_programs(&["prometheus", "promtool"]) {
        return;
    }
    let Some(mut jobs) = Jobs::new("prometheus") else {
        return;
    };
    let packaging = root().join("packaging/prometheus");
    let rules = packaging.join("rules.yml");
    let checked = Command::new("promtool")
        .arg("check")
        .arg("rules")
        .arg(&rules)
        .output()
        .unwrap();
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );

    // The example, scraped more often, and with the second relay.
    let config = fs::read_to_string(packaging.join("prometheus.yml")).unwrap();
    let config = config
        .replace(
            "scrape_interval: 15s",
            "scrape_interval: 1s\n  evaluation_interval: 1s",
        )
        .replace("rules.yml", rules.to_str().unwrap())
        .replace(
            "\"127.0.0.1:9464\"",
            "\"127.0.0.1:9464\", \"127.0.0.1:9465\"",
        );
    fs::write(jobs.path("prometheus.yml"), config).unwrap();
    let mut prometheus = Command::new("prometheus");
    prometheus
        .arg(format!("--config.file={}", jobs.path("prometheus.yml")))
        .arg(format!("--storage.tsdb.path={}", jobs.path("data")))
        .arg(format!("--web.listen-address=127.0.0.1:{PROMETHEUS}"))
        .arg("--log.level=error");
    jobs.spawn(prometheus);
    let jobs_up = JOBS.len().to_string();
    until(
        "every job is scraped three times, and every rule was evaluated",
        || {
            let scraped = ask(
                &jobs,
                &query("count(count_over_time(up[5m]) > 2 and up == 1)"),
            );
            let scraped = scraped
                .is_some_and(|data| data["result"][0]["value"][1].as_str() == Some(&*jobs_up));
            let rules = ask(&jobs, "/api/v1/rules").unwrap_or_default();
            let rules = rules["groups"].as_array().cloned().unwrap_or_default();
            let rules: Vec<_> = rules
                .iter()
                .flat_map(|group| group["rules"].as_array().cloned())
                .flatten()
                .collect();
            for rule in &rules {
                assert_ne!(rule["health"], "err", "{rule}");
            }
            scraped && !rules.is_empty() && rules.iter().all(|rule| rule["health"] == "ok")
        },
    );

    // Alerts are silent where all is well, as are panels that show trouble alone.
    let is_silent = |place: &str| {
        place.starts_with("rules.yml") || SILENT.iter().any(|panel| place.starts_with(panel))
    };
    let expressions = expressions();
    let deadline = Instant::now() + PATIENCE;
    let mut empty = Vec::new();
    for (place, expression) in &expressions {
        let asked = expression
            .replace("$__rate_interval", "1m")
            .replace("$instance", ".*");
        let has_data = || {
            let answer = ask(&jobs, &query(&asked));
            let answer = answer
                .unwrap_or_else(|| panic!("{place}: Prometheus does not evaluate {expression}"));
            answer["result"]
                .as_array()
                .is_some_and(|all| !all.is_empty())
        };
        while !has_data() && !is_silent(place) {
            if Instant::now() > deadline {
                empty.push(format!("{place}: {expression}"));
                break;
            }
            jobs.have_sessions();
            // Prometheus asks once a second.
            thread::sleep(Duration::from_millis(200));
        }
    }
    assert!(
        empty.is_empty(),
        "panels without data:\n{}",
        empty.join("\n")
    );

    let values = |path: &str| -> BTreeSet<String> {
        let data = ask(&jobs, path).unwrap();
        let values = data.as_array().unwrap().iter();
        values
            .map(|value| value.as_str().unwrap().to_owned())
            .collect()
    };
    let metrics = values("/api/v1/label/__name__/values");
    let labels = values("/api/v1/labels");
    let described: BTreeSet<_> = JOBS
        .iter()
        .flat_map(|job| described(&jobs.get(job.1, "/metrics").unwrap()))
        .map(|metric| metric.name)
        .collect();
    let source = source();
    for (place, expression) in expressions {
        for name in words(&expression).filter(|word| word.starts_with("taut_")) {
            let family = ["_bucket", "_count", "_sum"]
                .iter()
                .find_map(|end| name.strip_suffix(end));
            let is_known = metrics.contains(name) || described.contains(family.unwrap_or(name));
            assert!(is_known, "{place}: no job exports {name}");
        }
        for label in labels_in(&expression) {
            assert!(
                labels.contains(&label) || LABELS_OF_TROUBLE.contains(&&*label),
                "{place}: no series has the label {label}"
            );
        }
        // Also of alerts, whose series appear with the first trouble.
        for (label, value) in values_in(&expression) {
            let seen = values(&format!("/api/v1/label/{label}/values"));
            let is_known = match value.strip_suffix(".*") {
                Some(start) => {
                    seen.iter().any(|v| v.starts_with(start)) || is_spelled(&source, start, "", "")
                }
                None => seen.contains(&value) || is_spelled(&source, &value, "\"", ",\n"),
            };
            assert!(is_known, "{place}: nothing exports {label}=\"{value}\"");
        }
    }
}

/// Labels of series that appear with the first trouble.
const LABELS_OF_TROUBLE: [&str; 2] = ["condition", "subject"];

/// Panels that show trouble alone, and what limits connections other than their applications.
const SILENT: [&str; 5] = [
    "taut-relay.json: What is broken",
    "taut-watch.json: Processes whose connections are limited most",
    "taut-watch.json: taut tune would help",
    "taut-watch.json: taut guest or taut snoop would help",
    "taut-watch.json: A relay would help",
];

/// Returns the expressions of the dashboards and the alerts, with their places.
fn expressions() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join("packaging/grafana")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let board: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        for panel in board["panels"].as_array().unwrap() {
            let title = panel["title"].as_str().unwrap();
            for target in panel["targets"].as_array().into_iter().flatten() {
                let expression = target["expr"].as_str().unwrap().to_owned();
                found.push((format!("{name}: {title}"), expression));
            }
        }
    }
    let rules = fs::read_to_string(root().join("packaging/prometheus/rules.yml")).unwrap();
    let mut alert = "";
    for line in rules.lines() {
        if let Some(name) = line.trim().strip_prefix("- alert: ") {
            alert = name;
        }
        if let Some(expression) = line.trim().strip_prefix("expr: ") {
            found.push((format!("rules.yml: {alert}"), expression.to_owned()));
        }
    }
    assert!(found.len() > 80, "{} expressions", found.len());
    found
}

/// Returns the words of an expression, outside of quotes.
fn words(expression: &str) -> impl Iterator<Item = &str> {
    let outside = expression.split('"').step_by(2);
    outside.flat_map(|part| part.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
}

/// Returns the names of labels that an expression selects or groups by.
fn labels_in(expression: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for by in expression.split("by (").skip(1) {
        let names = by.split(')').next().unwrap_or_default();
        found.extend(names.split(',').map(|name| name.trim().to_owned()));
    }
    for selector in expression.split('{').skip(1) {
        let selector = selector.split('}').next().unwrap_or_default();
        for matcher in selector.split("\",") {
            let name = matcher.split(['=', '!']).next().unwrap_or_default();
            found.insert(name.trim().to_owned());
        }
    }
    found
}

/// Returns the values that an expression selects, with their labels: each alternative of a pattern.
fn values_in(expression: &str) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for selector in expression.split('{').skip(1) {
        let selector = selector.split('}').next().unwrap_or_default();
        for matcher in selector.split("\",") {
            let Some((name, value)) = matcher.split_once('"') else {
                continue;
            };
            let name = name.trim().trim_end_matches(['=', '~', '!']);
            let values = value.trim_end_matches('"').split('|');
            // What a dashboard's user chooses.
            let values = values.filter(|value| !value.starts_with('$'));
            found.extend(values.map(|value| (name.to_owned(), value.to_owned())));
        }
    }
    found
}

/// Returns whether the source has a label's value: as a literal, or as a variant whose name is derived. These ends follow.
fn is_spelled(source: &str, value: &str, literal_end: &str, variant_end: &str) -> bool {
    let words = value.split(['-', '_']).filter_map(|word| {
        let (first, rest) = word.split_at_checked(1)?;
        Some(first.to_uppercase() + rest)
    });
    let variant: String = words.collect();
    source.contains(&format!("\"{value}{literal_end}"))
        || source.contains(&format!("\n    {variant}{variant_end}"))
}

/// Returns the source of the crates that export metrics.
fn source() -> String {
    let texts = source_files().into_iter().map(fs::read_to_string);
    texts.collect::<Result<_, _>>().unwrap()
}

/// Returns the files of that source.
fn source_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders: Vec<_> = ["relay", "snoop", "dns", "observe", "tune", "guest"]
        .map(|name| root().join("crates").join(name).join("src"))
        .into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files
}

/// Returns the path of a query.
fn query(expression: &str) -> String {
    let mut path = "/api/v1/query?query=".to_owned();
    for byte in expression.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => path.push(byte.into()),
            _ => path += &format!("%{byte:02X}"),
        }
    }
    path
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
