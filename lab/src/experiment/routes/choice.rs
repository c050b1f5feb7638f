//! The planner's choice, as `taut mesh plan --json` prints it.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::option::Route;
use super::sites::{self, Pair};

/// The addresses of the client and the server in the planner's file (RFC 5737). The world has other
/// addresses. It is built after the planner has chosen, because it needs links for the chosen
/// route.
const CLIENT: &str = "192.0.2.1";
const SERVER: &str = "198.51.100.1";

/// The planner's prediction of a route.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Predicted {
    pub(super) route: Route,
    /// The time to the first byte and to the last, in seconds.
    pub(super) first_byte: f64,
    pub(super) finish: f64,
}

#[derive(Deserialize)]
struct Plan {
    routes: Vec<Line>,
}

#[derive(Deserialize)]
struct Line {
    relays: Vec<String>,
    first_byte_ms: f64,
    finish_ms: f64,
}

/// Returns the planner's routes between the ends of a pair, the choice first.
///
/// # Errors
/// If `taut mesh plan` fails, or prints what is not expected.
pub(super) fn routes(taut: &Path, pair: Pair, sites: usize) -> io::Result<Vec<Predicted>> {
    let mut table = tempfile::NamedTempFile::new()?;
    table.write_all(pair.table(sites, CLIENT, SERVER).as_bytes())?;
    let output = Command::new(taut)
        .args([
            "mesh", "plan", "--json", "--from", CLIENT, "--to", SERVER, "--rtt",
        ])
        .arg(table.path())
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(said.trim().to_owned()));
    }
    read(&output.stdout, sites)
}

fn read(json: &[u8], sites: usize) -> io::Result<Vec<Predicted>> {
    let plan: Plan = serde_json::from_slice(json)?;
    let site = |name: &String| {
        (0..sites)
            .find(|&site| sites::name(site) == name)
            .ok_or_else(|| io::Error::other(format!("the plan names {name}, which is no relay")))
    };
    let predicted = plan.routes.iter().map(|line| {
        let route = line.relays.iter().map(site);
        Ok(Predicted {
            route: route.collect::<io::Result<_>>()?,
            first_byte: line.first_byte_ms / 1e3,
            finish: line.finish_ms / 1e3,
        })
    });
    let predicted: Vec<Predicted> = predicted.collect::<io::Result<_>>()?;
    match predicted.is_empty() {
        true => Err(io::Error::other("the plan has no route")),
        false => Ok(predicted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plans_json_is_read() {
        let json = br#"{"routes": [
            {"relays": ["london", "sydney"], "first_byte_ms": 300.5, "finish_ms": 360, "kind": "baseline"},
            {"relays": [], "first_byte_ms": 700, "finish_ms": 2800}]}"#;
        let routes = read(json, 7).expect("a plan");
        assert_eq!(routes[0].route, [2, 5]);
        assert_eq!((routes[0].first_byte, routes[1].finish), (0.3005, 2.8));
        assert!(routes[1].route.is_empty());
    }

    #[test]
    fn an_unknown_relay_and_an_empty_plan_are_errors() {
        let json = br#"{"routes": [{"relays": ["mars"], "first_byte_ms": 1, "finish_ms": 2}]}"#;
        assert!(
            read(json, 7)
                .expect_err("no such relay")
                .to_string()
                .contains("mars")
        );
        assert!(read(br#"{"routes": []}"#, 7).is_err());
    }
}
