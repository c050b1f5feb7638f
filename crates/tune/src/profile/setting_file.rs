//! The file of a setting.
//!
//! An interface is identified by its index, because it may have been renamed and another interface
//! may have its old name. A file that was opened by an interface's name is the right one if the
//! interface *still* has that name after opening. When an interface gives up a name, the kernel
//! removes the files of that name before another interface can take it, and removed files can be
//! neither read nor written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;

use taut_sys::interface;

use super::interface_name::InterfaceName;
use super::settings::Setting;
use crate::journal::Value;

/// A setting's open file, which belongs to the interface with the setting's index.
pub(super) struct SettingFile(File);

// === impl SettingFile ===

impl SettingFile {
    /// Opens the file; `None` if it does not exist, or if the interface has another name.
    pub(super) fn open(
        setting: Setting,
        interface: Option<InterfaceName>,
        writes: bool,
    ) -> io::Result<Option<Self>> {
        let Some(path) = setting.path(interface) else {
            return Ok(None);
        };
        let opened = OpenOptions::new().read(true).write(writes).open(path);
        let Some(file) = if_found(opened)? else {
            return Ok(None);
        };
        if let (Some(index), Some(name)) = (setting.interface(), interface)
            && interface::name(index)?.is_none_or(|now| now.as_bytes() != name.as_bytes())
        {
            return Ok(None);
        }
        Ok(Some(Self(file)))
    }

    /// Reads the value; `None` if the kernel has removed the file.
    pub(super) fn number(&self) -> io::Result<Option<i64>> {
        let mut text = [0; 64];
        let Some(length) = if_found(self.0.read_at(&mut text, 0))? else {
            return Ok(None);
        };
        let text = std::str::from_utf8(text.get(..length).unwrap_or_default());
        let number = text.ok().and_then(|text| text.trim().parse().ok());
        match number {
            Some(number) => Ok(Some(number)),
            None => Err(io::Error::other("the setting is not a number")),
        }
    }

    /// Writes the value. Returns `false` if the kernel has removed the file.
    pub(super) fn write(&self, text: &str) -> io::Result<bool> {
        Ok(if_found(self.0.write_at(text.as_bytes(), 0))?.is_some())
    }
}

/// Returns `None` for a "not found" error.
fn if_found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(it) => Ok(Some(it)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the journal's value of a setting, together with that of its [`Setting::companion`].
pub(super) fn value(number: i64, companion: Option<&str>) -> Value {
    let text = number.to_string();
    match companion {
        None => Value::Text(text),
        Some(companion) => Value::WithCompanion {
            text,
            companion: companion.to_owned(),
        },
    }
}

/// Reads the companion setting, if there is one.
pub(super) fn read_companion(setting: Setting) -> io::Result<Option<String>> {
    let text = setting.companion().map(fs::read_to_string).transpose()?;
    Ok(text.map(|text| text.trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::testing::{Host, REDIRECTS};

    #[test]
    fn the_file_of_a_renamed_interface_cannot_be_written() {
        let host = Host::new("race");
        let setting = Setting::InterfaceRedirects(host.index("va"));
        let name = InterfaceName::new(b"va");
        let open = || SettingFile::open(setting, name, true).unwrap();
        let open = host.0.run(open).unwrap().unwrap();
        host.ip("link set va name vx");
        host.ip("link add va type veth peer name vy");
        assert_eq!(open.number().unwrap(), None);
        assert!(!open.write("0").unwrap());
        assert_eq!(host.get(REDIRECTS), "1");
        // The file of another interface with the same name is not opened.
        let open = || SettingFile::open(setting, name, true).unwrap();
        assert!(host.0.run(open).unwrap().is_none());
    }
}
