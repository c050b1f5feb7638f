//! The admin page: the relay's state for people, read-only, over HTTP.
//!
//! The page is four fixed files and two answers of JSON: the relay's state, and, asked for less often, the
//! mesh's. Whatever strangers choose (addresses, names, labels) reaches the browser as JSON alone, and the
//! scripts set it as text. The headers allow the page nothing but its own files.
//!
//! A page of another site must not read the state by a name that its owner lets point to this machine
//! (DNS rebinding): only requests whose `Host` is an IP address or `localhost` are answered, because such
//! a page has its own name there.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | connections | those of crate exposition | further ones wait |
//! | sessions in an answer, and those that a worker looks at | [`SESSIONS`] | the rest is only counted, by the counters of metrics |
//! | work | the state is collected at most every [`FRESH`], once for all who ask | the last answer is repeated |
//! | work for the mesh | the same, every [`MESH_FRESH`] | the last answer is repeated |
//! | paths in the mesh's state | those of 200 relays, about 5 MB | the rest is only counted |

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use taut_exposition::{Asked, Page};
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;

use crate::control::protocol::{MeshStatus, SessionRow, Status};

/// The most sessions in an answer.
pub(crate) const SESSIONS: usize = 50;

/// How long the relay's state is repeated.
const FRESH: Duration = Duration::from_secs(1);

/// How long the mesh's is.
const MESH_FRESH: Duration = Duration::from_secs(5);

const HTML: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const MESH_SCRIPT: &str = include_str!("mesh.js");

/// The headers of every answer.
const HEADERS: [(&str, &str); 7] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-store"),
];

/// The state that the page shows.
#[derive(Debug, Serialize)]
pub(crate) struct State {
    /// Seconds since the start, for rates.
    pub(crate) at: f64,
    pub(crate) relay: Status,
    /// Up to [`SESSIONS`] sessions.
    pub(crate) sessions: Vec<Session>,
}

/// A session without its client's address. Every user of the machine can connect to an address on loopback,
/// and only those who may use the control socket may see clients (`taut relay sessions`).
#[derive(Debug, Serialize)]
pub(crate) struct Session {
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

/// A state as JSON, or a sentence that says why it cannot be collected.
type Collected = Result<Vec<u8>, String>;

/// The last answer, and when it was collected.
type Last = Arc<Mutex<Option<(Instant, Collected)>>>;

/// Serves the page, and does not return. `state` and `mesh`, which is `None` without a mesh, may block.
pub(crate) async fn serve<S, M>(listener: TcpListener, state: S, mesh: M)
where
    S: Fn() -> State + Clone + Send + Sync + 'static,
    M: Fn() -> Result<Option<MeshStatus>, String> + Clone + Send + Sync + 'static,
{
    let (last, last_mesh) = (Last::default(), Last::default());
    let page = move |asked: Asked| {
        let (state, last) = (state.clone(), last.clone());
        let (mesh, last_mesh) = (mesh.clone(), last_mesh.clone());
        async move {
            let collecting = match route(&asked) {
                Route::Page(page) => return page,
                Route::State => spawn_blocking(move || collected(&last, FRESH, || json(&state()))),
                Route::Mesh => spawn_blocking(move || {
                    collected(&last_mesh, MESH_FRESH, || {
                        mesh().and_then(|mesh| json(&mesh))
                    })
                }),
            };
            match collecting.await {
                Ok(Ok(json)) => found("application/json", json),
                Ok(Err(why)) => refused(503, &format!("{why}\n")),
                // The panic hook has reported why.
                Err(_) => refused(500, "the state cannot be collected; see the relay's log\n"),
            }
        }
    };
    taut_exposition::serve_pages(listener, "the admin page", page).await;
}

fn json(state: &impl Serialize) -> Collected {
    serde_json::to_vec(state).map_err(|error| format!("the state cannot be written: {error}"))
}

/// Returns what `collect` does, collected now or at most `fresh` ago.
fn collected(last: &Last, fresh: Duration, collect: impl Fn() -> Collected) -> Collected {
    // Those who ask meanwhile wait here and get the same answer.
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((at, answer)) = &*last
        && at.elapsed() < fresh
    {
        return answer.clone();
    }
    let answer = collect();
    *last = Some((Instant::now(), answer.clone()));
    answer
}

/// How a request is answered.
enum Route {
    Page(Page),
    /// With the relay's state.
    State,
    /// With the mesh's.
    Mesh,
}

fn route(asked: &Asked) -> Route {
    if !asked.host.as_deref().is_some_and(is_own_host) {
        let said = "ask for this page by an IP address or as localhost, for example through \
                    ssh -L 9465:127.0.0.1:9465\n";
        return Route::Page(refused(421, said));
    }
    let page = match (asked.reads, asked.path.as_str()) {
        (false, _) => refused(405, "the page is read-only; taut relay has the commands\n"),
        (true, "/") => found("text/html; charset=utf-8", HTML.into()),
        (true, "/page.css") => found("text/css; charset=utf-8", STYLE.into()),
        (true, "/page.js") => found("text/javascript; charset=utf-8", SCRIPT.into()),
        (true, "/mesh.js") => found("text/javascript; charset=utf-8", MESH_SCRIPT.into()),
        (true, "/status.json") => return Route::State,
        (true, "/mesh.json") => return Route::Mesh,
        (true, _) => refused(
            404,
            "the page is at /, its data at /status.json and /mesh.json\n",
        ),
    };
    Route::Page(page)
}

/// Returns whether a `Host` cannot be a name of another site.
fn is_own_host(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (host, "80"),
    };
    let bracketed = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let is_address = match bracketed {
        Some(v6) => v6.parse::<Ipv6Addr>().is_ok(),
        None => name
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_ipv4()),
    };
    port.parse::<u16>().is_ok() && (is_address || name.eq_ignore_ascii_case("localhost"))
}

fn found(kind: &'static str, body: Vec<u8>) -> Page {
    page(200, kind, body)
}

fn refused(status: u16, said: &str) -> Page {
    page(status, "text/plain; charset=utf-8", said.into())
}

fn page(status: u16, kind: &'static str, body: Vec<u8>) -> Page {
    let mut headers = HEADERS.to_vec();
    headers.push(("content-type", kind));
    if status == 405 {
        headers.push(("allow", "GET, HEAD"));
    }
    Page {
        status,
        headers,
        body,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str, host: Option<&str>) -> Asked {
        Asked {
            reads: true,
            path: path.to_owned(),
            host: host.map(str::to_owned),
        }
    }

    fn status(asked: &Asked) -> Option<u16> {
        match route(asked) {
            Route::Page(page) => Some(page.status),
            Route::State | Route::Mesh => None,
        }
    }

    #[test]
    fn only_an_address_or_localhost_is_answered() {
        for host in [
            "127.0.0.1:9465",
            "127.0.0.1",
            "[::1]:9465",
            "[2001:db8::1]",
            "localhost:9465",
            "LOCALHOST",
        ] {
            assert_eq!(status(&asked("/", Some(host))), Some(200), "{host}");
        }
        for host in [
            "rebound.example:9465",
            "127.0.0.1.rebound.example",
            "localhost.rebound.example:9465",
            "127.0.0.1:9465.rebound.example",
            "::1",
            "[::1",
            "[rebound.example]",
            "",
            ":80",
        ] {
            assert_eq!(status(&asked("/", Some(host))), Some(421), "{host}");
            for data in ["/status.json", "/mesh.json"] {
                assert_eq!(status(&asked(data, Some(host))), Some(421), "{host}");
            }
        }
        assert_eq!(status(&asked("/", None)), Some(421));
    }

    #[test]
    fn the_page_is_read_only_and_has_no_other_files() {
        let host = Some("localhost");
        let write = Asked {
            reads: false,
            ..asked("/status.json", host)
        };
        assert_eq!(status(&write), Some(405));
        assert_eq!(status(&asked("/status.json", host)), None);
        assert_eq!(status(&asked("/page.js", host)), Some(200));
        assert_eq!(status(&asked("/../etc/passwd", host)), Some(404));
    }

    #[test]
    fn every_answer_forbids_scripts_and_frames_of_others() {
        for path in ["/", "/page.js", "/nothing"] {
            let Route::Page(page) = route(&asked(path, Some("localhost"))) else {
                panic!("{path}")
            };
            let policy = page
                .headers
                .iter()
                .find(|(name, _)| *name == "content-security-policy");
            let (_, policy) = policy.expect("a policy");
            assert!(
                policy.starts_with("default-src 'none'; script-src 'self'"),
                "{policy}"
            );
            assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"));
        }
    }

    #[test]
    fn nothing_in_the_files_makes_html_of_data_or_loads_from_elsewhere() {
        for forbidden in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ] {
            assert!(!SCRIPT.contains(forbidden), "{forbidden}");
            assert!(!MESH_SCRIPT.contains(forbidden), "{forbidden}");
        }
        for file in [HTML, STYLE, SCRIPT, MESH_SCRIPT] {
            assert!(!file.contains("http://") && !file.contains("https://"));
        }
        // What the policy would refuse.
        assert!(!HTML.contains("style=") && !HTML.contains("onclick") && !HTML.contains("<style"));
    }
}
