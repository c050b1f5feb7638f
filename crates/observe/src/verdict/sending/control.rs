//! Reads the state of the congestion control.
//!
//! Cubic and Reno widen a window until segments are lost. BBR keeps a model of the path, its
//! bandwidth and its round trip, and paces at that bandwidth. Its window is twice what the path
//! holds, so it is never used up; its slow start threshold stays infinite; and it keeps no queue.
//! So for a sender with BBR, the model shows whether the path is full, and the window does not.

use taut_sys::sock_diag::Bbr;

use crate::window::{SampleRef, Window};

/// The minimum pacing gain in STARTUP, in units of [`Bbr::UNIT`]. BBR starts with 2.89 (2.77 in its
/// third version), and later probes with at most 1.25.
const STARTUP_GAIN: u32 = Bbr::UNIT * 2;

/// The congestion control of turbo start. A second relay on a machine appends a suffix to the name.
const TAUT_PIPE: &str = "taut_pipe";

/// The model of the path that a sender keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model {
    /// The bandwidth of the path for this connection, in bytes a second, on average.
    pub(super) bandwidth: f64,
    /// The share of the samples in which the bandwidth was still searched for (STARTUP).
    pub(super) startup: f64,
}

/// Returns the model of the path; `None` if the congestion control keeps none.
pub(super) fn model(window: &Window<'_>) -> Option<Model> {
    if !is_model_based(window) {
        return None;
    }
    let states = || {
        let samples = window.samples().iter();
        samples.filter_map(|sample| sample.connection.bbr)
    };
    let count = states().count() as f64;
    if count > 0.0 {
        return Some(Model {
            bandwidth: states().map(|bbr| bbr.bandwidth as f64).sum::<f64>() / count,
            startup: states()
                .filter(|bbr| bbr.pacing_gain >= STARTUP_GAIN)
                .count() as f64
                / count,
        });
    }
    // Another version of BBR may not report its state; it paces at the bandwidth.
    Some(Model {
        bandwidth: window.mean(|info| info.pacing_rate.map(|rate| rate as f64))?,
        startup: 0.0,
    })
}

/// Returns the mean rate at which `taut_pipe` paces, in bytes a second: its estimate of the path's
/// bandwidth. `None` with other congestion controls. Like BBR it has a window of twice what the
/// path holds; but while it shares a full link, its window is like Cubic's, and it paces a quarter
/// faster. It does not report whether it is still searching for the bandwidth.
pub(in super::super) fn paced_rate(window: &Window<'_>) -> Option<f64> {
    let last = window.samples().last()?;
    let name = last.connection.congestion_control?;
    if !name.as_str().starts_with(TAUT_PIPE) {
        return None;
    }
    window.mean(|info| info.pacing_rate.map(|rate| rate as f64))
}

/// Whether the congestion control keeps a model of the path.
pub(in super::super) fn is_model_based(window: &Window<'_>) -> bool {
    window.samples().last().is_some_and(has_model)
}

/// Whether the congestion control of a sample keeps a model of the path.
pub(super) fn has_model(sample: &SampleRef<'_>) -> bool {
    let connection = sample.connection;
    let name = connection.congestion_control;
    connection.bbr.is_some() || name.is_some_and(|name| name.as_str().starts_with("bbr"))
}
