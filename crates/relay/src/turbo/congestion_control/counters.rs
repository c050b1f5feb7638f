//! What the programs count.

use libbpf_rs::{MapCore, MapFlags, MapHandle};

/// One thing that is counted; `enum pipe_count` of `taut_pipe.h`, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Connections that began with `taut_pipe`.
    Started,
    /// Of these, at a rate that their peer was known for, below the configured one.
    StartedKnown,
    /// Segments lost, and sent again without backing off.
    Lost,
    /// Segments that a router marked instead (ECN).
    Marked,
    /// Rounds with more loss than the threshold.
    LossyRounds,
    /// Connections handed to the kernel's own control because loss persisted.
    FellBack,
    /// Times the kernel took none of the fall-backs; the connection was slowed down instead.
    FallBackFailed,
    /// Times a rate was lowered because of a standing queue.
    Capped,
    /// Times a lowered rate was raised again.
    Raised,
    /// Times a peer's rate could not be written down.
    PeerNotKept,
}

impl Count {
    /// All of them, in the order of the programs.
    pub const ALL: [Self; 10] = [
        Self::Started,
        Self::StartedKnown,
        Self::Lost,
        Self::Marked,
        Self::LossyRounds,
        Self::FellBack,
        Self::FallBackFailed,
        Self::Capped,
        Self::Raised,
        Self::PeerNotKept,
    ];

    /// Its name in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::StartedKnown => "started_known",
            Self::Lost => "lost",
            Self::Marked => "marked",
            Self::LossyRounds => "lossy_rounds",
            Self::FellBack => "fell_back",
            Self::FallBackFailed => "fall_back_failed",
            Self::Capped => "capped",
            Self::Raised => "raised",
            Self::PeerNotKept => "peer_not_kept",
        }
    }
}

/// What was counted up to now, on all CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters([u64; Count::ALL.len()]);

impl Counters {
    pub(super) fn read(map: &MapHandle) -> Result<Self, libbpf_rs::Error> {
        let mut counters = Self::default();
        for (key, total) in (0u32..).zip(&mut counters.0) {
            let of_cpus = map.lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY)?;
            for value in of_cpus.iter().flatten() {
                let value = value.first_chunk().map_or(0, |c| u64::from_ne_bytes(*c));
                *total = total.wrapping_add(value);
            }
        }
        Ok(counters)
    }

    /// How often.
    pub fn get(&self, count: Count) -> u64 {
        self.0[count as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_stands_where_the_program_counts_it() {
        let header = include_str!("taut_pipe.h");
        let body = header.split("enum pipe_count {").nth(1).expect("the enum");
        let names: Vec<_> = body
            .lines()
            .map_while(|line| match line.trim() {
                "};" => None,
                line => Some(line),
            })
            .filter_map(|line| line.strip_prefix("PIPE_")?.split(',').next())
            .map(str::to_lowercase)
            .collect();
        let labels = Count::ALL.map(Count::label);
        assert_eq!(names[..names.len() - 1], labels);
        assert_eq!(names.last().map(String::as_str), Some("counts"));
        for (i, count) in Count::ALL.into_iter().enumerate() {
            assert_eq!(count as usize, i);
        }
    }
}
