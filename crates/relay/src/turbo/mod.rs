//! Turbo start (pied-piper 3.2, improvement 4): the options of legs between relays.

use taut_sys::socket::{Keepalive, LegOptions, has_congestion_control};

use crate::config::Turbo;
use crate::turbo::congestion_control::{Counters, LegStart, Pipe, PipeOptions};
use crate::turbo::route_metrics::segments_of;

pub mod congestion_control;
pub mod route_metrics;

/// The kernel's congestion control that, like `taut_pipe`, keeps its window while a connection is
/// idle. Used if the kernel rejects `taut_pipe`.
const NEXT_BEST: &str = "bbr";

/// The options of legs between relays, and the resources behind them.
#[derive(Debug)]
pub(crate) struct TurboStart {
    leg: LegOptions,
    pipe: Option<Pipe>,
    /// The initial window that routes to other relays must set, because no congestion control does.
    route_segments: Option<u32>,
}

impl TurboStart {
    /// Prepares what `turbo` requests, or the best that this kernel offers.
    pub(crate) fn begin(keepalive: Keepalive, turbo: Option<Turbo>) -> Self {
        let plain = LegOptions::new(keepalive);
        let Some(turbo) = turbo else {
            return Self {
                leg: plain,
                pipe: None,
                route_segments: None,
            };
        };
        let options = PipeOptions {
            start: LegStart {
                rate: turbo.rate,
                window: turbo.window,
            },
            ..PipeOptions::default()
        };
        let pipe = Pipe::load(&options)
            .inspect_err(|error| tracing::warn!("{error}; legs between relays use {NEXT_BEST}"))
            .ok();
        let congestion = match &pipe {
            Some(pipe) => Some(pipe.name().to_owned()),
            None => has_congestion_control(NEXT_BEST).then(|| NEXT_BEST.to_owned()),
        };
        let window = usize::try_from(turbo.window).unwrap_or(usize::MAX);
        Self {
            leg: LegOptions {
                congestion,
                send_buffer: Some(window),
                receive_buffer: Some(window),
                ..plain
            },
            route_segments: pipe.is_none().then(|| segments_of(turbo.window)),
            pipe,
        }
    }

    /// Returns what legs between relays use, as the end of a sentence; `None` without turbo start.
    pub(crate) fn in_words(&self) -> Option<String> {
        let segments = self.route_segments;
        let congestion = self.leg.congestion.as_deref();
        match (&self.pipe, segments) {
            (Some(pipe), _) => Some(format!("use the congestion control {}", pipe.name())),
            (None, Some(segments)) => Some(format!(
                "do not use taut_pipe but {} and, by route, an initial window of {segments} segments",
                congestion.unwrap_or("the kernel's default congestion control")
            )),
            (None, None) => None,
        }
    }

    /// Returns the counters of `taut_pipe`, if it is in use.
    pub(crate) fn counters(&self) -> Option<Counters> {
        self.pipe.as_ref()?.counters().ok()
    }

    /// Returns the initial window, in segments, for routes to other relays, if routes have to set
    /// it.
    pub(crate) fn route_segments(&self) -> Option<u32> {
        self.route_segments
    }

    /// Returns the socket options of a leg between relays.
    pub(crate) fn leg(&self) -> &LegOptions {
        &self.leg
    }
}
