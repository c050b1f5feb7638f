//! What the tour says, and its pauses.

use std::io::{self, BufRead as _, IsTerminal as _};

use crate::failure::{Failure, print};
use crate::terminal::{PAGE, fit, width, wrap};

/// How much what is slow must gain for the tour to call it a gain.
const GAIN: f64 = 1.2;

/// Prints a paragraph, and an empty line after it.
pub(super) fn say(paragraph: &str) -> Result<(), Failure> {
    let lines = wrap(paragraph, width().min(PAGE));
    print(&format!("{}\n\n", lines.join("\n")))
}

/// Prints a command as at a shell, below it what it has said, and an empty line.
pub(super) fn shown(words: &str, lines: &[String]) -> Result<(), Failure> {
    print(&format!("$ taut {words}\n"))?;
    output(lines)
}

/// Prints what a command has said, and an empty line.
pub(super) fn output(lines: &[String]) -> Result<(), Failure> {
    print(&format!(
        "{}\n\n",
        fit(lines.join("\n").trim_end(), width()).trim_end()
    ))
}

/// Says what is shown, and that it is safe.
pub(super) fn beginning() -> Result<(), Failure> {
    say(&format!(
        "This tour makes a network of network namespaces on this machine: a client and a server, {} ms and {} apart. \
         Nothing outside of it is changed, except that its relays add a congestion control while they run, and it is removed at the end. The figures are measured while you watch.",
        super::network::ROUND_TRIP.as_millis(),
        super::network::RATE
    ))
}

/// Says how to begin on real hosts.
pub(super) fn ending() -> Result<(), Failure> {
    say("The network, its processes and its files are removed. On your own hosts, begin with:")?;
    print(
        "  sudo taut why    what limits connections; changes nothing\n  \
         sudo taut tune   shows the buffers that --apply would change\n  \
         taut relay       how to begin with a relay\n",
    )
}

/// Returns by how much `after` is better than `before` in words; `None` if it is not.
pub(super) fn gain(before: f64, after: f64) -> Option<String> {
    let times = after / before;
    (times >= GAIN).then(|| format!("{times:.1} times as fast"))
}

/// Says that there is no gain, and why. `is_late`: the links of the network did not get enough of the
/// processors.
pub(super) fn no_gain(figures: &str, is_late: bool) -> Result<(), Failure> {
    let why = match is_late {
        true => {
            "This machine was busy: the network was later than it is made to be, so the figures say nothing about Taut."
        }
        false => "Unless this machine was busy, `taut doctor` says what it lacks.",
    };
    say(&format!("{figures}. That is no gain. {why}"))
}

/// Waits for Enter where there is a terminal.
pub(super) struct Pause {
    waits: bool,
}

// === impl Pause ===

impl Pause {
    pub(super) fn new(yes: bool) -> Self {
        let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
        Self {
            waits: !yes && is_terminal,
        }
    }

    /// Says what comes next, and waits for Enter.
    pub(super) fn before(&self, what: &str) -> Result<(), Failure> {
        if !self.waits {
            return Ok(());
        }
        print(&format!("Press Enter to {what}: "))?;
        // At the end of the input the tour goes on.
        let _ = io::stdin().lock().read_line(&mut String::new());
        print("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_is_called_one_only_if_it_is_more_than_noise() {
        assert_eq!(gain(5.0, 47.4).as_deref(), Some("9.5 times as fast"));
        assert_eq!(gain(5.0, 5.5), None);
        assert_eq!(gain(5.0, 4.0), None);
        assert_eq!(gain(0.0, 0.0), None);
    }
}
