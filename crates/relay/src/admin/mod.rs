//! The admin page: the relay's state for people, read-only, over HTTP ([`taut_exposition::site`]).
//!
//! It has two kinds of data: the relay's state, and, asked for less often, the mesh's. [`SECTIONS`] and [`SCRIPTS`]
//! show them, here and as a part of the page of `taut status --serve`.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | sessions in an answer, and those that a worker looks at | [`SESSIONS`] | the rest is only counted, by the counters of metrics |
//! | work | the state is collected at most every [`FRESH`], once for all who ask | the last answer is repeated |
//! | work for the mesh | the same, every [`MESH_FRESH`] | the last answer is repeated |
//! | paths in the mesh's state | those of 200 relays, about 5 MB | the rest is only counted |

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;
use taut_exposition::site::{self, Collected, Content, Shared, Site};
use tokio::net::TcpListener;

use crate::control::protocol::{MeshStatus, SessionRow, Status};

/// The most sessions in an answer.
pub const SESSIONS: usize = 50;

/// How long the relay's state is repeated.
const FRESH: Duration = Duration::from_secs(1);

/// How long the mesh's is.
pub const MESH_FRESH: Duration = Duration::from_secs(5);

/// The sections of a page that show a relay.
pub const SECTIONS: &str = include_str!("relay.html");

/// The scripts that fill them: `showRelay` with a [`State`]; the mesh they ask for themselves, as `mesh.json`.
pub const SCRIPTS: [(&str, &str); 2] = [
    ("relay.js", include_str!("relay.js")),
    ("mesh.js", include_str!("mesh.js")),
];

/// The script that asks for the relay's state.
const SCRIPT: (&str, &str) = ("admin.js", include_str!("admin.js"));

/// The state that the page shows.
#[derive(Debug, Serialize)]
pub struct State {
    /// Seconds since the start, for rates.
    at: f64,
    /// The machine's name.
    host: String,
    relay: Status,
    /// Up to [`SESSIONS`] sessions.
    sessions: Vec<Session>,
}

/// A session without its client's address. Every user of the machine can connect to an address on loopback,
/// and only those who may use the control socket may see clients (`taut relay sessions`).
#[derive(Debug, Serialize)]
struct Session {
    id: String,
    forward: String,
    upstream: Option<SocketAddr>,
    peer: Option<String>,
    state: String,
    age: f64,
    to_upstream: u64,
    to_client: u64,
}

impl From<SessionRow> for Session {
    fn from(row: SessionRow) -> Self {
        Self {
            id: row.id,
            forward: row.forward,
            upstream: row.upstream,
            peer: row.peer,
            state: row.state,
            age: row.age,
            to_upstream: row.to_upstream,
            to_client: row.to_client,
        }
    }
}

// === impl State ===

impl State {
    /// Returns the state of a relay with these sessions.
    pub fn new(relay: Status, sessions: Vec<SessionRow>) -> Self {
        Self {
            at: relay.uptime,
            host: host(),
            relay,
            sessions: sessions.into_iter().map(Session::from).collect(),
        }
    }
}

/// Returns the name of this machine.
pub fn host() -> String {
    let uname = rustix::system::uname();
    uname.nodename().to_string_lossy().into_owned()
}

/// Serves the page, and does not return. `state` and `mesh`, which is `None` without a mesh, may block.
pub(crate) async fn serve<S, M>(listener: TcpListener, port: u16, state: S, mesh: M)
where
    S: Fn() -> State + Clone + Send + Sync + 'static,
    M: Fn() -> Result<Option<MeshStatus>, String> + Clone + Send + Sync + 'static,
{
    let (shared, shared_mesh) = (Shared::new(FRESH), Shared::new(MESH_FRESH));
    let data = move |name| match name {
        "mesh.json" => shared_mesh.collected(|| mesh().and_then(|mesh| json(&mesh))),
        _ => shared.collected(|| json(&state())),
    };
    site::serve(listener, "the admin page", page(port), data).await;
}

fn page(port: u16) -> Site {
    let [relay, mesh] = SCRIPTS;
    Site::new(&Content {
        title: "Taut relay",
        sections: SECTIONS,
        scripts: &[relay, mesh, SCRIPT],
        data: &["status.json", "mesh.json"],
        command: "taut relay status",
        footer: "<code>taut relay</code> has the commands.",
        port,
    })
}

fn json(state: &impl Serialize) -> Collected {
    serde_json::to_vec(state).map_err(|error| format!("the state cannot be written: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_the_files_makes_html_of_data_or_loads_from_elsewhere() {
        // A debug build looks for that.
        page(9465);
    }
}
