//! The outcomes of undoing changes.

/// The outcome of undoing one change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoOutcome {
    /// It has its value from before.
    Restored,
    /// It, or its namespace, does not exist any more.
    Gone,
    /// Another program or an administrator has changed it since, and it is left as it is.
    Foreign,
}

/// How many changes were undone, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UndoSummary {
    /// Values that are as before.
    pub restored: usize,
    /// Changes of what does not exist any more.
    pub gone: usize,
    /// Values that others have changed since, and that are left as they are.
    pub foreign: usize,
    /// Changes that could not be undone, and stay in the journal.
    pub failed: usize,
}
