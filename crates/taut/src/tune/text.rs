//! Renders reports as lines of text or JSON.

use taut_observe::namespaces::{OWN, in_words};
use taut_observe::versioned::Versioned;
use taut_tune::report::{ChangeReport, Outcome};

/// Returns a line of JSON for each report; or a text for each, in which equal changes of several
/// namespaces are one.
pub(super) fn lines(reports: &[ChangeReport], json: bool) -> serde_json::Result<Vec<String>> {
    if json {
        let text = |report| serde_json::to_string(&Versioned::new(report));
        return reports.iter().map(text).collect();
    }
    let mut groups: Vec<(&ChangeReport, Vec<&str>)> = Vec::new();
    for report in reports {
        let is_same = |(other, _): &&mut (&ChangeReport, Vec<&str>)| {
            report.connection.is_none()
                && ChangeReport {
                    netns: report.netns.clone(),
                    ..(*other).clone()
                } == *report
        };
        match groups.iter_mut().find(is_same) {
            Some((_, namespaces)) => namespaces.push(&report.netns),
            None => groups.push((report, vec![&report.netns])),
        }
    }
    let line = |(report, namespaces): &(&ChangeReport, Vec<&str>)| line(report, namespaces);
    Ok(groups.iter().map(line).collect())
}

/// The maximum number of namespaces that a line names.
const NAMED: usize = 3;

/// Returns the names of the first namespaces, and the number of the others.
fn named(namespaces: &[&str]) -> String {
    let name = |name: &&str| match *name {
        OWN => "this machine".to_owned(),
        name => in_words(name),
    };
    let names: Vec<_> = namespaces.iter().take(NAMED).map(name).collect();
    match namespaces.len().saturating_sub(NAMED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

fn line(report: &ChangeReport, namespaces: &[&str]) -> String {
    let subject = match &report.connection {
        None => named(namespaces),
        Some(connection) => {
            let process = match &connection.process {
                Some((name, pid)) => format!(" ({name}/{pid})"),
                None => String::new(),
            };
            format!("{} -> {}{process}", connection.local, connection.remote)
        }
    };
    let outcome = match &report.outcome {
        Outcome::Advised => "would change".to_owned(),
        Outcome::OutOfReach => "only a new connection helps".to_owned(),
        Outcome::Applied => "changed".to_owned(),
        Outcome::Gone => "not changed, because it has ended".to_owned(),
        Outcome::NoOwner => {
            "not changed, because no process is known to have the socket".to_owned()
        }
        Outcome::Failed(why) => format!("not changed ({why})"),
    };
    format!(
        "{subject}: {outcome}: {}\n    why: {}\n    expected: {}",
        report.change, report.reason, report.expected
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_changes_of_several_namespaces_are_one_line() {
        let report = |netns: &str, change: &str| ChangeReport {
            connection: None,
            netns: netns.to_owned(),
            change: change.to_owned(),
            reason: "r".to_owned(),
            expected: "e".to_owned(),
            outcome: Outcome::Advised,
        };
        let reports = ["-", "a", "b", "c", "d"].map(|netns| report(netns, "x: 1 -> 2"));
        let mut reports = reports.to_vec();
        reports.insert(1, report("-", "y: 1 -> 2"));
        let texts = lines(&reports, false).unwrap();
        assert_eq!(texts.len(), 2);
        assert!(
            texts[0]
                .starts_with("this machine, namespace a, namespace b and 2 more: would change: x"),
            "{texts:?}"
        );
        assert!(
            texts[1].starts_with("this machine: would change: y"),
            "{texts:?}"
        );
        assert_eq!(lines(&reports, true).unwrap().len(), 6);
    }
}
