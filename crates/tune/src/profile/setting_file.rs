//! The file of a setting.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;

use taut_sys::interface;

use super::interface_name::InterfaceName;
use super::settings::Setting;
use crate::journal::Value;

/// A setting's file, which is of the interface that it should be of.
pub(super) struct SettingFile(File);

// === impl SettingFile ===

impl SettingFile {
    /// `None`: it is not there, or the interface has another name.
    pub(super) fn open(
        setting: Setting,
        interface: Option<InterfaceName>,
        writes: bool,
    ) -> io::Result<Option<Self>> {
        let Some(path) = setting.path(interface) else {
            return Ok(None);
        };
        let Some(file) = there(OpenOptions::new().read(true).write(writes).open(path))? else {
            return Ok(None);
        };
        if let (Some(index), Some(name)) = (setting.interface(), interface)
            && interface::name(index)?.is_none_or(|now| now.as_bytes() != name.as_bytes())
        {
            return Ok(None);
        }
        Ok(Some(Self(file)))
    }

    /// What it is; `None`: it is not there any more.
    pub(super) fn number(&self) -> io::Result<Option<i64>> {
        let mut text = [0; 64];
        let Some(length) = there(self.0.read_at(&mut text, 0))? else {
            return Ok(None);
        };
        let text = std::str::from_utf8(text.get(..length).unwrap_or_default());
        let number = text.ok().and_then(|text| text.trim().parse().ok());
        match number {
            Some(number) => Ok(Some(number)),
            None => Err(io::Error::other("it is no number")),
        }
    }

    /// `false`: it is not there any more.
    pub(super) fn write(&self, text: &str) -> io::Result<bool> {
        Ok(there(self.0.write_at(text.as_bytes(), 0))?.is_some())
    }
}

/// `None`: what it is about is not there.
fn there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(it) => Ok(Some(it)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn value(number: i64, other: Option<&str>) -> Value {
    let text = number.to_string();
    match other {
        None => Value::Text(text),
        Some(other) => Value::Beside {
            text,
            other: other.to_owned(),
        },
    }
}

/// What the setting is with which the kernel changes this one.
pub(super) fn other(setting: Setting) -> io::Result<Option<String>> {
    let text = setting.beside().map(fs::read_to_string).transpose()?;
    Ok(text.map(|text| text.trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::testing::{Host, REDIRECTS};

    #[test]
    fn a_file_of_an_interface_that_gives_its_name_away_is_written_no_more() {
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
        // Nor is one opened that has the name by now.
        let open = || SettingFile::open(setting, name, true).unwrap();
        assert!(host.0.run(open).unwrap().is_none());
    }
}
