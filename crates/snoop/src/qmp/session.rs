//! The state machine of a connection to a monitor, without its socket: which commands are sent, and
//! how input is handled.

use std::time::Duration;

use serde_json::{Value, json};

use super::message::{Message, MigrationStatus};
use super::policy::Policy;

/// The time limit for QEMU's greeting.
pub const GREETING: Duration = Duration::from_secs(5);

/// The interval at which QEMU is queried for the state of a migration. QEMU also sends events, but
/// the manager of the machine may turn those off (Proxmox does at the start of each migration).
pub const QUERY_EVERY: Duration = Duration::from_secs(1);

/// The reason for closing a connection.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Fault {
    /// QEMU does not greet: it serves one client per socket.
    #[error(
        "QEMU does not answer, perhaps because another client is connected; give taut a socket of its own \
         (-qmp unix:PATH,server=on,wait=off)"
    )]
    NoGreeting,
    /// The negotiation failed.
    #[error("QEMU refuses qmp_capabilities: {0}")]
    Refused(String),
    /// The other end does not speak QMP.
    #[error("the other end does not speak QMP: {0}")]
    NotQmp(String),
}

/// The caller's task for a session.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// Send this line.
    Send(String),
    /// QEMU of this version accepts commands and sends events.
    Ready(String),
}

/// A command; its number is the id that it is sent with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Capabilities = 1,
    MigrationEvents = 2,
    Status = 3,
    Migration = 4,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for the greeting until this time.
    Greeting(Duration),
    /// Waits for QEMU of this version to accept commands.
    Negotiating(String),
    /// Connected, with the time of the next query; `None` while a query is unanswered.
    Ready(Option<Duration>),
}

/// A connection to the monitor of a machine.
#[derive(Debug)]
pub struct Session {
    phase: Phase,
}

// === impl Command ===

impl Command {
    /// Returns the line that sends the command. The id identifies the kind of command, because only
    /// one of each kind is in progress.
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
    /// Creates the session of a connection made at `now`.
    pub fn new(now: Duration) -> Self {
        Self {
            phase: Phase::Greeting(now + GREETING),
        }
    }

    /// Returns whether QEMU accepts commands and sends events.
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready(_))
    }

    /// Returns the time at which [`Session::poll`] has work; `None`: only after input.
    pub fn due(&self) -> Option<Duration> {
        match self.phase {
            Phase::Greeting(until) => Some(until),
            Phase::Negotiating(_) => None,
            Phase::Ready(query_at) => query_at,
        }
    }

    /// Returns the output that is due.
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

    /// Handles a line of QEMU, and passes news about the machine to the policy.
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
            // After its greeting, QEMU is trusted: an invalid line is skipped.
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
            (Phase::Greeting(_), _) => Err(Fault::NotQmp("no greeting".to_owned())),
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
                    // The command fails during a migration, which the query then shows.
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
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

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

        fn receive(&mut self, line: &str) -> Result<Vec<Output>, Fault> {
            self.session
                .on_line(START, line.as_bytes(), &mut self.policy)
        }

        /// Returns a session after its first queries.
        fn ready() -> Self {
            let mut talk = Self::new();
            talk.receive(GREETS).unwrap();
            talk.receive(r#"{"return": {}, "id": 1}"#).unwrap();
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
    fn a_session_negotiates_and_queries_the_machines_state() {
        let mut talk = Talk::new();
        assert_eq!(names(&talk.receive(GREETS).unwrap()), ["qmp_capabilities"]);
        assert_eq!(
            names(&talk.receive(r#"{"return": {}, "id": 1}"#).unwrap()),
            [
                "10.2.0",
                "migrate-set-capabilities",
                "query-status",
                "query-migrate"
            ]
        );
        talk.receive(r#"{"return": {}, "id": 2}"#).unwrap();
        talk.receive(r#"{"return": {"running": false, "status": "inmigrate"}, "id": 3}"#)
            .unwrap();
        let stopped = Restriction {
            hold: Some(HoldReason::Stopped),
            until_heard: None,
        };
        assert_eq!(talk.policy.restriction(), Some(stopped));
    }

    #[test]
    fn a_migration_is_seen_by_queries_without_events() {
        let mut talk = Talk::ready();
        talk.receive(r#"{"error": {"class": "GenericError", "desc": "no"}, "id": 2}"#)
            .unwrap();
        assert_eq!(talk.session.due(), None);
        talk.receive(r#"{"return": {}, "id": 4}"#).unwrap();
        assert_eq!(talk.policy.restriction(), Some(Restriction::default()));
        let due = talk.session.due().unwrap();
        assert_eq!(due, START + QUERY_EVERY);
        assert_eq!(talk.session.poll(START), Ok(None));
        let asks = talk.session.poll(due).unwrap();
        assert_eq!(names(asks.as_slice()), ["query-migrate"]);
        // There is no second query before the answer.
        assert_eq!(talk.session.poll(due + QUERY_EVERY), Ok(None));
        talk.receive(r#"{"return": {"status": "active"}, "id": 4}"#)
            .unwrap();
        let hold = talk.policy.restriction().unwrap().hold;
        assert_eq!(hold, Some(HoldReason::Migrating));
    }

    #[test]
    fn a_peer_that_does_not_greet_is_given_up() {
        let mut talk = Talk::new();
        let due = talk.session.due().unwrap();
        assert_eq!(talk.session.poll(due), Err(Fault::NoGreeting));
        for line in ["HTTP/1.1 400 Bad Request", r#"{"event": "STOP"}"#] {
            let fault = Talk::new().receive(line);
            assert!(matches!(fault, Err(Fault::NotQmp(_))), "{fault:?}");
        }
        let mut talk = Talk::new();
        talk.receive(GREETS).unwrap();
        let refused = talk.receive(r#"{"error": {"desc": "no"}}"#);
        assert_eq!(refused, Err(Fault::Refused("no".to_owned())));
    }

    #[test]
    fn invalid_lines_are_skipped_and_events_are_not() {
        let mut talk = Talk::ready();
        for line in ["", "{", GREETS, r#"{"return": {}, "id": 77}"#] {
            assert_eq!(talk.receive(line), Ok(Vec::new()), "{line}");
        }
        talk.receive(r#"{"event": "STOP"}"#).unwrap();
        assert_eq!(
            talk.policy.restriction().unwrap().hold,
            Some(HoldReason::Stopped)
        );
    }

    proptest! {
        #[test]
        fn any_input_causes_a_bounded_number_of_commands(
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
                sent += talk.receive(line).map_or(0, |outputs| outputs.len());
            }
            prop_assert!(sent <= 5);
            prop_assert!(talk.session.poll(START).is_ok());
        }
    }
}
