//! Experiments: a world that loses time, what loses less, and the figures of both.

pub mod outcome;
pub mod stats;
