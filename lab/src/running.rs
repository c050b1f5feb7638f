//! What every way to run experiments needs.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use taut_config::nearest;
use taut_lab::experiment::Experiment;
use taut_lab::experiment::outcome::Outcome;
use taut_lab::registry;
use taut_netlab::interrupt;

/// An error, and whether the command line caused it.
pub(crate) enum Failure {
    /// The command line is wrong: exit code 2.
    Usage(String),
    /// Anything else: exit code 1.
    Run(String),
}

/// Makes this process ready for experiments, and returns the path of the `taut` binary to measure.
pub(crate) fn prepare(taut: Option<&Path>) -> Result<PathBuf, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::Run(
            "experiments need root, to make network namespaces: run this as root".to_owned(),
        ));
    }
    let taut = taut_binary(taut)?;
    interrupt::tear_down_on_signals()
        .map_err(|e| Failure::Run(format!("cannot handle signals: {e}")))?;
    Ok(taut)
}

/// Returns the path of the `taut` binary: the requested path, or the binary beside this program.
fn taut_binary(asked_for: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(path) = asked_for {
        return std::fs::canonicalize(path)
            .map_err(|e| Failure::Usage(format!("--taut {}: {e}", path.display())));
    }
    let lab = std::env::current_exe()
        .map_err(|e| Failure::Run(format!("cannot find the program's own path: {e}")))?;
    let taut = lab.with_file_name("taut");
    match taut.is_file() {
        true => Ok(taut),
        false => Err(Failure::Run(format!(
            "there is no `taut` beside {}; name one with --taut PATH, or build it with\n\n    \
             cargo build --package taut",
            lab.display()
        ))),
    }
}

/// Prints to standard output. A closed pipe (`| head`) is not an error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    use std::io::ErrorKind;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Failure::Run(format!(
            "cannot write to standard output: {e}"
        ))),
        _ => Ok(()),
    }
}

/// Says that the machine was busy, and which checks show it.
pub(crate) fn busy(outcome: &Outcome) -> String {
    format!(
        "this machine was busy ({}), so its figures are doubtful; run it again when the machine has time",
        outcome.calibration.busy.join(", ")
    )
}

pub(crate) fn find(name: &str) -> Result<&'static Experiment, Failure> {
    registry::ALL
        .iter()
        .find(|e| e.name == name)
        .ok_or_else(|| {
            let near = nearest(name, registry::ALL.iter().map(|e| e.name));
            let hint = near.map_or_else(
                || "`taut lab list` lists the experiments".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            Failure::Usage(format!("there is no experiment `{name}`: {hint}"))
        })
}

/// Creates a temporary file in the directory of `file`, to replace `file` later.
pub(crate) fn beside(file: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    tempfile::Builder::new()
        // The permissions of an ordinary file, less the umask.
        .permissions(std::fs::Permissions::from_mode(0o644))
        .prefix(".taut-lab-")
        .tempfile_in(dir.unwrap_or(Path::new(".")))
}

pub(crate) fn write_json(
    outcome: &Outcome,
    mut beside: tempfile::NamedTempFile,
    file: &Path,
) -> std::io::Result<()> {
    serde_json::to_writer_pretty(&mut beside, outcome)?;
    beside.write_all(b"\n")?;
    beside.persist(file)?;
    Ok(())
}
