//! The test's own connection to QEMU's monitor (QMP).

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::{Value, json};

use crate::snoop_guests::{PATIENCE, wait_until};

pub(crate) struct Monitor {
    stream: BufReader<UnixStream>,
    events: VecDeque<Value>,
}

// === impl Monitor ===

impl Monitor {
    pub(crate) fn connect(path: &Path) -> Self {
        let stream = wait_until("QEMU's monitor", || UnixStream::connect(path).ok());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut monitor = Self {
            stream: BufReader::new(stream),
            events: VecDeque::new(),
        };
        assert!(monitor.next()["QMP"].is_object());
        monitor.execute("qmp_capabilities", json!({}));
        monitor
    }

    /// Executes a command that has to succeed.
    pub(crate) fn execute(&mut self, command: &str, arguments: Value) -> Value {
        let line = json!({"execute": command, "arguments": arguments});
        let stream = self.stream.get_mut();
        writeln!(stream, "{line}").unwrap();
        loop {
            let mut message = self.next();
            if message.get("event").is_some() {
                self.events.push_back(message);
                continue;
            }
            assert!(message.get("error").is_none(), "{line}: {message}");
            return message["return"].take();
        }
    }

    /// Waits for an event of this name, and drops those before it.
    pub(crate) fn wait_for(&mut self, event: &str) -> Value {
        loop {
            let message = match self.events.pop_front() {
                Some(message) => message,
                None => self.next(),
            };
            if message["event"] == event {
                return message;
            }
        }
    }

    /// Starts a migration to `uri` and waits until it is completed. The guest is stopped here then.
    pub(crate) fn migrate(&mut self, uri: &str) {
        self.execute("migrate", json!({"uri": uri}));
        wait_until("the migration", || {
            let info = self.execute("query-migrate", json!({}));
            assert_ne!(info["status"], "failed", "{info}");
            (info["status"] == "completed").then_some(())
        });
    }

    /// Saves a snapshot of the machine (`savevm`) into a file, which the machine then has open.
    pub(crate) fn save_snapshot(&mut self, file: &Path) {
        let create = |options| json!({"job-id": "create", "options": options});
        let to = json!({"driver": "file", "filename": file, "size": 0});
        self.run_job("blockdev-create", create(to));
        let to = json!({"driver": "file", "filename": file, "node-name": "file"});
        self.execute("blockdev-add", to);
        let to = json!({"driver": "qcow2", "file": "file", "size": 1 << 20});
        self.run_job("blockdev-create", create(to));
        let to = json!({"driver": "qcow2", "file": "file", "node-name": "disk"});
        self.execute("blockdev-add", to);
        self.run_job(
            "snapshot-save",
            json!({"job-id": "save", "tag": "saved", "vmstate": "disk", "devices": ["disk"]}),
        );
    }

    /// Runs a job of QEMU's, which has to succeed.
    fn run_job(&mut self, command: &str, arguments: Value) {
        let id = arguments["job-id"].clone();
        self.execute(command, arguments);
        wait_until("a job of QEMU's", || {
            let jobs = self.execute("query-jobs", json!({}));
            let job = jobs.as_array()?.iter().find(|job| job["id"] == id)?;
            assert!(job.get("error").is_none(), "{command}: {job}");
            (job["status"] == "concluded").then_some(())
        });
        self.execute("job-dismiss", json!({"id": id}));
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line).unwrap();
        assert!(read > 0, "QEMU has closed its monitor");
        serde_json::from_str(&line).unwrap()
    }
}
