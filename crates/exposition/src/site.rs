//! Pages for people: fixed files, and data in JSON that their scripts show. Read-only.
//!
//! Whatever strangers choose (addresses, names, labels) reaches the browser as JSON alone, and the scripts set
//! it as text. The headers allow a page nothing but its own files.
//!
//! A page of another site must not read the data by a name that its owner lets point to this machine (DNS
//! rebinding): only requests whose `Host` is an IP address or `localhost` are answered, because such a page has
//! its own name there.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | connections | [`CONNECTIONS`](crate::CONNECTIONS) | one makes room for a new one |
//! | work | data is collected once for all who ask, and repeated for a time: [`Shared`] | the last answer is repeated |

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_blocking;

use crate::{Asked, Page, runtime};

const DOCUMENT: &str = include_str!("site/page.html");
const STYLE: &str = include_str!("site/page.css");
/// Tables, units and asking for data, which all scripts use.
const SCRIPT: &str = include_str!("site/page.js");

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

/// What a page consists of. All of it is HTML or script that the program contains.
#[derive(Debug)]
pub struct Content<'a> {
    /// The title, until a script sets another.
    pub title: &'a str,
    /// The sections.
    pub sections: &'a str,
    /// The names and texts of the scripts, in their order.
    pub scripts: &'a [(&'static str, &'static str)],
    /// The names of the data.
    pub data: &'static [&'static str],
    /// The command that prints the same.
    pub command: &'a str,
    /// The sentence at the end.
    pub footer: &'a str,
    /// The port that it is served at.
    pub port: u16,
}

/// A page with its files.
#[derive(Debug)]
pub struct Site {
    files: Vec<File>,
    data: &'static [&'static str],
    port: u16,
}

/// Path, content type and text.
type File = (String, &'static str, String);

/// How a request is answered.
#[derive(Debug)]
enum Route {
    /// With this.
    Page(Page),
    /// With the data of this name.
    Data(&'static str),
}

// === impl Site ===

impl Site {
    /// Returns the page of this content. A debug build panics if a file of it could do harm.
    pub fn new(content: &Content<'_>) -> Self {
        let scripts: Vec<_> = std::iter::once(("page.js", SCRIPT))
            .chain(content.scripts.iter().copied())
            .collect();
        let tag = |(name, _): &(&str, &str)| format!("<script src=\"{name}\" defer></script>");
        let tags: Vec<_> = scripts.iter().map(tag).collect();
        let document = DOCUMENT
            .replace("{title}", content.title)
            .replace("{scripts}", &tags.join("\n"))
            .replace("{command}", content.command)
            .replace("{footer}", content.footer)
            .replace("{sections}", content.sections.trim_end());
        let mut files = vec![
            ("/".to_owned(), "text/html; charset=utf-8", document),
            (
                "/page.css".to_owned(),
                "text/css; charset=utf-8",
                STYLE.to_owned(),
            ),
        ];
        files.extend(scripts.iter().map(|(name, text)| {
            let kind = "text/javascript; charset=utf-8";
            (format!("/{name}"), kind, (*text).to_owned())
        }));
        debug_assert_eq!(files.iter().find_map(forbidden_part), None);
        Self {
            files,
            data: content.data,
            port: content.port,
        }
    }

    /// Returns how a request is answered.
    fn route(&self, asked: &Asked) -> Route {
        if !asked.host.as_deref().is_some_and(is_own_host) {
            let port = self.port;
            let said = format!(
                "ask for this page by an IP address or as localhost, for example through \
                 ssh -L {port}:127.0.0.1:{port}\n"
            );
            return Route::Page(refused(421, &said));
        }
        if !asked.reads {
            let said = "the page is read-only; commands are on the command line (`taut --help`)\n";
            return Route::Page(refused(405, said));
        }
        let is_it = |name: &&&str| asked.path.strip_prefix('/') == Some(**name);
        if let Some(name) = self.data.iter().find(is_it) {
            return Route::Data(name);
        }
        let file = self.files.iter().find(|(path, ..)| *path == asked.path);
        Route::Page(match file {
            Some((_, kind, text)) => page(200, kind, text.clone().into_bytes()),
            None => {
                let data: Vec<_> = self.data.iter().map(|name| format!("/{name}")).collect();
                let said = format!("the page is at /, its data at {}\n", data.join(" and "));
                refused(404, &said)
            }
        })
    }
}

/// Data as JSON, or a sentence that says why it cannot be collected.
pub type Collected = Result<Vec<u8>, String>;

/// Serves the page, and does not return. `what` names it in the log; `data` returns the data of a name, and may block.
pub async fn serve<D>(listener: TcpListener, what: &'static str, site: Site, data: D)
where
    D: Fn(&'static str) -> Collected + Clone + Send + Sync + 'static,
{
    let site = Arc::new(site);
    let answer = move |asked: Asked| {
        let (route, data) = (site.route(&asked), data.clone());
        async move {
            let name = match route {
                Route::Page(page) => return page,
                Route::Data(name) => name,
            };
            match spawn_blocking(move || data(name)).await {
                Ok(Ok(json)) => page(200, "application/json", json),
                Ok(Err(why)) => refused(503, &format!("{why}\n")),
                // The panic hook has reported why.
                Err(_) => refused(500, "the data cannot be collected; see the log\n"),
            }
        }
    };
    crate::serve_pages(listener, what, answer).await;
}

/// Serves like [`serve`] on this thread, until SIGTERM or SIGINT, and logs where.
///
/// # Errors
/// Those of the system, which lacks threads, descriptors or memory.
pub fn run<D>(
    listener: std::net::TcpListener,
    what: &'static str,
    site: Site,
    data: D,
) -> io::Result<()>
where
    D: Fn(&'static str) -> Collected + Clone + Send + Sync + 'static,
{
    let runtime = runtime::start(crate::CONNECTIONS)?;
    runtime.block_on(async {
        let mut term = signal(SignalKind::terminate())?;
        let mut int = signal(SignalKind::interrupt())?;
        // The terminal has gone. (The runtime has taken the signal's default.)
        let mut hup = signal(SignalKind::hangup())?;
        let listener = TcpListener::from_std(listener)?;
        // Not before: a signal to a process that has said so ends it in order.
        tracing::info!("serving {what} at http://{}/", listener.local_addr()?);
        tokio::select! {
            () = serve(listener, what, site, data) => {}
            _ = term.recv() => {}
            _ = int.recv() => {}
            _ = hup.recv() => {}
        }
        Ok::<_, io::Error>(())
    })?;
    // What is being collected may take its time.
    runtime.shutdown_background();
    Ok(())
}

/// Data that is collected at most once in a time, for all who ask.
#[derive(Clone, Debug)]
pub struct Shared {
    last: Arc<Mutex<Option<(Instant, Collected)>>>,
    fresh: Duration,
}

// === impl Shared ===

impl Shared {
    /// Returns data that is repeated for `fresh`.
    pub fn new(fresh: Duration) -> Self {
        Self {
            last: Arc::default(),
            fresh,
        }
    }

    /// Returns what `collect` returns, now or at most so long ago. Blocks while another thread collects.
    pub fn collected(&self, collect: impl FnOnce() -> Collected) -> Collected {
        // Those who ask meanwhile wait here and get the same answer.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, answer)) = &*last
            && at.elapsed() < self.fresh
        {
            return answer.clone();
        }
        let answer = collect();
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
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

/// Returns what a file contains that could make HTML of data, loads something from elsewhere, or is what the page's own
/// headers refuse.
fn forbidden_part((path, kind, text): &File) -> Option<String> {
    let everywhere = [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "http://",
        "https://",
    ];
    let in_documents = ["style=", "onclick", "<style", "<script>"];
    let in_documents = in_documents
        .iter()
        .filter(|_| kind.starts_with("text/html"));
    let mut all = everywhere.iter().chain(in_documents);
    let found = all.find(|part| text.contains(**part))?;
    Some(format!("{path}: {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> Site {
        Site::new(&Content {
            title: "A page",
            sections: "<section></section>\n",
            scripts: &[("one.js", "show();")],
            data: &["status.json", "mesh.json"],
            command: "taut status",
            footer: "That is all.",
            port: 9465,
        })
    }

    fn asked(path: &str, host: Option<&str>) -> Asked {
        Asked {
            reads: true,
            path: path.to_owned(),
            host: host.map(str::to_owned),
        }
    }

    fn status(asked: &Asked) -> Option<u16> {
        match site().route(asked) {
            Route::Page(page) => Some(page.status),
            Route::Data(_) => None,
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
        for path in ["/", "/page.css", "/page.js", "/one.js"] {
            assert_eq!(status(&asked(path, host)), Some(200), "{path}");
        }
        for path in ["/../etc/passwd", "status.json", "//status.json", "", "/one"] {
            assert_eq!(status(&asked(path, host)), Some(404), "{path}");
        }
    }

    #[test]
    fn every_answer_forbids_scripts_and_frames_of_others() {
        for path in ["/", "/page.js", "/nothing"] {
            let Route::Page(page) = site().route(&asked(path, Some("localhost"))) else {
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
    fn the_document_has_its_parts_and_its_scripts_in_their_order() {
        let site = site();
        let (_, _, document) = &site.files[0];
        let scripts =
            "<script src=\"page.js\" defer></script>\n<script src=\"one.js\" defer></script>";
        assert!(document.contains(scripts), "{document}");
        assert!(document.contains("<main>\n<section></section>\n</main>"));
        assert!(document.contains("<title>A page</title>") && !document.contains('{'));
    }

    #[test]
    fn a_file_that_makes_html_of_data_is_forbidden() {
        let file = |kind, text: &str| ("/a".to_owned(), kind, text.to_owned());
        let script = |text| forbidden_part(&file("text/javascript", text));
        assert_eq!(script("a.textContent = b;"), None);
        assert_eq!(script("a.innerHTML = b;"), Some("/a: innerHTML".to_owned()));
        let document = file("text/html", "<p style=\"\">");
        assert_eq!(forbidden_part(&document), Some("/a: style=".to_owned()));
    }

    #[test]
    fn data_is_collected_once_for_those_who_ask_within_its_time() {
        let shared = Shared::new(Duration::from_secs(3600));
        let first = shared.collected(|| Ok(b"1".to_vec()));
        let second = shared.collected(|| panic!("collected again"));
        assert_eq!(first, second);
        let none = Shared::new(Duration::ZERO);
        assert_eq!(none.collected(|| Err("why".into())), Err("why".into()));
        assert_eq!(none.collected(|| Ok(Vec::new())), Ok(Vec::new()));
    }
}
