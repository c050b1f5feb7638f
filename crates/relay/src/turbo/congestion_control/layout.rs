//! The configuration of `taut_pipe`.

use super::name;
use super::raw::{self, PipeConfig};

/// The number of fall-back congestion controls that the program has room for.
pub(super) const FALLBACKS: usize = raw::PIPE_FALLBACKS as usize;

/// The maximum rate (`RATE_MAX`); above it, products of rates and times exceed 64 bits in the program.
pub(super) const MAX_RATE: u64 = 1_000_000_000_000;

/// The read-only configuration of the programs.
#[derive(Debug)]
pub(super) struct Config {
    /// The index of the rate sample among the arguments of `cong_control`.
    pub(super) rate_sample: u32,
    /// The fall-back controls, up to [`FALLBACKS`].
    pub(super) fallback: Vec<String>,
    /// Those for losses that come with a queue.
    pub(super) fallback_with_queue: Vec<String>,
}

impl Config {
    pub(super) fn encode(&self) -> PipeConfig {
        let mut config = PipeConfig {
            cong_control_rs: self.rate_sample,
            ..PipeConfig::default()
        };
        for (slots, names) in [
            (&mut config.fallback, &self.fallback),
            (&mut config.crowded, &self.fallback_with_queue),
        ] {
            for (slot, fallback) in slots.iter_mut().zip(names) {
                name::write(fallback, slot);
            }
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_to_fall_back_to_end_with_nul() {
        let config = Config {
            rate_sample: 3,
            fallback: vec!["bbr".to_owned(), "cubic".to_owned()],
            fallback_with_queue: vec!["cubic".to_owned()],
        };
        let encoded = config.encode();
        assert_eq!(encoded.cong_control_rs, 3);
        assert_eq!(&encoded.fallback[0][..4], b"bbr\0");
        assert_eq!(&encoded.fallback[1][..6], b"cubic\0");
        assert_eq!(encoded.fallback[2], [0; name::NAME_MAX]);
        assert_eq!(&encoded.crowded[0][..6], b"cubic\0");
        assert_eq!(encoded.crowded[1], [0; name::NAME_MAX]);
    }
}
