//! A connection to a monitor, without its socket: which commands are sent, and what follows from what comes.

use std::time::Duration;

use serde_json::{Value, json};

use super::message::{Message, MigrationStatus};
use super::policy::Policy;

/// How long QEMU may take to greet.
pub const GREETING: Duration = Duration::from_secs(5);

/// How often QEMU is asked how far a migration is. It would also say so by itself, but whoever manages the machine
/// may turn that off (Proxmox does, at the beginning of each migration).
pub const QUERY_EVERY: Duration = Duration::from_secs(1);

/// Why a connection is given up.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Fault {
    /// QEMU serves one client at a socket, and has not turned to this one.
    #[error(
        "QEMU does not answer, perhaps because another client is connected; give taut a socket of its own \
         (-qmp unix:PATH,server=on,wait=off)"
    )]
    NoGreeting,
    /// The negotiation has failed.
    #[error("QEMU refuses qmp_capabilities: {0}")]
    Refused(String),
    /// Something that is no QEMU.
    #[error("what answers is no QMP: {0}")]
    NotQmp(String),
}

/// What has to be done for a session.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// Send this line.
    Send(String),
    /// QEMU, of this version, listens to commands and tells of events.
    Ready(String),
}

/// What a command was sent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Capabilities = 1,
    MigrationEvents = 2,
    Status = 3,
    Migration = 4,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Until then QEMU has to greet.
    Greeting(Duration),
    /// QEMU, of this version, has to accept commands.
    Negotiating(String),
    /// When the next query is due; `None`: one has no answer yet.
    Ready(Option<Duration>),
}

/// A connection to the monitor of the machine at a tap.
#[derive(Debug)]
pub struct Session {
    phase: Phase,
}

// === impl Command ===

impl Command {
    /// The line that sends it. Its id says which it is: no two of a kind are under way.
    fn line(self) -> String {
        let events = json!({"capabilities": [{"capability": "events", "state": true}]});
        let (name, arguments) = match self {
            Self::Capabilities => ("qmp_capabilities", Value::Null),
            Self::MigrationEvents => ("migrate-set-capabilities", events),
            Self::Status => ("query-status", Value::Null),
            Self::Migration => ("query-migrate", Value::Null),
        };
        let mut line = json!({"execute": name, "id": self as u8});
        if !arguments.is_null() {
            line["arguments"] = arguments;
        }
        format!("{line}\r\n")
    }

    fn of(id: u64) -> Option<Self> {
        let all = [
            Self::Capabilities,
            Self::MigrationEvents,
            Self::Status,
            Self::Migration,
        ];
        all.into_iter().find(|command| *command as u64 == id)
    }
}

// === impl Session ===

impl Session {
    /// A connection that was made at `now`.
    pub fn new(now: Duration) -> Self {
        Self {
            phase: Phase::Greeting(now + GREETING),
        }
    }

    /// Whether QEMU listens to commands and tells of events.
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready(_))
    }

    /// When [`Session::poll`] has something to do; `None`: only after a line.
    pub fn due(&self) -> Option<Duration> {
        match self.phase {
            Phase::Greeting(until) => Some(until),
            Phase::Negotiating(_) => None,
            Phase::Ready(query_at) => query_at,
        }
    }

    /// Sends what is due.
    ///
    /// # Errors
    /// [`Fault::NoGreeting`].
    pub fn poll(&mut self, now: Duration) -> Result<Option<Output>, Fault> {
        match &mut self.phase {
            Phase::Greeting(until) if now >= *until => Err(Fault::NoGreeting),
            Phase::Ready(query_at) if query_at.is_some_and(|at| now >= at) => {
                *query_at = None;
                Ok(Some(Output::Send(Command::Migration.line())))
            }
            _ => Ok(None),
        }
    }

    /// Takes a line that QEMU has sent, and tells the policy what it says of the machine.
    ///
    /// # Errors
    /// [`Fault::NotQmp`], [`Fault::Refused`].
    pub fn on_line(
        &mut self,
        now: Duration,
        line: &[u8],
        policy: &mut Policy,
    ) -> Result<Vec<Output>, Fault> {
        let message = match Message::parse(line) {
            Ok(message) => message,
            // QEMU sends what it is asked to send; a line that makes no sense is skipped when it has greeted.
            Err(error) if matches!(self.phase, Phase::Greeting(_)) => {
                return Err(Fault::NotQmp(error.to_string()));
            }
            Err(_) => Message::Other,
        };
        match (&mut self.phase, message) {
            (Phase::Greeting(_), Message::Greeting { version }) => {
                self.phase = Phase::Negotiating(version);
                Ok(vec![Output::Send(Command::Capabilities.line())])
            }
            (Phase::Greeting(_), _) => Err(Fault::NotQmp("it does not greet".to_owned())),
            (Phase::Negotiating(version), Message::Done { id, .. })
                if Command::of(id) == Some(Command::Capabilities) =>
            {
                let version = std::mem::take(version);
                self.phase = Phase::Ready(None);
                let commands = [
                    Command::MigrationEvents,
                    Command::Status,
                    Command::Migration,
                ];
                let sends = commands.map(|command| Output::Send(command.line()));
                Ok([Output::Ready(version)].into_iter().chain(sends).collect())
            }
            (Phase::Negotiating(_), Message::Refused { why, .. }) => Err(Fault::Refused(why)),
            (Phase::Ready(_), Message::Event(event)) => {
                policy.on_event(event);
                Ok(Vec::new())
            }
            (Phase::Ready(query_at), Message::Done { id, reply }) => {
                match Command::of(id) {
                    Some(Command::Status) => {
                        if let Some(running) = reply.running {
                            policy.on_running(running);
                        }
                    }
                    Some(Command::Migration) => {
                        policy.on_migration(reply.migration.unwrap_or(MigrationStatus::None));
                        *query_at = Some(now + QUERY_EVERY);
                    }
                    _ => {}
                }
                Ok(Vec::new())
            }
            (Phase::Ready(query_at), Message::Refused { id, why }) => {
                match id.and_then(Command::of) {
                    Some(Command::Migration) => {
                        policy.on_migration(MigrationStatus::None);
                        *query_at = Some(now + QUERY_EVERY);
                    }
                    // While a migration is under way; it is seen by asking.
                    command => tracing::debug!(?command, "QEMU refuses: {why}"),
                }
                Ok(Vec::new())
            }
            _ => Ok(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use proptest::prelude::*;

    use super::super::policy::{HoldReason, Restriction};
    use super::*;

    const START: Duration = Duration::from_secs(100);
    const GREETS: &str = r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 2, "major": 10}}}}"#;

    struct Talk {
        session: Session,
        policy: Policy,
    }

    impl Talk {
        fn new() -> Self {
            Self {
                session: Session::new(START),
                policy: Policy::default(),
            }
        }

        fn hear(&mut self, line: &str) -> Result<Vec<Output>, Fault> {
            self.session
                .on_line(START, line.as_bytes(), &mut self.policy)
        }

        /// A session that has asked for everything.
        fn ready() -> Self {
            let mut talk = Self::new();
            talk.hear(GREETS).unwrap();
            talk.hear(r#"{"return": {}, "id": 1}"#).unwrap();
            talk
        }
    }

    fn names(outputs: &[Output]) -> Vec<String> {
        let name = |output: &Output| match output {
            Output::Send(line) => {
                let command: Value = serde_json::from_str(line).unwrap();
                command["execute"].as_str().unwrap().to_owned()
            }
            Output::Ready(version) => version.clone(),
        };
        outputs.iter().map(name).collect()
    }

    #[test]
    fn it_negotiates_and_asks_for_what_it_does_not_know() {
        let mut talk = Talk::new();
        assert_eq!(names(&talk.hear(GREETS).unwrap()), ["qmp_capabilities"]);
        assert_eq!(
            names(&talk.hear(r#"{"return": {}, "id": 1}"#).unwrap()),
            [
                "10.2.0",
                "migrate-set-capabilities",
                "query-status",
                "query-migrate"
            ]
        );
        talk.hear(r#"{"return": {}, "id": 2}"#).unwrap();
        talk.hear(r#"{"return": {"running": false, "status": "inmigrate"}, "id": 3}"#)
            .unwrap();
        let stopped = Restriction {
            hold: Some(HoldReason::Stopped),
            until_heard: None,
        };
        assert_eq!(talk.policy.restriction(), Some(stopped));
    }

    #[test]
    fn a_migration_is_seen_by_asking_although_no_events_are_sent() {
        let mut talk = Talk::ready();
        talk.hear(r#"{"error": {"class": "GenericError", "desc": "no"}, "id": 2}"#)
            .unwrap();
        assert_eq!(talk.session.due(), None);
        talk.hear(r#"{"return": {}, "id": 4}"#).unwrap();
        assert_eq!(talk.policy.restriction(), Some(Restriction::default()));
        let due = talk.session.due().unwrap();
        assert_eq!(due, START + QUERY_EVERY);
        assert_eq!(talk.session.poll(START), Ok(None));
        let asks = talk.session.poll(due).unwrap();
        assert_eq!(names(asks.as_slice()), ["query-migrate"]);
        // Not again before the answer.
        assert_eq!(talk.session.poll(due + QUERY_EVERY), Ok(None));
        talk.hear(r#"{"return": {"status": "active"}, "id": 4}"#)
            .unwrap();
        let hold = talk.policy.restriction().unwrap().hold;
        assert_eq!(hold, Some(HoldReason::Migrating));
    }

    #[test]
    fn who_does_not_greet_is_given_up() {
        let mut talk = Talk::new();
        let due = talk.session.due().unwrap();
        assert_eq!(talk.session.poll(due), Err(Fault::NoGreeting));
        for line in ["HTTP/1.1 400 Bad Request", r#"{"event": "STOP"}"#] {
            let fault = Talk::new().hear(line);
            assert!(matches!(fault, Err(Fault::NotQmp(_))), "{fault:?}");
        }
        let mut talk = Talk::new();
        talk.hear(GREETS).unwrap();
        let refused = talk.hear(r#"{"error": {"desc": "no"}}"#);
        assert_eq!(refused, Err(Fault::Refused("no".to_owned())));
    }

    #[test]
    fn what_makes_no_sense_is_skipped_and_events_are_not() {
        let mut talk = Talk::ready();
        for line in ["", "{", GREETS, r#"{"return": {}, "id": 77}"#] {
            assert_eq!(talk.hear(line), Ok(Vec::new()), "{line}");
        }
        talk.hear(r#"{"event": "STOP"}"#).unwrap();
        assert_eq!(
            talk.policy.restriction().unwrap().hold,
            Some(HoldReason::Stopped)
        );
    }

    proptest! {
        #[test]
        fn whatever_it_hears_it_sends_a_bounded_number_of_commands(
            lines in prop::collection::vec(
                prop_oneof![
                    Just(GREETS.to_owned()),
                    (0u64..6).prop_map(|id| format!(r#"{{"return": {{"running": true}}, "id": {id}}}"#)),
                    (0u64..6).prop_map(|id| format!(r#"{{"error": {{}}, "id": {id}}}"#)),
                    Just(r#"{"event": "RESET"}"#.to_owned()),
                    ".*",
                ],
                0..30,
            )
        ) {
            let mut talk = Talk::new();
            let mut sent = 0;
            for line in &lines {
                sent += talk.hear(line).map_or(0, |outputs| outputs.len());
            }
            prop_assert!(sent <= 5);
            prop_assert!(talk.session.poll(START).is_ok());
        }
    }
}
