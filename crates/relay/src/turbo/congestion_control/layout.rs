//! `struct pipe_config` of `taut_pipe.h`, byte by byte.

use super::name::NAME_MAX;

/// PIPE_FALLBACKS.
pub(super) const FALLBACKS: usize = 3;

/// Above this the products of rates and times no longer fit 64 bits in the program.
pub(super) const MAX_RATE: u64 = 1_000_000_000_000;

/// What the programs read and cannot change.
#[derive(Debug)]
pub(super) struct Config {
    /// Bytes a second.
    pub(super) rate: u64,
    /// Bytes.
    pub(super) initial_window: u32,
    /// Which argument of `cong_control` is the rate sample.
    pub(super) rate_sample: u32,
    /// At most [`FALLBACKS`].
    pub(super) fallback: Vec<String>,
}

impl Config {
    const LEN: usize = 16 + FALLBACKS * NAME_MAX;

    /// Writes it over the initial value of its section.
    ///
    /// # Panics
    /// When the section has another size: the header and this file disagree.
    pub(super) fn write(&self, section: &mut [u8]) {
        assert_eq!(section.len(), Self::LEN, "struct pipe_config has changed");
        section.fill(0);
        section[..8].copy_from_slice(&self.rate.to_ne_bytes());
        section[8..12].copy_from_slice(&self.initial_window.to_ne_bytes());
        section[12..16].copy_from_slice(&self.rate_sample.to_ne_bytes());
        for (slot, name) in section[16..].chunks_exact_mut(NAME_MAX).zip(&self.fallback) {
            super::name::write(name, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_where_the_program_reads_it() {
        let config = Config {
            rate: 0x0102_0304_0506_0708,
            initial_window: 0x1112_1314,
            rate_sample: 3,
            fallback: vec!["bbr".to_owned(), "cubic".to_owned()],
        };
        let mut section = [0xFF; Config::LEN];
        config.write(&mut section);
        assert_eq!(section[..8], config.rate.to_ne_bytes());
        assert_eq!(section[8..12], config.initial_window.to_ne_bytes());
        assert_eq!(section[12..16], 3u32.to_ne_bytes());
        assert_eq!(&section[16..20], b"bbr\0");
        assert_eq!(&section[32..38], b"cubic\0");
        assert_eq!(section[48..], [0; NAME_MAX]);
    }
}
