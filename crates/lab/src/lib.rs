//! Experiments in worlds that lose time the way real networks do, and the report of their figures.
#![forbid(unsafe_code)]

pub mod experiment;
pub mod peer;
pub mod report;
