//! Turbo start (pied-piper 3.2, improvement 4): the options of legs between relays.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use taut_mesh::members::{MemberName, Members};
use taut_sys::socket::{Keepalive, LegOptions, has_congestion_control, receive_buffer_for};

use crate::config::{INITIAL_WINDOW, LegConfig, MeshConfig, Turbo};
use crate::turbo::congestion_control::{Counters, Leg, LegStart, Pipe, PipeOptions};
use crate::turbo::peers::{Peers, figures};
use crate::turbo::route_metrics::segments_of;
use crate::turbo::windows::{Scan, WindowStatus, Windows};

pub mod congestion_control;
mod memory;
mod peers;
pub mod route_metrics;
pub(crate) mod windows;

/// The kernel's congestion control that, like `taut_pipe`, keeps its window while a connection is
/// idle. Used if the kernel rejects `taut_pipe`.
const NEXT_BEST: &str = "bbr";

/// What legs between relays need besides their sockets' options.
#[derive(Debug)]
pub(crate) struct TurboStart {
    /// Loaded when the first configuration wants it; `None` if the kernel does not accept it.
    pipe: OnceLock<Option<Pipe>>,
    /// The initial window that routes to other relays must set, because no congestion control does.
    route_segments: Option<u32>,
    peers: Mutex<Peers>,
    /// Whether there are legs whose window is not in the configuration.
    sizes_windows: AtomicBool,
    /// The windows of these legs.
    windows: Mutex<Windows>,
}

impl TurboStart {
    /// Prepares what `mesh` requests, or the best that this kernel offers.
    pub(crate) fn begin(mesh: Option<&MeshConfig>) -> Self {
        let mut turbo = Self {
            pipe: OnceLock::new(),
            route_segments: None,
            peers: Mutex::default(),
            sizes_windows: AtomicBool::default(),
            windows: Mutex::new(Windows::new(budget_of(mesh))),
        };
        if let Some(mesh) = mesh {
            turbo.prepare(mesh);
            let leg = mesh.leg();
            turbo.route_segments = leg
                .turbo
                .filter(|_| !leg.wants_pipe() || turbo.pipe().is_none())
                .map(|turbo| segments_of(turbo.initial_window()));
        }
        turbo
    }

    /// Loads `taut_pipe` if `mesh` wants it.
    pub(crate) fn prepare(&self, mesh: &MeshConfig) {
        if mesh.legs().any(|leg| leg.wants_pipe()) {
            self.pipe.get_or_init(|| {
                Pipe::load(&PipeOptions::default())
                    .inspect_err(|error| {
                        tracing::warn!("{error}; legs between relays use {NEXT_BEST}");
                    })
                    .ok()
            });
        }
    }

    /// Adopts what `mesh` says of the rates and windows of legs. `dialled` are the addresses of the relays
    /// that this one dials; other members may dial this one.
    pub(crate) fn adopt(
        &self,
        mesh: &MeshConfig,
        members: &Members,
        dialled: Vec<(MemberName, IpAddr)>,
    ) {
        let sizes_windows = mesh.legs().any(|leg| leg.sizes_window());
        self.sizes_windows.store(sizes_windows, Ordering::Relaxed);
        self.windows().set_budget(budget_of(Some(mesh)));
        let default = start_of(mesh.turbo.unwrap_or_default());
        if let Some(Err(error)) = self.pipe().map(|pipe| pipe.set_default(default)) {
            tracing::warn!("{error}; legs between relays keep their former rate and window");
        }
        let of_members = mesh.rules.iter().filter_map(|rule| {
            let turbo = rule.leg.as_ref()?.turbo?;
            Some((rule.name.clone(), start_of(turbo)))
        });
        let of_members: HashMap<_, _> = of_members.collect();
        let present = |member: &MemberName| members.by_name(member.as_str()).is_some();
        let changes = self.peers().adopt(of_members, dialled, present);
        self.set(changes);
    }

    /// Records the address of a relay that has proven its identity.
    pub(crate) fn proven(&self, member: &MemberName, address: IpAddr) {
        let change = self.peers().proven(member, address.to_canonical());
        self.set(change);
    }

    fn set(&self, changes: impl IntoIterator<Item = (IpAddr, Option<LegStart>)>) {
        let Some(pipe) = self.pipe() else {
            return;
        };
        for (address, start) in changes {
            if let Err(error) = pipe.set_leg(address, start) {
                tracing::warn!(
                    "{error}; the leg to {address} has the rate and window of [relay.mesh]"
                );
            }
        }
    }

    /// Returns the socket options of a leg, without buffers if its window follows what the peer needs:
    /// [`Self::dialling`] and [`Self::listening`] set these.
    pub(crate) fn options(&self, keepalive: Keepalive, leg: &LegConfig) -> LegOptions {
        let mut options = LegOptions {
            congestion: leg.congestion.clone(),
            pacing_ceiling: leg.max_rate,
            ..LegOptions::new(keepalive)
        };
        if let Some(window) = leg.turbo.and_then(|turbo| turbo.window) {
            set_window(&mut options, window);
        }
        if leg.wants_pipe() {
            options.congestion = match self.pipe() {
                Some(pipe) => Some(pipe.name().to_owned()),
                None => has_congestion_control(NEXT_BEST).then(|| NEXT_BEST.to_owned()),
            };
        }
        options
    }

    /// Returns the options of a connection that is dialled now to `member`, whose window follows what it
    /// needs, and its window.
    pub(crate) fn dialling(&self, member: &MemberName, options: &LegOptions) -> (LegOptions, u32) {
        let window = self.windows().dial(member);
        let mut options = options.clone();
        set_window(&mut options, window);
        (options, window)
    }

    /// Returns the window that the next connection to `member` would have if it follows what it needs.
    pub(crate) fn window_of(&self, member: &MemberName) -> u32 {
        self.windows().of(member)
    }

    /// Returns the options of the mesh port: until a scan shows more, accepted connections have the initial window.
    pub(crate) fn listening(options: &LegOptions, leg: &LegConfig) -> LegOptions {
        let mut options = options.clone();
        if leg.sizes_window() {
            set_window(&mut options, INITIAL_WINDOW);
        }
        options
    }

    /// Adopts a scan of the connections between relays. Returns the buffers that the mesh port needs from now
    /// on: for sending and for receiving.
    pub(crate) fn on_scan(&self, scan: Scan, now: Instant) -> (usize, usize) {
        let mut windows = self.windows();
        windows.on_scan(scan, now);
        buffers(windows.listener())
    }

    /// Returns the relays by the addresses that they have.
    pub(crate) fn addresses(&self) -> Vec<(MemberName, IpAddr)> {
        self.peers().addresses()
    }

    /// Returns whether any window follows what its peer needs.
    pub(crate) fn sizes_windows(&self) -> bool {
        self.sizes_windows.load(Ordering::Relaxed)
    }

    /// Returns the state of windows that follow the need, for operators.
    pub(crate) fn window_status(&self) -> WindowStatus {
        let members: BTreeSet<_> = self.addresses().into_iter().map(|(name, _)| name).collect();
        self.windows().status(members.into_iter())
    }

    /// Returns what legs between relays use, as the end of a sentence; `None` for the kernel's defaults.
    pub(crate) fn in_words(&self, leg: &LegConfig) -> Option<String> {
        let pipe = self.pipe().filter(|_| leg.wants_pipe());
        let segments = self.route_segments;
        let congestion = match &leg.congestion {
            Some(name) => name,
            None if has_congestion_control(NEXT_BEST) => NEXT_BEST,
            None => "the kernel's default congestion control",
        };
        match (pipe, segments) {
            (Some(pipe), _) => Some(format!("use the congestion control {}", pipe.name())),
            (None, Some(segments)) => Some(format!(
                "do not use taut_pipe but {congestion} and, by route, an initial window of {segments} segments",
            )),
            (None, None) => {
                let chosen = leg.congestion.as_ref();
                chosen.map(|name| format!("use the congestion control {name}"))
            }
        }
    }

    /// Returns the counters of `taut_pipe`, if it is in use.
    pub(crate) fn counters(&self) -> Option<Counters> {
        self.pipe()?.counters().ok()
    }

    /// Returns what `taut_pipe` knows of the legs to relays.
    pub(crate) fn legs(&self) -> Vec<(MemberName, Leg)> {
        let Some(pipe) = self.pipe() else {
            return Vec::new();
        };
        // Connections that prove themselves do not wait while the kernel is asked.
        let addresses = self.peers().addresses();
        figures(addresses, |address| pipe.leg(address).ok().flatten())
    }

    /// Returns the initial window, in segments, for routes to other relays, if routes have to set
    /// it.
    pub(crate) fn route_segments(&self) -> Option<u32> {
        self.route_segments
    }

    fn pipe(&self) -> Option<&Pipe> {
        self.pipe.get()?.as_ref()
    }

    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn windows(&self) -> MutexGuard<'_, Windows> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the kernel memory that windows which follow the need should not exceed.
fn budget_of(mesh: Option<&MeshConfig>) -> u64 {
    let most = memory::for_tcp();
    let asked = mesh.and_then(|mesh| mesh.window_budget);
    asked.map_or(most / 2, |asked| asked.min(most))
}

/// Returns the buffers of a leg with this window, for sending and for receiving.
fn buffers(window: u32) -> (usize, usize) {
    let window = usize::try_from(window).unwrap_or(usize::MAX);
    (window, receive_buffer_for(window))
}

fn set_window(options: &mut LegOptions, window: u32) {
    let (send, receive) = buffers(window);
    options.send_buffer = Some(send);
    options.receive_buffer = Some(receive);
}

fn start_of(turbo: Turbo) -> LegStart {
    LegStart {
        rate: turbo.rate,
        window: turbo.initial_window(),
    }
}
