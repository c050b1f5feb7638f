//! `taut.toml`: one configuration file with a section for each job.
//!
//! Each job reads its section into a type of its own. A mistake is one sentence with the file, the
//! line and the field, and with the nearest known name if a name is unknown.
//!
//! ```
//! # use std::path::Path;
//! #[derive(serde::Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Tune {
//!     apply: bool,
//! }
//!
//! let file = taut_config::ConfigFile::new(Path::new("taut.toml"), "[tune]\naply = true".into());
//! let error = file.section::<Tune>("tune").err().unwrap();
//! assert_eq!(error.to_string(), "taut.toml:2: tune.aply: unknown field `aply`: did you mean `apply`?");
//! ```

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_path_to_error::{Segment, Track};
pub use toml::Value;

/// The file that packages install.
pub const PATH: &str = "/etc/taut/taut.toml";

/// The sections that a file may have. `[mesh]` has `[mesh.dns]`.
pub const SECTIONS: [&str; 6] = ["relay", "mesh", "snoop", "tune", "watch", "guest"];

/// The least Jaro-Winkler similarity of a suggested name.
const SIMILARITY: f64 = 0.8;

/// A configuration file that was read.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    path: PathBuf,
    text: String,
}

/// The reason why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file has a mistake.
    #[error("{path}:{line}: {message}", path = path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// The field and what is wrong with it.
        message: String,
    },
    /// The file lacks what the job needs.
    #[error("{path}: {message}", path = path.display())]
    Lacks {
        /// The file.
        path: PathBuf,
        /// What it lacks.
        message: &'static str,
    },
}

/// A key of a section, and its value.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Where the key is in the text, for [`ConfigFile::invalid`].
    pub offset: usize,
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Value,
}

/// The name of a section.
struct Section(&'static str);

/// Reads one section of the whole file.
struct Only<'a, T>(&'a str, PhantomData<T>);

// === impl ConfigFile ===

impl ConfigFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError::Read`].
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self::new(path, text))
    }

    /// Returns a file with this text; `path` is for error messages.
    pub fn new(path: &Path, text: String) -> Self {
        Self {
            path: path.to_owned(),
            text,
        }
    }

    /// Reads the file that packages install; `None` if it is missing.
    ///
    /// # Errors
    /// [`ConfigError::Read`].
    pub fn load_default() -> Result<Option<Self>, ConfigError> {
        match Self::load(Path::new(PATH)) {
            Ok(file) => Ok(Some(file)),
            Err(ConfigError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads a section; `None` if the file does not have it.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`]: the text is not TOML, the section has a mistake, or another section
    /// has an unknown name. The contents of other sections are ignored.
    pub fn section<'a, T: Deserialize<'a>>(&'a self, name: &str) -> Result<Option<T>, ConfigError> {
        let at = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
        let parsed = toml::Deserializer::parse(&self.text)
            .map_err(|e| self.invalid(at(&e), one_sentence(e.message())))?;
        let mut track = Track::new();
        let tracked = serde_path_to_error::Deserializer::new(parsed, &mut track);
        let read = Only(name, PhantomData).deserialize(tracked);
        read.map_err(|e| {
            let message = suggesting(&one_sentence(e.message()));
            match field_name(&track.path()) {
                field if field.is_empty() => self.invalid(at(&e), message),
                field => self.invalid(at(&e), format!("{field}: {message}")),
            }
        })
    }

    /// Reads a section whose keys are not known here; `None` if the file does not have it.
    ///
    /// # Errors
    /// As [`Self::section`].
    pub fn entries(&self, name: &str) -> Result<Option<Vec<Entry>>, ConfigError> {
        let section: Option<BTreeMap<toml::Spanned<String>, Value>> = self.section(name)?;
        let entry = |(key, value): (toml::Spanned<String>, Value)| Entry {
            offset: key.span().start,
            key: key.into_inner(),
            value,
        };
        Ok(section.map(|section| section.into_iter().map(entry).collect()))
    }

    /// Returns a mistake at an offset in the text. `message` names the field.
    pub fn invalid(&self, offset: usize, message: String) -> ConfigError {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        ConfigError::Invalid {
            path: self.path.clone(),
            line: before.iter().filter(|&&b| b == b'\n').count() + 1,
            message,
        }
    }

    /// Returns an error that names what the file lacks.
    pub fn lacks(&self, message: &'static str) -> ConfigError {
        ConfigError::Lacks {
            path: self.path.clone(),
            message,
        }
    }
}

// === impl Section ===

impl<'de> Deserialize<'de> for Section {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        let known = SECTIONS.into_iter().find(|known| *known == name);
        known
            .map(Self)
            .ok_or_else(|| D::Error::unknown_field(&name, &SECTIONS))
    }
}

// === impl Only ===

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Only<'_, T> {
    type Value = Option<T>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Only<'_, T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("sections")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(Section(name)) = map.next_key()? {
            if name == self.0 {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// Returns the name of `known` that is most similar to `word`; `None` if none is similar.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.map(|one| (strsim::jaro_winkler(word, one), one));
    // In a short word, one wrong letter lowers the similarity below the limit.
    let near = near.filter(|(similarity, one)| {
        *similarity >= SIMILARITY || word.len() > 1 && strsim::osa_distance(word, one) == 1
    });
    near.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, one)| one)
}

/// Returns serde's message about an unknown name with the nearest of those that it lists, instead
/// of them all.
fn suggesting(message: &str) -> String {
    let unknown =
        message.starts_with("unknown field `") || message.starts_with("unknown variant `");
    let Some((what, known)) = message.split_once(", expected ").filter(|_| unknown) else {
        return message.to_owned();
    };
    let word = what.split('`').nth(1).unwrap_or_default();
    match nearest(word, known.split('`').skip(1).step_by(2)) {
        Some(near) => format!("{what}: did you mean `{near}`?"),
        None => message.to_owned(),
    }
}

/// Returns the path of a field as it is written.
fn field_name(path: &serde_path_to_error::Path) -> String {
    let mut name = String::new();
    for segment in path {
        match segment {
            // The field name that `toml::Spanned` uses inside serde.
            Segment::Map { key } if key.starts_with("$__serde") => {}
            Segment::Map { key } if name.is_empty() => name.push_str(key),
            Segment::Map { key } => name.extend([".", key]),
            Segment::Seq { index } => name.push_str(&format!("[{index}]")),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    name
}

/// Joins a parser's message of several lines to one sentence.
fn one_sentence(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Watch {
        interval: Option<toml::Spanned<u32>>,
        keep: Option<u32>,
    }

    fn read(text: &str) -> Result<Option<Watch>, String> {
        let file = ConfigFile::new(Path::new("t"), text.to_owned());
        file.section("watch").map_err(|e| e.to_string())
    }

    #[test]
    fn a_section_is_read_beside_others_of_any_content() {
        let text = "[relay]\nwhatever = [1]\n[watch]\nkeep = 3\n[mesh.dns]\nx = 1\n";
        assert_eq!(read(text).unwrap().unwrap().keep, Some(3));
        assert_eq!(read("[relay]\nx = 1\n"), Ok(None));
        assert_eq!(read(""), Ok(None));
    }

    #[test]
    fn a_mistake_has_its_line_and_its_field_and_the_nearest_name() {
        for (text, sentence) in [
            (
                "[watch]\nkep = 1",
                "t:2: watch.kep: unknown field `kep`: did you mean `keep`?",
            ),
            (
                "\n[wach]\nkeep = 1",
                "t:2: wach: unknown field `wach`: did you mean `watch`?",
            ),
            (
                "[watch]\nhost = 1",
                "t:2: watch.host: unknown field `host`, expected `interval` or `keep`",
            ),
            (
                "[watch]\n\ninterval = \"x\"",
                "t:3: watch.interval: invalid type: string \"x\", expected u32",
            ),
            (
                "watch = 1",
                "t:1: watch: invalid type: integer `1`, expected struct Watch",
            ),
        ] {
            assert_eq!(read(text).unwrap_err(), sentence);
        }
        assert!(read("[watch\n").unwrap_err().starts_with("t:1: "));
    }

    #[test]
    fn the_nearest_name_is_one_that_may_have_been_meant() {
        let commands = ["top", "why", "watch", "tune", "relay"];
        let near = |word| nearest(word, commands.into_iter());
        assert_eq!(near("wy"), Some("why"));
        assert_eq!(near("tpo"), Some("top"));
        assert_eq!(near("rely"), Some("relay"));
        assert_eq!(near("watchdog"), Some("watch"));
        assert_eq!((near("x"), near("status")), (None, None));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = ConfigFile::load(Path::new("/nowhere/taut.toml")).unwrap_err();
        let said = error.to_string();
        assert!(
            said.starts_with("cannot read /nowhere/taut.toml: "),
            "{said}"
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text: String) {
            let _ = read(&text);
            let _ = read(&format!("[watch]\n{text}"));
        }
    }
}
