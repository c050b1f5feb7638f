//! Makes a congestion control the default of new connections, and restores the previous default.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use taut_sys::job_dir::{JobDir, JobDirError};

use crate::control::Control;
use crate::load::{DIRECTORY, Lock};

/// The setting of the default, in the network namespace of the thread that reads it.
pub const SETTING: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// The file that records the previous default.
pub const RECORD: &str = "/run/taut/guest/default";
/// The name of [`RECORD`] in [`DIRECTORY`].
const NAME: &str = "default";
/// The maximum size of a record in bytes; a longer file is not Taut's.
const LONGEST: u64 = 4096;

/// The result of [`restore`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Restored {
    /// There is no valid record of a change.
    Untouched,
    /// The default is the named control again.
    To(String),
    /// Another program had changed the default to the named control meanwhile, so it stays.
    Others(String),
    /// The network namespace in which it was changed is gone, and its default with it.
    Gone,
}

/// Why setting or restoring the default failed. The setting may already have been written.
#[derive(Debug, thiserror::Error)]
pub enum DefaultError {
    /// The directory of the record cannot be used.
    #[error(transparent)]
    Directory(#[from] JobDirError),
    /// A file cannot be read or written.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// The action: `read`, `write` or `remove`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The default was changed in another network namespace.
    #[error(
        "the default congestion control was changed from {before} to {ours} in network namespace net:[{netns}]; undo it there \
         (`lsns -t net` shows a PID): nsenter --target PID --net taut guest down"
    )]
    Elsewhere {
        /// The inode of the namespace.
        netns: String,
        /// The default that Taut set there.
        ours: String,
        /// The default before.
        before: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// The boot ID: inodes of namespaces mean nothing after a reboot.
    boot: String,
    netns: String,
    before: String,
    ours: String,
}

/// The setting, the directory of its record, and this boot and network namespace; replaced in tests.
struct Files<'a> {
    setting: &'a Path,
    directory: &'a Path,
    boot: String,
    netns: String,
    /// Returns whether the network namespace with this inode is gone.
    is_gone: fn(&str) -> bool,
}

/// Makes `control` the default, after recording the previous default.
///
/// # Errors
/// [`DefaultError`].
pub fn set(control: Control, _: &Lock) -> Result<(), DefaultError> {
    Files::own().set(control.name())
}

/// Restores the previous default if the present one is still the one that [`set`] made.
///
/// # Errors
/// [`DefaultError`]; the record stays.
pub fn restore(_: &Lock) -> Result<Restored, DefaultError> {
    Files::own().restore()
}

/// Returns the present default.
pub fn current() -> Option<String> {
    read(Path::new(SETTING)).ok()
}

// === impl Files ===

impl Files<'static> {
    fn own() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let netns = fs::read_link("/proc/thread-self/ns/net").unwrap_or_default();
        let netns = netns.display().to_string();
        let number = |text: &str| Some(text.strip_prefix("net:[")?.strip_suffix(']')?.to_owned());
        Self {
            setting: Path::new(SETTING),
            directory: Path::new(DIRECTORY),
            boot: boot.trim().to_owned(),
            netns: number(&netns).unwrap_or_default(),
            is_gone: |inode| netns_is_gone(inode).unwrap_or(false),
        }
    }
}

impl Files<'_> {
    /// Writes the setting even if it has that name: it may refer to a control that was unloaded.
    fn set(&self, ours: &str) -> Result<(), DefaultError> {
        let now = read(self.setting)?;
        let record = self.recorded()?;
        let record = record.filter(|record| !self.is_of_gone(record));
        if let Some(record) = &record {
            // There is only one record. Writing it here would lose the default of the other
            // namespace.
            self.is_here(record)?;
        }
        let before = match record {
            Some(record) if record.ours == now => record.before,
            // The record is outdated: another program has changed the default since.
            _ => now,
        };
        if before == ours {
            // There will be nothing to restore: it is the default without Taut.
            write(self.setting, ours)?;
            return self.remove();
        }
        let record = Record {
            boot: self.boot.clone(),
            netns: self.netns.clone(),
            before,
            ours: ours.to_owned(),
        };
        self.save(&record)?;
        write(self.setting, ours)
    }

    fn restore(&self) -> Result<Restored, DefaultError> {
        let Some(record) = self.recorded()? else {
            return Ok(Restored::Untouched);
        };
        let restored = if self.is_of_gone(&record) {
            Restored::Gone
        } else {
            self.is_here(&record)?;
            let now = read(self.setting)?;
            if now == record.ours {
                write(self.setting, &record.before)?;
                Restored::To(record.before)
            } else {
                Restored::Others(now)
            }
        };
        self.remove()?;
        Ok(restored)
    }

    /// Removes the record, if there is one.
    fn remove(&self) -> Result<(), DefaultError> {
        if let Some(directory) = JobDir::find(self.directory)? {
            directory.remove(NAME).map_err(self.failed("remove"))?;
        }
        Ok(())
    }

    fn is_of_gone(&self, record: &Record) -> bool {
        record.netns != self.netns && (self.is_gone)(&record.netns)
    }

    fn is_here(&self, record: &Record) -> Result<(), DefaultError> {
        match record.netns == self.netns {
            true => Ok(()),
            false => Err(DefaultError::Elsewhere {
                netns: record.netns.clone(),
                ours: record.ours.clone(),
                before: record.before.clone(),
            }),
        }
    }

    /// Returns the record, if it is of this boot.
    fn recorded(&self) -> Result<Option<Record>, DefaultError> {
        let Some(directory) = JobDir::find(self.directory)? else {
            return Ok(None);
        };
        let text = match directory.read(NAME, LONGEST) {
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => None,
            other => other.map_err(self.failed("read"))?,
        };
        let record = text.and_then(|text| serde_json::from_slice::<Record>(&text).ok());
        Ok(record.filter(|record| record.boot == self.boot))
    }

    fn save(&self, record: &Record) -> Result<(), DefaultError> {
        let text = serde_json::to_string(record).unwrap_or_default();
        let directory = JobDir::create(self.directory)?;
        let saved = directory.replace(NAME, text.as_bytes());
        saved.map_err(self.failed("write"))
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(io::Error) -> DefaultError + use<> {
        failed(action, &self.directory.join(NAME))
    }
}

/// Returns whether no mount of this mount namespace and no readable thread refers to the network namespace with this
/// inode. A namespace that only a descriptor keeps counts as gone.
///
/// # Errors
/// Those of reading `/proc`.
fn netns_is_gone(inode: &str) -> io::Result<bool> {
    let link = format!("net:[{inode}]");
    // `ip netns add` bind-mounts the namespace: its line in mountinfo has `net:[INODE]` as the root.
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo")?;
    if mounts.split_whitespace().any(|field| field == link) {
        return Ok(false);
    }
    for process in fs::read_dir("/proc")? {
        let tasks = match fs::read_dir(process?.path().join("task")) {
            Ok(tasks) => tasks,
            Err(_) => continue, // It is no process, or has ended.
        };
        for task in tasks.flatten() {
            // An unreadable thread is ignored, though it may use the namespace: in some sandboxes init is unreadable even
            // to root, and the record would never expire.
            let found = fs::read_link(task.path().join("ns/net"));
            if found.is_ok_and(|found| found.as_os_str() == link.as_str()) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

fn read(path: &Path) -> Result<String, DefaultError> {
    let text = fs::read_to_string(path).map_err(failed("read", path))?;
    Ok(text.trim().to_owned())
}

fn write(path: &Path, text: &str) -> Result<(), DefaultError> {
    fs::write(path, text).map_err(failed("write", path))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DefaultError + use<> {
    let path = path.to_owned();
    move |source| DefaultError::File {
        action,
        path,
        source,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use taut_sys::netns::Netns;

    use super::*;

    /// A machine whose default setting is a temporary file.
    struct Machine {
        directory: tempfile::TempDir,
        setting: PathBuf,
        run: PathBuf,
    }

    impl Machine {
        fn new(default: &str) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let setting = directory.path().join("setting");
            let run = directory.path().join("run");
            fs::write(&setting, format!("{default}\n")).unwrap();
            Self {
                directory,
                setting,
                run,
            }
        }

        fn files(&self, boot: &str, netns: &str) -> Files<'_> {
            assert!(self.directory.path().exists());
            Files {
                setting: &self.setting,
                directory: &self.run,
                boot: boot.into(),
                netns: netns.into(),
                is_gone: |_| false,
            }
        }

        fn here(&self) -> Files<'_> {
            self.files("boot", "1")
        }

        fn default(&self) -> String {
            read(&self.setting).unwrap()
        }
    }

    #[test]
    fn the_default_is_as_before_however_often_it_was_set() {
        let machine = Machine::new("cubic");
        machine.here().set("taut_bbr").unwrap();
        machine.here().set("taut_bbr").unwrap();
        machine.here().set("taut_cubic").unwrap();
        assert_eq!(machine.default(), "taut_cubic");
        let restored = machine.here().restore().unwrap();
        assert_eq!(restored, Restored::To("cubic".into()));
        assert_eq!(machine.default(), "cubic");
        assert_eq!(machine.here().restore().unwrap(), Restored::Untouched);
        assert!(!machine.run.join(NAME).exists());
    }

    #[test]
    fn a_default_of_tauts_that_was_set_by_hand_is_set_again_and_leaves_no_record() {
        let machine = Machine::new("taut_bbr");
        machine.here().set("taut_cubic").unwrap();
        machine.here().set("taut_bbr").unwrap();
        assert_eq!(machine.default(), "taut_bbr");
        assert_eq!(machine.here().restore().unwrap(), Restored::Untouched);
        // The setting may refer to a control of that name which was unloaded, so it is written again.
        fs::write(&machine.setting, "taut_bbr\n").unwrap();
        machine.here().set("taut_bbr").unwrap();
        assert_eq!(fs::read_to_string(&machine.setting).unwrap(), "taut_bbr");
    }

    #[test]
    fn a_default_that_another_program_set_stays() {
        let machine = Machine::new("cubic");
        machine.here().set("taut_bbr").unwrap();
        fs::write(&machine.setting, "reno").unwrap();
        let restored = machine.here().restore().unwrap();
        assert_eq!(restored, Restored::Others("reno".into()));
        assert_eq!(machine.default(), "reno");
        // The other program's default is also the previous default when Taut sets its own again.
        fs::write(&machine.setting, "cubic").unwrap();
        machine.here().set("taut_bbr").unwrap();
        fs::write(&machine.setting, "reno").unwrap();
        machine.here().set("taut_bbr").unwrap();
        let restored = machine.here().restore().unwrap();
        assert_eq!(restored, Restored::To("reno".into()));
    }

    #[test]
    fn a_record_that_another_user_planted_is_neither_followed_nor_believed() {
        let machine = Machine::new("cubic");
        machine.here().set("taut_bbr").unwrap();
        let (record, precious) = (
            machine.run.join(NAME),
            machine.directory.path().join("precious"),
        );
        fs::write(&precious, "precious").unwrap();
        for planted in [record.clone(), machine.run.join("default.new")] {
            let _ = fs::remove_file(&planted);
            std::os::unix::fs::symlink(&precious, &planted).unwrap();
        }
        let said = machine.here().restore().unwrap_err().to_string();
        assert!(said.contains("see who made it"), "{said}");
        fs::remove_file(&record).unwrap();
        machine.here().set("taut_cubic").unwrap();
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
        // Whoever has the directory can replace the record.
        std::os::unix::fs::chown(&machine.run, Some(54_321), None).unwrap();
        let said = machine.here().restore().unwrap_err();
        assert!(matches!(said, DefaultError::Directory(_)), "{said}");
        assert_eq!(machine.default(), "taut_cubic");
    }

    #[test]
    fn a_record_of_another_boot_is_ignored() {
        let machine = Machine::new("cubic");
        machine.files("earlier", "1").set("taut_bbr").unwrap();
        fs::write(&machine.setting, "bbr").unwrap();
        assert_eq!(machine.here().restore().unwrap(), Restored::Untouched);
        assert_eq!(machine.default(), "bbr");
    }

    #[test]
    fn the_default_of_another_namespace_is_not_touched() {
        let machine = Machine::new("cubic");
        machine.here().set("taut_bbr").unwrap();
        let elsewhere = machine.files("boot", "2").restore();
        assert!(matches!(elsewhere, Err(DefaultError::Elsewhere { .. })));
        assert_eq!(machine.default(), "taut_bbr");
    }

    #[test]
    fn the_record_of_one_namespace_is_not_overwritten_in_another() {
        let (one, two) = (Machine::new("cubic"), Machine::new("reno"));
        let there = Files {
            setting: &two.setting,
            ..one.files("boot", "2")
        };
        one.here().set("taut_bbr").unwrap();
        let elsewhere = there.set("taut_bbr").unwrap_err().to_string();
        assert!(elsewhere.contains("net:[1]"), "{elsewhere}");
        assert_eq!(two.default(), "reno");
        let restored = one.here().restore().unwrap();
        assert_eq!(restored, Restored::To("cubic".into()));
        there.set("taut_bbr").unwrap();
        assert_eq!(two.default(), "taut_bbr");
    }

    #[test]
    fn the_record_of_a_namespace_that_is_gone_is_in_nobodys_way() {
        let (one, two) = (Machine::new("cubic"), Machine::new("reno"));
        let there = Files {
            setting: &two.setting,
            is_gone: |inode| inode == "1",
            ..one.files("boot", "2")
        };
        one.here().set("taut_bbr").unwrap();
        assert_eq!(there.restore().unwrap(), Restored::Gone);
        assert_eq!(there.restore().unwrap(), Restored::Untouched);
        one.here().set("taut_bbr").unwrap();
        there.set("taut_bbr").unwrap();
        let restored = there.restore().unwrap();
        assert_eq!(restored, Restored::To("reno".into()));
    }

    #[test]
    fn a_namespace_is_gone_when_neither_a_name_nor_a_thread_has_it() {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test makes a network namespace and must run as root; `make test` does"
        );
        let is_gone = |inode: u64| netns_is_gone(&inode.to_string()).unwrap();
        let name = format!("taut-gone-{}", std::process::id());
        let netns = Netns::create(&name).unwrap();
        let inode = netns.id().inode();
        assert!(!is_gone(inode));
        let stays = || {
            Netns::delete(&name).unwrap();
            assert!(!is_gone(inode), "this thread has it");
        };
        netns.run(stays).unwrap();
        // A thread of another process, which looks at all namespaces, may still be in it. The open descriptor keeps
        // the number from another namespace.
        while !is_gone(inode) {
            std::thread::yield_now();
        }
        drop(netns);
    }
}
