//! The choices of automatic routes from one start to the next, as `routes_file` has them. Pure.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use taut_mesh::auto::{MAX_WAYS, Predicted};
use taut_mesh::hello::Target;
use taut_mesh::members::MemberName;

/// The largest file that is read, in bytes.
pub(super) const MAX_FILE: u64 = 256 << 10;

/// The largest number of destinations that are read. A relay has at most 16 with automatic routes.
const MAX_DESTINATIONS: usize = 64;

/// The routes to one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) to: Target,
    /// Whether sessions may take the direct path.
    pub(super) direct: bool,
    /// The routes, the choice first.
    pub(super) routes: Vec<Predicted>,
}

#[derive(Deserialize, Serialize)]
struct Document {
    destinations: Vec<Entry>,
}

#[derive(Deserialize, Serialize)]
struct Entry {
    to: String,
    direct: bool,
    routes: Vec<Route>,
}

#[derive(Deserialize, Serialize)]
struct Route {
    relays: Vec<String>,
    first_byte_ms: f64,
}

/// Returns the text of the file.
pub(super) fn encode(all: &[Kept]) -> String {
    let route = |route: &Predicted| Route {
        relays: route.relays.iter().map(ToString::to_string).collect(),
        first_byte_ms: route.first_byte.as_secs_f64() * 1e3,
    };
    let entry = |kept: &Kept| Entry {
        to: kept.to.to_string(),
        direct: kept.direct,
        routes: kept.routes.iter().map(route).collect(),
    };
    let document = Document {
        destinations: all.iter().map(entry).collect(),
    };
    // Strings and finite numbers can always be written.
    serde_json::to_string(&document).unwrap_or_default()
}

/// Reads the text of the file. Entries that no relay writes are left out.
pub(super) fn decode(text: &str) -> Vec<Kept> {
    let Ok(document) = serde_json::from_str::<Document>(text) else {
        return Vec::new();
    };
    let route = |route: Route| {
        let relays = route.relays.iter().map(|name| name.parse::<MemberName>());
        Some(Predicted {
            relays: relays.collect::<Result<_, _>>().ok()?,
            first_byte: Duration::try_from_secs_f64(route.first_byte_ms / 1e3).ok()?,
        })
    };
    let kept = |entry: Entry| {
        Some(Kept {
            to: entry.to.parse().ok()?,
            direct: entry.direct,
            // The direct path is one more.
            routes: entry
                .routes
                .into_iter()
                .take(MAX_WAYS + 1)
                .map(route)
                .collect::<Option<_>>()?,
        })
    };
    let destinations = document.destinations.into_iter().take(MAX_DESTINATIONS);
    destinations.filter_map(kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(n: u16, relays: &[&[&str]]) -> Kept {
        let route = |names: &&[&str]| Predicted {
            relays: names.iter().map(|name| name.parse().unwrap()).collect(),
            first_byte: Duration::from_millis(40),
        };
        Kept {
            to: format!("192.0.2.1:{n}").parse().unwrap(),
            direct: true,
            routes: relays.iter().map(route).collect(),
        }
    }

    #[test]
    fn routes_are_read_as_they_were_written() {
        let all = [kept(80, &[&["mid", "far"], &[]]), kept(443, &[&["far"]])];
        assert_eq!(decode(&encode(&all)), all);
    }

    #[test]
    fn destinations_with_a_mistake_are_left_out_and_the_others_stay() {
        let text = encode(&[kept(80, &[&["mid"]]), kept(443, &[&["far"]])]);
        let wrong = text.replace("mid", "m i d");
        assert_eq!(decode(&wrong), [kept(443, &[&["far"]])]);
        let wrong = text.replace("192.0.2.1:80", "nowhere");
        assert_eq!(decode(&wrong), [kept(443, &[&["far"]])]);
        assert_eq!(decode(&text[..text.len() / 2]), []);
        assert_eq!(decode(&text.replace("40.0", "-40.0")), []);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_harm(text in ".{0,400}") {
            let read = decode(&text);
            prop_assert!(read.len() <= MAX_DESTINATIONS);
        }
    }
}
