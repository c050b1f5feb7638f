//! Options of a command in a section of the configuration file.
//!
//! The keys of `[tune]`, `[watch]` and `[guest]` are the long options of `taut tune`, `taut watch` and
//! `taut guest up`, with `_` for `-`, and `filter`. So each option has its name, its help and its checks in
//! one place. An option of the command line takes the place of the file's, and of those of the file that it
//! conflicts with.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use taut_config::{ConfigError, ConfigFile, Entry, Value, nearest};

use crate::failure::Failure;

/// A section whose keys are options.
pub(crate) struct Section {
    pub(crate) name: &'static str,
    /// The words of its command, after `taut`.
    pub(crate) command: &'static [&'static str],
}

/// All of them.
pub(crate) const SECTIONS: [Section; 3] = [
    Section {
        name: "tune",
        command: &["tune"],
    },
    Section {
        name: "watch",
        command: &["watch"],
    },
    Section {
        name: "guest",
        command: &["guest", "up"],
    },
];

/// Options that a file may not set.
const NOT_IN_A_FILE: [&str; 4] = ["config", "help", "version", "undo"];

/// The file to read more options from.
#[derive(clap::Args)]
pub(crate) struct FileArgs {
    /// Also read options from this command's section of a file such as /etc/taut/taut.toml. A key is an option's
    /// name with _ for -; options of the command line win
    #[arg(short, long, value_name = "FILE", help_heading = "Configuration")]
    config: Option<PathBuf>,
}

/// An option that a file sets.
struct FileOption {
    entry: Entry,
    /// Clap's name of it.
    id: String,
    /// As the command line would have it.
    words: Vec<OsString>,
}

/// Parses the command line of `taut`, with the options of the file that it names. Ends the process if the
/// command line has a mistake.
///
/// # Errors
/// [`Failure::Usage`]: the file has a mistake, or cannot be read.
pub(crate) fn command_line(taut: &Command) -> Result<ArgMatches, Failure> {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    // A person, not a script.
    if words.len() == 1 && std::io::stdout().is_terminal() {
        words.push("status".into());
    }
    let error = match taut.clone().try_get_matches_from(&words) {
        Ok(matches) => {
            let merged = from_file(taut, &words, &matches)?;
            return Ok(merged.unwrap_or(matches));
        }
        Err(error) => error,
    };
    // What is missing may be in the file.
    if error.kind() == ErrorKind::MissingRequiredArgument {
        let lenient = taut.clone().ignore_errors(true);
        if let Ok(matches) = lenient.try_get_matches_from(&words)
            && let Some(merged) = from_file(taut, &words, &matches)?
        {
            return Ok(merged);
        }
    }
    let first = words.get(1).and_then(|word| word.to_str());
    with_hint(error, taut, first.unwrap_or_default()).exit()
}

/// Adds the nearest command to the error about an unknown `first` word: clap finds none that is near to a short
/// one.
fn with_hint(mut error: clap::Error, taut: &Command, first: &str) -> clap::Error {
    let unknown = error.get(ContextKind::InvalidSubcommand);
    let is_first = matches!(unknown, Some(ContextValue::String(word)) if word == first);
    let near = nearest(first, taut.get_subcommands().map(Command::get_name));
    if let Some(near) = near.filter(|_| is_first) {
        let near = ContextValue::Strings(vec![near.to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, near);
    }
    error
}

/// Checks a section of a file as if its command had no other options. Returns them.
///
/// # Errors
/// [`ConfigError`].
pub(crate) fn check(
    taut: &Command,
    file: &ConfigFile,
    section: &Section,
) -> Result<ArgMatches, ConfigError> {
    let options = section.read(taut, file)?;
    section.parse(taut, file, &section.words(), &options)
}

/// Returns the command line with the options of the file that it names, if it names one.
fn from_file(
    taut: &Command,
    words: &[OsString],
    matches: &ArgMatches,
) -> Result<Option<ArgMatches>, Failure> {
    for section in &SECTIONS {
        let mut at = Some(matches);
        for word in section.command {
            at = at.and_then(|matches| matches.subcommand_matches(word));
        }
        let Some(matches) = at else { continue };
        let Some(path) = matches.get_one::<PathBuf>("config") else {
            return Ok(None);
        };
        let file = match path == Path::new(taut_config::PATH) {
            true => ConfigFile::load_default(),
            false => ConfigFile::load(path).map(Some),
        };
        let merge = |file: ConfigFile| {
            let mut options = section.read(taut, &file)?;
            section.leave_out_overridden(taut, matches, &mut options);
            section.parse(taut, &file, words, &options)
        };
        return file
            .and_then(|file| file.map(merge).transpose())
            .map_err(|error| Failure::Usage(error.to_string()));
    }
    Ok(None)
}

// === impl Section ===

impl Section {
    /// Returns its command.
    fn command_of(&self, taut: &Command) -> Command {
        let mut command = taut.clone();
        // With the arguments of the commands above it.
        command.build();
        for word in self.command {
            let found = command.find_subcommand(word);
            command = found.expect("a command of Taut's").clone();
        }
        command
    }

    /// Removes the options that are on the command line, and those that conflict with what is there.
    fn leave_out_overridden(
        &self,
        taut: &Command,
        line: &ArgMatches,
        options: &mut Vec<FileOption>,
    ) {
        let command = self.command_of(taut);
        let is_explicit = |arg: &&Arg| {
            let known = line.try_contains_id(arg.get_id().as_str()).is_ok();
            known && line.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
        };
        let explicit: Vec<&Arg> = command.get_arguments().filter(is_explicit).collect();
        let conflicts = |one: &Arg, other: &Arg| {
            let all = command.get_arg_conflicts_with(one);
            all.iter().any(|arg| arg.get_id() == other.get_id())
        };
        options.retain(|option| {
            let same = |arg: &&Arg| arg.get_id() == &*option.id;
            let Some(arg) = command.get_arguments().find(same) else {
                return true;
            };
            !explicit.iter().any(|line| {
                line.get_id() == arg.get_id() || conflicts(line, arg) || conflicts(arg, line)
            })
        });
    }

    /// Returns the keys of the section, with their options.
    pub(crate) fn keys(&self, taut: &Command) -> Vec<(String, Arg)> {
        let command = self.command_of(taut);
        let name_of = |arg: &Arg| match arg.get_long() {
            Some(long) => Some(long.replace('-', "_")),
            None => arg.is_positional().then(|| arg.get_id().to_string()),
        };
        let settings = command
            .get_arguments()
            .filter(|arg| !NOT_IN_A_FILE.contains(&arg.get_id().as_str()));
        settings
            .filter_map(|arg| Some((name_of(arg)?, arg.clone())))
            .collect()
    }

    /// Reads the options of the section.
    fn read(&self, taut: &Command, file: &ConfigFile) -> Result<Vec<FileOption>, ConfigError> {
        let section = self.name;
        let known = self.keys(taut);
        let entries = file.entries(section)?.unwrap_or_default();
        let option = |entry: Entry| {
            let mistake = |what: &str| {
                let key = &entry.key;
                file.invalid(entry.offset, format!("{section}.{key}: {what}"))
            };
            let Some((_, arg)) = known.iter().find(|(name, _)| *name == entry.key) else {
                let key = &entry.key;
                let near = nearest(key, known.iter().map(|(name, _)| &**name));
                let hint = near.map_or_else(
                    || format!("`taut {} --help` lists the options", self.command.join(" ")),
                    |near| format!("did you mean `{near}`?"),
                );
                return Err(mistake(&format!("unknown field `{key}`: {hint}")));
            };
            let words = written(arg, &entry.value).map_err(mistake)?;
            Ok(FileOption {
                id: arg.get_id().to_string(),
                entry,
                words,
            })
        };
        entries.into_iter().map(option).collect()
    }

    /// Parses a command line with these options after the words of the command.
    fn parse(
        &self,
        taut: &Command,
        file: &ConfigFile,
        words: &[OsString],
        options: &[FileOption],
    ) -> Result<ArgMatches, ConfigError> {
        let with = |words: &[OsString], options: &[FileOption]| {
            let mut all = words.to_vec();
            let last = self.command.last().map(OsString::from);
            let last = all
                .iter()
                .skip(1)
                .position(|word| Some(word) == last.as_ref());
            let after = last.map_or(all.len(), |at| at + 2);
            all.splice(after..after, options.iter().flat_map(|o| o.words.clone()));
            taut.clone().try_get_matches_from(all)
        };
        let error = match with(words, options) {
            Ok(matches) => return Ok(matches),
            Err(error) => error,
        };
        for option in options {
            if let Err(error) = with(&self.words(), std::slice::from_ref(option))
                && error.kind() != ErrorKind::MissingRequiredArgument
            {
                let message = format!("{}.{}: {}", self.name, option.entry.key, sentence(&error));
                return Err(file.invalid(option.entry.offset, message));
            }
        }
        let first = options.iter().map(|option| option.entry.offset).min();
        let with = match *words == *self.words() {
            true => "",
            false => ", with the command line",
        };
        let message = format!("[{}]{with}: {}", self.name, sentence(&error));
        Err(file.invalid(first.unwrap_or_default(), message))
    }

    /// Returns the command line without options.
    fn words(&self) -> Vec<OsString> {
        let words = std::iter::once(&"taut").chain(self.command);
        words.map(OsString::from).collect()
    }
}

/// Returns an option of this value as the command line would have it.
fn written(arg: &Arg, value: &Value) -> Result<Vec<OsString>, &'static str> {
    let long = arg.get_long().map(|long| format!("--{long}"));
    let with = |value: &Value| {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Boolean(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => {
                return Err("must be a text or a number");
            }
        };
        Ok(match &long {
            Some(long) => format!("{long}={text}").into(),
            None => text.into(),
        })
    };
    match (arg.get_action(), value) {
        (ArgAction::SetTrue, Value::Boolean(true)) => {
            Ok(long.map(Into::into).into_iter().collect())
        }
        (ArgAction::SetTrue, Value::Boolean(false)) => Ok(Vec::new()),
        (ArgAction::SetTrue, _) => Err("must be true or false"),
        (ArgAction::Append, Value::Array(values)) => values.iter().map(with).collect(),
        (_, value) => Ok(vec![with(value)?]),
    }
}

/// Returns what clap says, in one line and without its advice.
fn sentence(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let said = text.split("\n\n").next().unwrap_or_default();
    let said = said.strip_prefix("error: ").unwrap_or(said);
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::Cli;

    /// Parses `words` as if the file had this text.
    fn parsed(text: &str, words: &str) -> Result<ArgMatches, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        std::fs::write(&path, text).unwrap();
        let mut words: Vec<OsString> = words.split(' ').map(Into::into).collect();
        words.push(format!("--config={}", path.display()).into());
        let taut = Cli::command();
        let matches = taut.clone().try_get_matches_from(&words).unwrap();
        match from_file(&taut, &words, &matches) {
            Ok(matches) => Ok(matches.unwrap()),
            Err(Failure::Usage(said) | Failure::Run(said)) => {
                Err(said.replace(path.to_str().unwrap(), "t"))
            }
        }
    }

    #[test]
    fn the_keys_are_options_and_those_of_the_command_line_win() {
        let text = "[tune]\napply = true\nadvise = false\nbudget = \"64MiB\"\nskip = [\"port 22\", \"port 23\"]\nfilter = \"dport 80\"\n";
        let matches = parsed(text, "taut tune --budget 1GiB").unwrap();
        let tune = matches.subcommand_matches("tune").unwrap();
        assert!(tune.get_flag("apply") && !tune.get_flag("advise"));
        assert_eq!(tune.get_one("budget"), Some(&(1u64 << 30)));
        let skip: Vec<_> = tune.get_many::<String>("skip").unwrap().collect();
        assert_eq!(skip, ["port 22", "port 23"]);
        let filter: Vec<_> = tune.get_many::<String>("filter").unwrap().collect();
        assert_eq!(filter, ["dport 80"]);

        let matches = parsed("[guest]\ndefault = \"bbr\"", "taut guest --no-sandbox up").unwrap();
        let guest = matches.subcommand_matches("guest").unwrap();
        let up = guest.subcommand_matches("up").unwrap();
        assert!(up.contains_id("default"));

        let matches = parsed(
            "[watch]\nkeep = 3\nto = \"/x\"\n[relay]\nx = 1",
            "taut watch",
        )
        .unwrap();
        let watch = matches.subcommand_matches("watch").unwrap();
        assert_eq!(watch.get_one("keep"), Some(&3u32));
        assert!(parsed("[snoop]\n", "taut watch").is_ok());
    }

    #[test]
    fn what_conflicts_with_the_command_line_is_left_out() {
        let text =
            "[tune]\napply = true\nbudget = \"64MiB\"\nnetns = \"blue\"\nmetrics = \"127.0.0.1:1\"";
        for (words, left_out) in [
            ("taut tune --advise", &["apply"][..]),
            ("taut tune --undo", &["apply", "metrics"]),
            ("taut tune --own-netns", &["netns"]),
        ] {
            let matches = parsed(text, words).unwrap();
            let tune = matches.subcommand_matches("tune").unwrap();
            for id in ["apply", "budget", "netns", "metrics"] {
                let is_set = tune.value_source(id) == Some(ValueSource::CommandLine);
                assert_eq!(is_set, !left_out.contains(&id), "{words}: {id}");
            }
        }
    }

    #[test]
    fn only_an_unknown_command_of_taut_gets_the_nearest() {
        let hint = |words: &str| {
            let words: Vec<_> = words.split(' ').collect();
            let taut = Cli::command();
            let error = taut.clone().try_get_matches_from(&words).unwrap_err();
            let error = with_hint(error, &taut, words[1]).render().to_string();
            error
                .lines()
                .find(|line| line.contains("tip:"))
                .map(str::to_owned)
        };
        assert!(hint("taut wy").unwrap().contains("'why'"));
        assert_eq!(hint("taut mesh watch"), None);
        assert_eq!(hint("taut zzzzzz"), None);
    }

    #[test]
    fn a_mistake_has_its_line_and_its_key() {
        for (text, words, sentence) in [
            (
                "[tune]\nbugdet = \"1MiB\"",
                "taut tune",
                "t:2: tune.bugdet: unknown field `bugdet`: did you mean `budget`?",
            ),
            (
                "[guest]\nundo = true",
                "taut guest up",
                "t:2: guest.undo: unknown field `undo`: `taut guest up --help` lists the options",
            ),
            (
                "[tune]\n\napply = 1",
                "taut tune",
                "t:3: tune.apply: must be true or false",
            ),
            (
                "[tune]\nbudget = true",
                "taut tune",
                "t:2: tune.budget: must be a text or a number",
            ),
            (
                "[tune]\ninterval = \"soon\"",
                "taut tune",
                "t:2: tune.interval: invalid value 'soon'",
            ),
            (
                "[tune]\napply = true\nper_cgroup = \"1MiB\"",
                "taut tune",
                "t:2: [tune], with the command line: the following required arguments were not provided: --budget",
            ),
            (
                "[watch]\nkeep = 3",
                "taut watch",
                "t:2: [watch], with the command line: ",
            ),
        ] {
            let said = parsed(text, words).unwrap_err();
            assert!(said.starts_with(sentence), "{text}: {said}");
        }
        let file = ConfigFile::new(Path::new("t"), "[watch]\nto = \"/x\"\nkeep = 0".to_owned());
        let said = check(&Cli::command(), &file, &SECTIONS[1])
            .unwrap_err()
            .to_string();
        assert!(
            said.starts_with("t:3: watch.keep: invalid value '0'"),
            "{said}"
        );
    }
}
