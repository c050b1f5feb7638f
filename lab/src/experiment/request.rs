//! What a run is asked for.

use std::path::PathBuf;

/// How much an experiment measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// What the published figures need.
    Full,
    /// The short form, which ends within 60 s.
    Quick,
    /// A few seconds: too little for figures, enough to show that the experiment runs. For tests.
    Smoke,
}

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Request {
    /// How much to measure.
    pub form: Form,
    /// The seed of random choices.
    pub seed: u64,
    /// The number of measurements of each configuration; `None` for the form's default.
    pub runs: Option<usize>,
    /// Runs only the parts whose names contain this, for experiments with parts.
    pub only: Option<String>,
    /// The `taut` binary to measure.
    pub taut: PathBuf,
}

#[cfg(test)]
impl Request {
    /// A request as a unit test needs it.
    pub(crate) fn of_test(form: Form) -> Self {
        Self {
            form,
            seed: 1,
            runs: None,
            only: None,
            taut: "taut".into(),
        }
    }
}

// === impl Form ===

impl Form {
    /// Returns the short form if `quick`, or else the full one.
    pub fn of(quick: bool) -> Self {
        if quick { Self::Quick } else { Self::Full }
    }

    /// Returns whether this is not the full form.
    pub fn is_short(self) -> bool {
        self != Self::Full
    }

    /// Returns what belongs to this form.
    pub(crate) fn pick<T>(self, full: T, quick: T, smoke: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
            Self::Smoke => smoke,
        }
    }
}
