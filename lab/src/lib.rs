//! Experiments in worlds that lose time the way real networks do, and the report of their figures.
//!
//! ```
//! let names: Vec<_> = taut_lab::registry::ALL.iter().map(|experiment| experiment.name).collect();
//! assert!(names.contains(&"pied-piper"));
//! ```
#![forbid(unsafe_code)]

pub mod experiment;
pub mod peer;
pub mod registry;
pub mod report;
