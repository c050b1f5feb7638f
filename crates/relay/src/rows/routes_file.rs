//! Writes the routes in use to `routes_file`.

use std::convert::Infallible;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::kept::{Kept, encode};
use crate::kept_file::{self, NotReplaced};

/// The shortest interval between two times at which the file is written.
const EVERY: Duration = Duration::from_secs(10);

/// The time until the next attempt after the file could not be written.
const AFTER_FAILURE: Duration = Duration::from_secs(60);

/// The file, its routes, and those that are being written to it.
pub(super) struct RoutesFile {
    written: Vec<Kept>,
    /// The thread that writes, which returns whether it succeeded, and the routes that it writes.
    writer: Option<(JoinHandle<bool>, Vec<Kept>)>,
    next_at: Instant,
}

// === impl RoutesFile ===

impl RoutesFile {
    /// Returns a file whose routes are not known.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            written: Vec::new(),
            writer: None,
            next_at: now,
        }
    }

    /// Writes `kept` if the file has others, at most every [`EVERY`] unless this is the `last` call.
    pub(super) fn save(&mut self, path: &Path, kept: Vec<Kept>, now: Instant, last: bool) {
        if let Some((writer, its)) = self.writer.take_if(|(w, _)| last || w.is_finished()) {
            // A panic has been reported already.
            self.on_end(writer.join().unwrap_or(false), its, now);
        }
        let may = last || (self.writer.is_none() && now >= self.next_at);
        if kept.is_empty() || !may || have_same_routes(&kept, &self.written) {
            return;
        }
        self.next_at = now + EVERY;
        let text = encode(&kept);
        if last {
            let could = write(path, &text);
            return self.on_end(could, kept, now);
        }
        // In a thread of its own: on a slow disk, the thread that measures would miss pings.
        let thread = std::thread::Builder::new().name("relay-routes".into());
        let path = path.to_owned();
        match thread.spawn(move || write(&path, &text)) {
            Ok(writer) => self.writer = Some((writer, kept)),
            Err(error) => {
                tracing::warn!(%error, "relay.mesh.routes_file: cannot start a thread to write it; it is tried again")
            }
        }
    }

    fn on_end(&mut self, could: bool, kept: Vec<Kept>, now: Instant) {
        match could {
            true => self.written = kept,
            false => self.next_at = now + AFTER_FAILURE,
        }
    }
}

/// Returns whether both have the same routes to the same destinations. Their times do not count,
/// because they always change.
fn have_same_routes(a: &[Kept], b: &[Kept]) -> bool {
    let same_routes = |a: &Kept, b: &Kept| {
        let relays = |kept: &Kept| {
            kept.routes
                .iter()
                .map(|r| r.relays.clone())
                .collect::<Vec<_>>()
        };
        a.to == b.to && a.direct == b.direct && relays(a) == relays(b)
    };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_routes(a, b))
}

/// Returns whether the file was written.
fn write(path: &Path, text: &str) -> bool {
    match kept_file::write(path, text, || Ok::<_, Infallible>(())) {
        Ok(()) => true,
        Err(NotReplaced::Failed(why)) => {
            tracing::warn!("relay.mesh.routes_file: {why}");
            false
        }
        Err(NotReplaced::Refused(never)) => match never {},
    }
}

#[cfg(test)]
mod tests {
    use super::super::kept::decode;
    use super::*;
    use std::fs;
    use taut_mesh::auto::Predicted;

    fn kept(to: &str, first_byte: u64) -> Vec<Kept> {
        let route = Predicted {
            relays: vec!["mid".parse().unwrap()],
            first_byte: Duration::from_millis(first_byte),
        };
        vec![Kept {
            to: to.parse().unwrap(),
            direct: false,
            routes: vec![route],
        }]
    }

    #[test]
    fn routes_that_could_not_be_written_are_written_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/routes");
        fs::write(
            folder.path().join("new"),
            "a file in place of the directory",
        )
        .unwrap();
        let (now, routes) = (Instant::now(), kept("192.0.2.1:80", 40));
        let mut file = RoutesFile::new(now);
        file.save(&path, routes.clone(), now, true);
        assert!(!path.exists());
        fs::remove_file(folder.path().join("new")).unwrap();
        // Not at once, so that the log does not have a warning every 10 s.
        file.save(&path, routes.clone(), now + EVERY, false);
        assert!(file.writer.is_none());
        let later = now + AFTER_FAILURE;
        file.save(&path, routes.clone(), later, false);
        file.save(&path, routes.clone(), later, true);
        assert_eq!(decode(&fs::read_to_string(&path).unwrap()), routes);
    }

    #[test]
    fn the_file_is_written_when_a_destination_changes_and_not_when_only_times_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("routes");
        let now = Instant::now();
        let mut file = RoutesFile::new(now);
        let former = kept("192.0.2.1:80", 40);
        file.save(&path, former.clone(), now, true);
        file.save(&path, kept("192.0.2.1:80", 41), now, true);
        assert_eq!(decode(&fs::read_to_string(&path).unwrap()), former);
        let new = kept("192.0.2.2:80", 40);
        file.save(&path, new.clone(), now, true);
        assert_eq!(decode(&fs::read_to_string(&path).unwrap()), new);
    }
}
