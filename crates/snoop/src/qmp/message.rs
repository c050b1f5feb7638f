//! Messages of QEMU's monitor (QMP): one JSON object per line. QEMU's `docs/interop/qmp-spec.rst`
//! specifies the protocol; `qapi/{run-state,migration,qdev}.json` specify the events and replies.

use serde_json::Value;

/// A message, with the fields that snoop reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The first message of a connection.
    Greeting {
        /// QEMU's version, such as `7.2.22`.
        version: String,
    },
    /// An event of the machine.
    Event(Event),
    /// A command was executed.
    Done {
        /// The id of the command.
        id: u64,
        /// The returned value.
        reply: Reply,
    },
    /// QEMU refused a command.
    Refused {
        /// The id of the command; `None` if QEMU could not read it.
        id: Option<u64>,
        /// QEMU's reason.
        why: String,
    },
    /// Any other message, which early ACKs do not depend on.
    Other,
}

/// An event that early ACKs depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The machine's processors were stopped.
    Stop,
    /// The machine's processors run again.
    Resume,
    /// The guest suspended the machine (S3 or S4).
    Suspend,
    /// The machine woke up.
    Wakeup,
    /// The machine was reset, and its guest boots again.
    Reset,
    /// The machine was shut down.
    Shutdown,
    /// The status of a migration changed.
    Migration(MigrationStatus),
    /// A device was unplugged.
    DeviceDeleted,
}

/// `MigrationStatus` of QEMU's schema, reduced to the relevant differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationStatus {
    /// No migration: not begun, failed, or cancelled.
    None,
    /// In progress. Unknown statuses count as this.
    UnderWay,
    /// The machine was moved or saved.
    Completed,
}

/// The value that a command returned, with the fields that snoop reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Whether the processors run (`query-status`).
    pub running: Option<bool>,
    /// The status of a migration (`query-migrate`).
    pub migration: Option<MigrationStatus>,
}

// === impl Message ===

impl Message {
    /// Parses a line.
    ///
    /// # Errors
    /// If the line is not JSON.
    pub fn parse(line: &[u8]) -> Result<Self, serde_json::Error> {
        let message: Value = serde_json::from_slice(line)?;
        let id = message["id"].as_u64();
        if let Some(greeting) = message.get("QMP") {
            let numbers = &greeting["version"]["qemu"];
            let number = |name: &str| numbers[name].as_u64().unwrap_or(0);
            let version = format!(
                "{}.{}.{}",
                number("major"),
                number("minor"),
                number("micro")
            );
            return Ok(Self::Greeting { version });
        }
        if let Some(name) = message["event"].as_str() {
            let event = Event::read(name, &message["data"]);
            return Ok(event.map_or(Self::Other, Self::Event));
        }
        if let Some(error) = message.get("error") {
            let why = error["desc"].as_str().unwrap_or("no reason given");
            return Ok(Self::Refused {
                id,
                why: why.to_owned(),
            });
        }
        match (id, message.get("return")) {
            (Some(id), Some(returned)) => Ok(Self::Done {
                id,
                reply: Reply::read(returned),
            }),
            _ => Ok(Self::Other),
        }
    }
}

// === impl Event ===

impl Event {
    fn read(name: &str, data: &Value) -> Option<Self> {
        match name {
            "STOP" => Some(Self::Stop),
            "RESUME" => Some(Self::Resume),
            "SUSPEND" | "SUSPEND_DISK" => Some(Self::Suspend),
            "WAKEUP" => Some(Self::Wakeup),
            "RESET" => Some(Self::Reset),
            "SHUTDOWN" => Some(Self::Shutdown),
            "DEVICE_DELETED" => Some(Self::DeviceDeleted),
            "MIGRATION" => {
                let status = data["status"].as_str()?;
                Some(Self::Migration(MigrationStatus::read(status)))
            }
            _ => None,
        }
    }
}

// === impl MigrationStatus ===

impl MigrationStatus {
    fn read(status: &str) -> Self {
        match status {
            "none" | "failed" | "cancelled" => Self::None,
            "completed" => Self::Completed,
            _ => Self::UnderWay,
        }
    }
}

// === impl Reply ===

impl Reply {
    /// Reads a returned value: `query-status` returns `running` and a status of its own;
    /// `query-migrate` returns a status, or an empty object if there was no migration.
    fn read(returned: &Value) -> Self {
        let running = returned["running"].as_bool();
        let status = returned["status"].as_str();
        Self {
            running,
            migration: match (running, status) {
                (None, Some(status)) => Some(MigrationStatus::read(status)),
                _ => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use proptest::prelude::*;

    use super::*;

    fn parse(line: &str) -> Message {
        Message::parse(line.as_bytes()).unwrap()
    }

    fn event(line: &str) -> Event {
        match parse(line) {
            Message::Event(event) => event,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn messages_of_qemu_are_parsed() {
        let greeting = r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7},
            "package": "Debian 1:7.2+dfsg-7"}, "capabilities": ["oob"]}}"#;
        let version = "7.2.22".to_owned();
        assert_eq!(parse(greeting), Message::Greeting { version });

        assert_eq!(
            event(r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "STOP"}"#),
            Event::Stop
        );
        assert_eq!(
            event(r#"{"event": "RESET", "data": {"guest": true, "reason": "guest-reset"}}"#),
            Event::Reset
        );
        assert_eq!(
            event(r#"{"event": "DEVICE_DELETED", "data": {"path": "/machine/peripheral/nic"}}"#),
            Event::DeviceDeleted
        );
        for (status, read) in [
            ("setup", MigrationStatus::UnderWay),
            ("active", MigrationStatus::UnderWay),
            ("pre-switchover", MigrationStatus::UnderWay),
            ("postcopy-active", MigrationStatus::UnderWay),
            ("a status of QEMU 42", MigrationStatus::UnderWay),
            ("cancelling", MigrationStatus::UnderWay),
            ("cancelled", MigrationStatus::None),
            ("failed", MigrationStatus::None),
            ("completed", MigrationStatus::Completed),
        ] {
            let line = format!(r#"{{"event": "MIGRATION", "data": {{"status": "{status}"}}}}"#);
            assert_eq!(event(&line), Event::Migration(read), "{status}");
        }

        let reply = |id, reply| Message::Done { id, reply };
        let status =
            r#"{"return": {"status": "paused", "singlestep": false, "running": false}, "id": 3}"#;
        let stopped = Reply {
            running: Some(false),
            migration: None,
        };
        assert_eq!(parse(status), reply(3, stopped));
        let migrate =
            r#"{"return": {"expected-downtime": 300, "status": "active", "ram": {}}, "id": 4}"#;
        let active = Reply {
            running: None,
            migration: Some(MigrationStatus::UnderWay),
        };
        assert_eq!(parse(migrate), reply(4, active));
        assert_eq!(
            parse(r#"{"return": {}, "id": 5}"#),
            reply(5, Reply::default())
        );
        assert_eq!(
            parse(r#"{"return": [1], "id": 5}"#),
            reply(5, Reply::default())
        );

        let refused = r#"{"id": 2, "error": {"class": "GenericError", "desc": "in progress"}}"#;
        let why = "in progress".to_owned();
        assert_eq!(parse(refused), Message::Refused { id: Some(2), why });
    }

    #[test]
    fn irrelevant_messages_are_other() {
        for line in [
            r#"{"event": "RTC_CHANGE", "data": {"offset": 1}}"#,
            r#"{"event": "MIGRATION", "data": {"status": 7}}"#,
            r#"{"event": "MIGRATION"}"#,
            r#"{"event": {"name": "STOP"}}"#,
            r#"{"return": {}}"#,
            r#"{"return": {}, "id": "libvirt-7"}"#,
            r#"{"return": {}, "id": -1}"#,
            "{}",
            "[]",
            "null",
            "\"STOP\"",
        ] {
            assert_eq!(parse(line), Message::Other, "{line}");
        }
        assert!(Message::parse(b"").is_err());
        assert!(Message::parse(b"{\"event\": \"STOP\"").is_err());
        assert!(Message::parse(b"\xff\xfe").is_err());
        let deep = "[".repeat(100_000);
        assert!(Message::parse(deep.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(line: Vec<u8>) {
            let _ = Message::parse(&line);
        }

        #[test]
        fn no_json_makes_the_parser_panic(
            key in "QMP|event|data|return|error|id",
            value in r#"(\{"(status|version|qemu|desc|running)": ?)?(1|-1|1e999|"x"|\[\]|null|\{\})\}?"#,
        ) {
            let _ = Message::parse(format!(r#"{{"{key}": {value}}}"#).as_bytes());
            let _ = Message::parse(format!(r#"{{"event": "MIGRATION", "{key}": {value}}}"#).as_bytes());
        }
    }
}
