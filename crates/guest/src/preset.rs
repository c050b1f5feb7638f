//! A congestion control of Taut's as the default of new connections, and what was the default before.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::control::Control;
use crate::load::Lock;

/// The default of the network namespace of whoever reads it.
const SETTING: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// What was there before.
pub const RECORD: &str = "/run/taut/guest.default";
/// A longer one is not ours.
const LONGEST: u64 = 4096;

/// What became of the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Restored {
    /// It was never changed.
    Untouched,
    /// It is this, as it was.
    To(String),
    /// Somebody has made it this meanwhile, and it stays.
    Others(String),
}

/// Why it was not changed.
#[derive(Debug, thiserror::Error)]
pub enum PresetError {
    /// A file.
    #[error("cannot {what} {path}: {source}")]
    File {
        /// Read, or write.
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It was changed elsewhere.
    #[error(
        "the default was made {ours} in another network namespace (net:[{netns}]), where it was {before}: run `taut guest down` there, \
         e.g. with `nsenter --net`; if it is gone, remove {RECORD}"
    )]
    Elsewhere {
        /// Where.
        netns: String,
        /// What it is there.
        ours: String,
        /// What it was there.
        before: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// Namespaces' numbers are of one boot.
    boot: String,
    netns: String,
    before: String,
    ours: String,
}

/// Where all of it is.
struct Place<'a> {
    setting: &'a Path,
    record: &'a Path,
    boot: String,
    netns: String,
}

/// Makes it the default. What was there before is written down first.
///
/// # Errors
/// [`PresetError`].
pub fn set(control: Control, _: &Lock) -> Result<(), PresetError> {
    Place::own().set(control.name())
}

/// Makes the default what it was, if it is still what [`set`] made it.
///
/// # Errors
/// [`PresetError`]; what was there before is still written down.
pub fn restore(_: &Lock) -> Result<Restored, PresetError> {
    Place::own().restore()
}

/// What it is now.
pub fn current() -> Option<String> {
    read(Path::new(SETTING)).ok()
}

// === impl Place ===

impl Place<'static> {
    fn own() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let netns = fs::read_link("/proc/thread-self/ns/net").unwrap_or_default();
        let netns = netns.display().to_string();
        let number = |text: &str| Some(text.strip_prefix("net:[")?.strip_suffix(']')?.to_owned());
        Self {
            setting: Path::new(SETTING),
            record: Path::new(RECORD),
            boot: boot.trim().to_owned(),
            netns: number(&netns).unwrap_or_default(),
        }
    }
}

impl Place<'_> {
    fn set(&self, ours: &str) -> Result<(), PresetError> {
        let now = read(self.setting)?;
        let record = self.recorded()?;
        if let Some(record) = &record {
            // There is one record only: another namespace's would be lost, and its default with it.
            self.is_here(record)?;
        }
        let before = match record {
            Some(record) if record.ours == now => record.before,
            // What is recorded is of no use any more: somebody has changed it since.
            _ => now,
        };
        if before == ours {
            // It was the default before there was a record, or somebody has made it so by hand.
            return Ok(());
        }
        let record = Record {
            boot: self.boot.clone(),
            netns: self.netns.clone(),
            before,
            ours: ours.to_owned(),
        };
        self.write_down(&record)?;
        // Also where it has that name already: of one that was loaded earlier and is gone but for being the default.
        write(self.setting, ours)
    }

    fn restore(&self) -> Result<Restored, PresetError> {
        let Some(record) = self.recorded()? else {
            return Ok(Restored::Untouched);
        };
        self.is_here(&record)?;
        let now = read(self.setting)?;
        let restored = if now == record.ours {
            write(self.setting, &record.before)?;
            Restored::To(record.before)
        } else {
            Restored::Others(now)
        };
        match fs::remove_file(self.record) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("remove", self.record)(e)),
            _ => Ok(restored),
        }
    }

    fn is_here(&self, record: &Record) -> Result<(), PresetError> {
        match record.netns == self.netns {
            true => Ok(()),
            false => Err(PresetError::Elsewhere {
                netns: record.netns.clone(),
                ours: record.ours.clone(),
                before: record.before.clone(),
            }),
        }
    }

    /// What is written down, of this boot.
    fn recorded(&self) -> Result<Option<Record>, PresetError> {
        match fs::metadata(self.record) {
            Ok(file) if file.len() <= LONGEST => {}
            Ok(_) => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed("read", self.record)(e)),
        }
        let text = read(self.record)?;
        let record = serde_json::from_str::<Record>(&text).ok();
        Ok(record.filter(|record| record.boot == self.boot))
    }

    fn write_down(&self, record: &Record) -> Result<(), PresetError> {
        let text = serde_json::to_string(record).unwrap_or_default();
        if let Some(folder) = self.record.parent() {
            fs::create_dir_all(folder).map_err(failed("make", folder))?;
        }
        // Whole, or not at all.
        let new = self.record.with_extension("new");
        write(&new, &text)?;
        fs::rename(&new, self.record).map_err(failed("write", self.record))
    }
}

fn read(path: &Path) -> Result<String, PresetError> {
    let text = fs::read_to_string(path).map_err(failed("read", path))?;
    Ok(text.trim().to_owned())
}

fn write(path: &Path, text: &str) -> Result<(), PresetError> {
    fs::write(path, text).map_err(failed("write", path))
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PresetError {
    let path = path.to_owned();
    move |source| PresetError::File { what, path, source }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    /// A default in a folder.
    struct Machine {
        folder: tempfile::TempDir,
        setting: PathBuf,
        record: PathBuf,
    }

    impl Machine {
        fn new(default: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let setting = folder.path().join("setting");
            let record = folder.path().join("run").join("record");
            fs::write(&setting, format!("{default}\n")).unwrap();
            Self {
                folder,
                setting,
                record,
            }
        }

        fn place(&self, boot: &str, netns: &str) -> Place<'_> {
            assert!(self.folder.path().exists());
            Place {
                setting: &self.setting,
                record: &self.record,
                boot: boot.into(),
                netns: netns.into(),
            }
        }

        fn here(&self) -> Place<'_> {
            self.place("boot", "1")
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
        assert!(!machine.record.exists());
    }

    #[test]
    fn what_somebody_else_has_chosen_since_stays() {
        let machine = Machine::new("cubic");
        machine.here().set("taut_bbr").unwrap();
        fs::write(&machine.setting, "reno").unwrap();
        let restored = machine.here().restore().unwrap();
        assert_eq!(restored, Restored::Others("reno".into()));
        assert_eq!(machine.default(), "reno");
        // And is what was there before, should it be set again.
        fs::write(&machine.setting, "cubic").unwrap();
        machine.here().set("taut_bbr").unwrap();
        fs::write(&machine.setting, "reno").unwrap();
        machine.here().set("taut_bbr").unwrap();
        let restored = machine.here().restore().unwrap();
        assert_eq!(restored, Restored::To("reno".into()));
    }

    #[test]
    fn a_record_of_another_boot_says_nothing() {
        let machine = Machine::new("cubic");
        machine.place("earlier", "1").set("taut_bbr").unwrap();
        fs::write(&machine.setting, "bbr").unwrap();
        assert_eq!(machine.here().restore().unwrap(), Restored::Untouched);
        assert_eq!(machine.default(), "bbr");
    }

    #[test]
    fn another_namespaces_default_is_not_touched() {
        let machine = Machine::new("cubic");
        machine.here().set("taut_bbr").unwrap();
        let elsewhere = machine.place("boot", "2").restore();
        assert!(matches!(elsewhere, Err(PresetError::Elsewhere { .. })));
        assert_eq!(machine.default(), "taut_bbr");
    }

    #[test]
    fn what_was_before_in_one_namespace_is_not_forgotten_for_another() {
        let (one, two) = (Machine::new("cubic"), Machine::new("reno"));
        let there = Place {
            setting: &two.setting,
            ..one.place("boot", "2")
        };
        one.here().set("taut_bbr").unwrap();
        let elsewhere = there.set("taut_bbr").unwrap_err().to_string();
        assert!(elsewhere.contains("net:[1]"), "{elsewhere}");
        assert!(elsewhere.contains(RECORD), "{elsewhere}");
        assert_eq!(two.default(), "reno");
        let restored = one.here().restore().unwrap();
        assert_eq!(restored, Restored::To("cubic".into()));
        there.set("taut_bbr").unwrap();
        assert_eq!(two.default(), "taut_bbr");
    }
}
