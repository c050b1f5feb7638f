//! `taut-lab all`: every experiment, one after the other, and their page.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use taut_lab::experiment::outcome::{Outcome, Trust};
use taut_lab::experiment::progress::say;
use taut_lab::experiment::{Experiment, Form, Request, table};
use taut_lab::{registry, report};

use crate::running::{Failure, beside, busy, find, prepare, print, write_json};

/// Run every experiment, one after the other, and make DIR/report.html
#[derive(clap::Args)]
pub(crate) struct All {
    /// The directory for the outcomes (NAME.json) and the page
    dir: PathBuf,
    /// Run the short forms, within 60 seconds each
    #[arg(long)]
    quick: bool,
    /// Seed of random choices; the same seed makes the same choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep the outcomes that are in DIR and run only the other experiments
    #[arg(long)]
    resume: bool,
    /// Run only these experiments, which commas separate
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// The tree that this program was built from, such as a commit: the page marks outcomes of others
    #[arg(long, value_name = "TEXT")]
    tree: Option<String>,
    /// The `taut` binary to measure [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    taut: Option<PathBuf>,
}

/// How an experiment ended.
enum End {
    Calibrated,
    Busy(String),
    NotCalibrated,
    Failed(String),
}

pub(crate) fn run(args: &All) -> Result<(), Failure> {
    let dir = &args.dir;
    let usage = |e: &dyn std::fmt::Display| Failure::Usage(format!("{}: {e}", dir.display()));
    fs::create_dir_all(dir).map_err(|e| usage(&e))?;
    let mut kept = BTreeMap::new();
    for experiment in registry::ALL {
        kept.extend(kept_outcome(args, experiment)?.map(|outcome| (experiment.name, outcome)));
    }
    if !args.resume && !kept.is_empty() {
        return Err(usage(
            &"this directory has outcomes already; name another one, or keep them and run only the other experiments with --resume",
        ));
    }
    let mut chosen = Vec::new();
    for name in &args.only {
        chosen.push(find(name)?.name);
    }
    let chosen = |experiment: &&Experiment| chosen.is_empty() || chosen.contains(&experiment.name);
    let experiments: Vec<&'static Experiment> = registry::ALL.iter().filter(chosen).collect();
    // Checked before hours of measurements, not after.
    beside(&dir.join("report.html")).map_err(|e| usage(&e))?;
    let request = Request {
        form: Form::of(args.quick),
        seed: args.seed,
        runs: None,
        only: None,
        taut: prepare(args.taut.as_deref())?,
    };

    let is_left = |experiment: &&&Experiment| !kept.contains_key(experiment.name);
    let takes = |experiment: &Experiment| if args.quick { 1 } else { experiment.minutes };
    let left: u16 = experiments.iter().filter(is_left).map(|e| takes(e)).sum();
    say(&format!(
        "taut: this takes about {left} minutes on two cores"
    ));
    let began = Instant::now();
    let (mut bad, mut doubtful) = (Vec::new(), Vec::new());
    for (index, &experiment) in experiments.iter().enumerate() {
        say(&format!(
            "taut: {} of {}: {}, about {} min ({} min so far)",
            index + 1,
            experiments.len(),
            experiment.name,
            takes(experiment),
            began.elapsed().as_secs() / 60
        ));
        let end = match kept.get(experiment.name) {
            Some(outcome) => End::of(outcome),
            None => run_one(experiment, &request, args)?,
        };
        match end {
            End::Calibrated => {}
            End::Busy(sentence) => doubtful.push(format!("{}: {sentence}", experiment.name)),
            End::NotCalibrated => {
                bad.push(format!(
                    "{}: its world did not show the problem",
                    experiment.name
                ));
            }
            End::Failed(reason) => bad.push(format!("{}: {reason}", experiment.name)),
        }
    }

    let page = report::write(dir).map_err(|e| Failure::Run(e.to_string()))?;
    print(&format!("{}\n", page.display()))?;
    for sentence in doubtful {
        say(&format!("taut: {sentence}"));
    }
    match bad.is_empty() {
        true => Ok(()),
        false => Err(Failure::Run(format!(
            "{} of {} experiments have no figures that prove something; the page says so, too:\n    {}",
            bad.len(),
            experiments.len(),
            bad.join("\n    ")
        ))),
    }
}

/// Returns the outcome that is in the directory already, if it is one of this form and seed.
fn kept_outcome(args: &All, experiment: &Experiment) -> Result<Option<Outcome>, Failure> {
    let file = report::outcome(&args.dir, experiment.name);
    let usage = |e: &dyn std::fmt::Display| Failure::Usage(format!("{}: {e}", file.display()));
    let bytes = match fs::read(&file) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|e| usage(&e))?,
    };
    let outcome: Outcome = serde_json::from_slice(&bytes).map_err(|e| usage(&e))?;
    match outcome.quick == args.quick && outcome.seed == args.seed {
        true => Ok(Some(outcome)),
        false => Err(usage(
            &"this outcome is of another form (--quick) or --seed; name another directory",
        )),
    }
}

/// Runs an experiment and writes its outcome, or the reason why there is none, into `dir`.
fn run_one(experiment: &'static Experiment, request: &Request, args: &All) -> Result<End, Failure> {
    let dir = &args.dir;
    // A thread of its own: what an experiment does to its thread does not reach the next one, and
    // if it panics, the others still run.
    let ran = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(experiment.name.to_owned());
        let thread = thread.spawn_scoped(scope, || (experiment.run)(request));
        thread.map(|running| running.join())
    });
    let mut outcome = match ran {
        Ok(Ok(Ok(outcome))) => outcome,
        Ok(Ok(Err(e))) => return fail(experiment, dir, &e.to_string()),
        Ok(Err(_)) => return fail(experiment, dir, "a defect of the experiment: it panicked"),
        Err(e) => return fail(experiment, dir, &format!("cannot start a thread: {e}")),
    };
    outcome.tree.clone_from(&args.tree);
    let file = report::outcome(dir, experiment.name);
    let written = beside(&file).and_then(|temporary| write_json(&outcome, temporary, &file));
    written.map_err(|e| Failure::Run(format!("{}: {e}", file.display())))?;
    remove(&report::reason(dir, experiment.name))?;
    print(&table::render(&outcome))?;
    Ok(End::of(&outcome))
}

fn fail(experiment: &Experiment, dir: &Path, reason: &str) -> Result<End, Failure> {
    let file = report::reason(dir, experiment.name);
    fs::write(&file, reason).map_err(|e| Failure::Run(format!("{}: {e}", file.display())))?;
    say(&format!("taut: {}: {reason}", experiment.name));
    Ok(End::Failed(reason.to_owned()))
}

/// Removes a file that may not be there.
fn remove(file: &Path) -> Result<(), Failure> {
    match fs::remove_file(file) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::Run(format!("{}: {e}", file.display())))
        }
        _ => Ok(()),
    }
}

// === impl End ===

impl End {
    fn of(outcome: &Outcome) -> Self {
        match outcome.calibration.trust() {
            Trust::Calibrated | Trust::Unchecked => Self::Calibrated,
            Trust::Busy => Self::Busy(busy(outcome)),
            Trust::Failed => Self::NotCalibrated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(dir: &Path, change: impl FnOnce(&mut All)) -> String {
        let mut args = All {
            dir: dir.to_owned(),
            quick: true,
            seed: 3,
            resume: false,
            only: Vec::new(),
            tree: None,
            taut: None,
        };
        change(&mut args);
        match run(&args) {
            Err(Failure::Usage(sentence)) => sentence,
            Err(Failure::Run(sentence)) => panic!("it began: {sentence}"),
            Ok(()) => panic!("it ran"),
        }
    }

    #[test]
    fn outcomes_are_neither_replaced_nor_mixed_with_others() {
        let dir = tempfile::tempdir().unwrap();
        let file = report::outcome(dir.path(), "incast");
        // Quick, with seed 3.
        fs::write(&file, include_str!("report/testdata/incast.json")).unwrap();
        let replaced = refused(dir.path(), |_| {});
        assert!(replaced.contains("has outcomes already") && replaced.contains("--resume"));
        for mixed in [
            refused(dir.path(), |args| (args.resume, args.quick) = (true, false)),
            refused(dir.path(), |args| (args.resume, args.seed) = (true, 4)),
        ] {
            assert!(
                mixed.contains("incast.json") && mixed.contains("another form"),
                "{mixed}"
            );
        }
        fs::write(&file, "{").unwrap();
        let malformed = refused(dir.path(), |args| args.resume = true);
        assert!(malformed.contains("incast.json"), "{malformed}");
    }

    #[test]
    fn all_full_forms_take_three_hours_at_most() {
        let minutes: u16 = registry::ALL.iter().map(|e| e.minutes).sum();
        assert!(minutes <= 180, "{minutes}");
        assert!(registry::ALL.iter().all(|e| e.minutes <= 20));
    }

    #[test]
    fn an_unknown_experiment_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let unknown = refused(dir.path(), |args| {
            args.only = vec!["incast".into(), "pied".into()];
        });
        assert!(unknown.contains("`pied`"), "{unknown}");
    }
}
