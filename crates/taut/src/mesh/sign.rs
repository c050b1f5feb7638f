//! `taut mesh sign`: signs the list of members with the key of the mesh.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Args as ClapArgs;
use taut_observe::versioned::Versioned;
use taut_relay::identity::{PrivateKey, PublicKey};
use taut_relay::members::{Members, Statement, sign};
use taut_sys::plural::counted;

use crate::failure::Failure;

/// Sign a list of members with the key of the mesh
///
/// Relays whose configuration has the public key of the mesh (relay.mesh.members_key) accept only lists signed by it. The
/// serial is the time in seconds, or one more than that of the list that is replaced: relays never go back to a
/// list with a lower serial.
#[derive(ClapArgs)]
#[command(after_help = "Example:
  taut mesh sign members.toml --key mesh.key --output /etc/taut/members.toml")]
pub(super) struct SignArgs {
    /// The list: TOML with a table `member` for each relay
    list: PathBuf,
    /// The private key of the mesh, from `taut mesh keygen`; keep it off the relays
    #[arg(long, value_name = "FILE", help_heading = "The key")]
    key: PathBuf,
    /// Where the signed list goes; the list that is there is replaced
    #[arg(long, value_name = "FILE", help_heading = "The list")]
    output: PathBuf,
    /// Time after which relays report that the list should have been signed again
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = humantime::parse_duration, help_heading = "The list")]
    valid: Duration,
    /// The list is meant to have less than half of the members of the one before
    #[arg(long, help_heading = "The list")]
    smaller: bool,
    /// Serial of the list, instead of the time
    #[arg(long, value_name = "NUMBER", help_heading = "The list")]
    serial: Option<u64>,
    /// Print what was signed as JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// What was signed.
#[derive(serde::Serialize)]
struct Signed {
    /// The file with the signed list.
    file: String,
    /// Members in the list.
    members: usize,
    /// The serial of the list.
    serial: u64,
    /// The time at which the list expires, RFC 3339, UTC.
    expires: String,
}

pub(super) fn run(args: &SignArgs) -> Result<(), Failure> {
    let at =
        |path: &Path, e: &dyn std::fmt::Display| Failure::Run(format!("{}: {e}", path.display()));
    let key = PrivateKey::load(&args.key).map_err(|e| Failure::Run(e.to_string()))?;
    let list = fs::read_to_string(&args.list).map_err(|e| at(&args.list, &e))?;
    let members = Members::parse(&list).map_err(|e| at(&args.list, &e))?;
    let before = previous(&args.output, &key.public()).map_err(|e| at(&args.output, &e))?;

    let now = SystemTime::now();
    let seconds = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |t| t.as_secs());
    let said = before.as_ref().and_then(Members::statement);
    let next = said.map_or(seconds, |said| seconds.max(said.serial.saturating_add(1)));
    let serial = args.serial.unwrap_or(next);
    if let Some(said) = said.filter(|said| serial <= said.serial) {
        return Err(Failure::Usage(format!(
            "--serial {serial} is not above {}, the serial of {}: relays that have that list would refuse this one",
            said.serial,
            args.output.display()
        )));
    }
    let loses_half = before
        .as_ref()
        .is_some_and(|b| members.iter().len() * 2 < b.iter().len());
    if loses_half && !args.smaller {
        let before = before.map_or(0, |b| b.iter().len());
        return Err(Failure::Run(format!(
            "{} has {}, and {} has {before}; if that is intended, add --smaller",
            args.list.display(),
            counted(members.iter().len(), "member"),
            args.output.display()
        )));
    }
    let statement = Statement {
        serial,
        expires: Some(
            now.checked_add(args.valid)
                .ok_or_else(|| Failure::Usage("--valid is too long".into()))?,
        ),
        smaller_since: match args.smaller {
            true => Some(serial),
            // Relays that have missed that list need the word for it with this one.
            false => said.and_then(|said| said.smaller_since),
        },
    };
    let signed = sign(&list, &statement, &key).map_err(|e| at(&args.list, &e))?;
    write(&args.output, &signed).map_err(|e| at(&args.output, &e))?;
    let expires = humantime::format_rfc3339_seconds(now + args.valid).to_string();
    let report = Signed {
        file: args.output.display().to_string(),
        members: members.iter().len(),
        serial,
        expires,
    };
    let text = match args.json {
        true => Versioned::new(&report)
            .pretty()
            .map_err(|e| Failure::Run(e.to_string()))?,
        false => format!(
            "{}: {}, serial {serial}, expires {}\n",
            report.file,
            counted(report.members, "member"),
            report.expires
        ),
    };
    crate::failure::print(&text)
}

/// Returns the signed list that is replaced, if there is one.
fn previous(path: &Path, key: &PublicKey) -> Result<Option<Members>, String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
        Ok(text) => {
            let hint = "it would be replaced; choose another --output, or remove it";
            let members = Members::parse_signed(&text, &[*key]);
            members
                .map(Some)
                .map_err(|error| format!("{error}; {hint}"))
        }
    }
}

/// Writes a file that is complete before it has its name.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    fs::write(&new, text)?;
    fs::rename(&new, path)
}
