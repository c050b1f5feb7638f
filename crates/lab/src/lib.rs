//! Worlds on one machine that lose time the way real networks do.
#![forbid(unsafe_code)]
