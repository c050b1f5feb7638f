//! What happened in a world, in words, for the replay of a seed.

use crate::engine::Time;

/// The most lines that are kept: those before the end.
const LINES: usize = 400;

/// The trace of a run. It is kept only in a replay, because most seeds have nothing to show.
pub(crate) struct Trace {
    tells: bool,
    lines: std::collections::VecDeque<String>,
}

impl Trace {
    pub(crate) fn new(tells: bool) -> Self {
        Self {
            tells,
            lines: std::collections::VecDeque::new(),
        }
    }

    pub(crate) fn tell(&mut self, at: Time, line: impl FnOnce() -> String) {
        if !self.tells {
            return;
        }
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines
            .push_back(format!("{:>10.4} s  {}", at.as_secs_f64(), line()));
    }

    /// Returns the lines that were kept.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            text.push_str(line);
            text.push('\n');
        }
        text
    }
}
