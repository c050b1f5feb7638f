//! Turbo start (pied-piper 3.2, improvement 4): what legs between relays have that others do not.

use taut_sys::socket::{Keepalive, LegOptions, has_congestion_control};

use crate::config::Turbo;
use crate::turbo::congestion_control::{Counters, Pipe, PipeOptions};
use crate::turbo::route_metrics::segments_of;

pub mod congestion_control;
pub mod route_metrics;

/// The kernel's congestion control that, like `taut_pipe`, loses nothing of its window while a
/// connection is idle; for kernels that do not take the other.
const NEXT_BEST: &str = "bbr";

/// The profile of legs between relays, and what it needs for as long as there are any.
#[derive(Debug)]
pub(crate) struct TurboStart {
    leg: LegOptions,
    pipe: Option<Pipe>,
    /// What the routes to other relays have to say of the initial window, because no pipe does.
    route_segments: Option<u32>,
}

impl TurboStart {
    /// Gets ready what `turbo` asks for, or the next best that this kernel has.
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
            rate: turbo.rate,
            initial_window: turbo.window,
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
                pacing_ceiling: Some(turbo.rate),
                ..plain
            },
            route_segments: pipe.is_none().then(|| segments_of(turbo.window)),
            pipe,
        }
    }

    /// What `taut_pipe` has counted, if it is in use.
    pub(crate) fn counters(&self) -> Option<Counters> {
        self.pipe.as_ref()?.counters().ok()
    }

    /// The initial window in segments that the routes to other relays are to have, if it has to come
    /// from there.
    pub(crate) fn route_segments(&self) -> Option<u32> {
        self.route_segments
    }

    /// What such a leg asks of its socket.
    pub(crate) fn leg(&self) -> &LegOptions {
        &self.leg
    }
}
