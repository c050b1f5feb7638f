//! The outcomes of undoing changes.

/// The outcome of undoing one change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoOutcome {
    /// The original value is restored.
    Restored,
    /// The target or its namespace no longer exists.
    Gone,
    /// Another program or an administrator has changed the value since, so it is left as it is.
    Foreign,
}

/// The number of changes by the outcome of undoing them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UndoSummary {
    /// Changes whose original values are restored.
    pub restored: usize,
    /// Changes whose targets no longer exist.
    pub gone: usize,
    /// Changes whose values others have changed since; they are left as they are.
    pub foreign: usize,
    /// Changes that could not be undone. They stay in the journal.
    pub failed: usize,
}
