//! Serves metrics over HTTP in the OpenMetrics text format, which the caller encodes, or to clients that want
//! it in that of Prometheus before; and [pages for people](site). It
//! also [limits the number of lines](log_limit) that jobs write to the log, and starts the
//! [runtime] of jobs that serve.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:9466").await?;
//! taut_exposition::serve(listener, || Ok("# EOF\n".to_owned())).await;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod classic;
mod connections;
pub mod log_limit;
pub mod runtime;
pub mod site;

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HOST, VARY};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use taut_sys::listen::Listen;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

use self::connections::Connections;
use self::log_limit::LogLimit;

/// The most connections served at a time. Beyond it, one of the source that has the most makes room for
/// a new one: the one that has asked for nothing the longest.
pub const CONNECTIONS: usize = 16;
/// The longest life of a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest time for the header of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a failed accept, for lack of descriptors, say.
const PAUSE: Duration = Duration::from_millis(100);

/// The lines about connections that were closed to make room.
static FULL: LogLimit = LogLimit::new("connections for metrics");

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The reason why metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The address cannot be used.
    #[error("cannot serve metrics at {addr}: {source}; choose another --metrics")]
    Address {
        /// The address.
        addr: Listen,
        /// The system's error.
        source: io::Error,
    },
    /// The system lacks threads, descriptors or memory.
    #[error("cannot start the thread that serves metrics: {0}")]
    Thread(io::Error),
}

/// Serves the text that `encode` returns at `addr`, as [`serve`] does, on a thread of this name that
/// ends with the process.
///
/// # Errors
/// [`SpawnError`].
pub fn spawn<E>(addr: Listen, thread: &str, encode: E) -> Result<(), SpawnError>
where
    E: Fn() -> Result<String, fmt::Error> + Clone + Send + Sync + 'static,
{
    let listener = addr.open();
    let listener = listener.map_err(|source| SpawnError::Address { addr, source })?;
    spawn_at(listener, thread, encode).map_err(SpawnError::Thread)
}

fn spawn_at<E>(listener: std::net::TcpListener, thread: &str, encode: E) -> io::Result<()>
where
    E: Fn() -> Result<String, fmt::Error> + Clone + Send + Sync + 'static,
{
    // Not made by the thread, whose errors could only be logged.
    let runtime = runtime::build(Builder::new_current_thread().enable_all())?;
    let listener = {
        let _inside = runtime.enter();
        TcpListener::from_std(listener)?
    };
    let thread = std::thread::Builder::new().name(thread.to_owned());
    thread
        .spawn(move || runtime.block_on(serve(listener, encode)))
        .map(drop)
}

/// Serves the text that `encode` returns at `/metrics`, and does not return. `/healthz` and
/// `/readyz` answer 200.
pub async fn serve<E>(listener: TcpListener, encode: E)
where
    E: Fn() -> Result<String, fmt::Error> + Clone + Send + Sync + 'static,
{
    serve_with(listener, encode, || true).await;
}

/// Serves like [`serve`]; `/readyz` answers 503 while `ready` returns `false`.
pub async fn serve_with<E, R>(listener: TcpListener, encode: E, ready: R)
where
    E: Fn() -> Result<String, fmt::Error> + Clone + Send + Sync + 'static,
    R: Fn() -> bool + Clone + Send + Sync + 'static,
{
    let page = move |request: Request<Incoming>| {
        let (method, path) = (request.method(), request.uri().path());
        let accept = request.headers().get(ACCEPT);
        let accept = accept.and_then(|accept| accept.to_str().ok());
        std::future::ready(answer(
            method,
            path,
            accept.unwrap_or_default(),
            &encode,
            &ready,
        ))
    };
    serve_requests(listener, "metrics", page).await;
}

/// A request to [`serve_pages`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Whether it only reads (GET or HEAD).
    pub reads: bool,
    /// The path, without the query.
    pub path: String,
    /// The header `Host`, if there is exactly one.
    pub host: Option<String>,
}

/// An answer of [`serve_pages`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The status code.
    pub status: u16,
    /// Headers: names in lower case, and values.
    pub headers: Vec<(&'static str, &'static str)>,
    /// The body.
    pub body: Vec<u8>,
}

/// Serves the pages that `page` returns, and does not return. `what` names them in the log.
pub async fn serve_pages<P, F>(listener: TcpListener, what: &'static str, page: P)
where
    P: Fn(Asked) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Page> + Send + 'static,
{
    let answer = move |request: Request<Incoming>| {
        let mut hosts = request.headers().get_all(HOST).iter();
        let host = hosts.next().filter(|_| hosts.next().is_none());
        let page = page(Asked {
            reads: [Method::GET, Method::HEAD].contains(request.method()),
            path: request.uri().path().to_owned(),
            host: host.and_then(|host| Some(host.to_str().ok()?.to_owned())),
        });
        async {
            let Page {
                status,
                headers,
                body,
            } = page.await;
            let mut response = Response::new(Full::new(Bytes::from(body)));
            *response.status_mut() =
                StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            for (name, value) in headers {
                let value = hyper::header::HeaderValue::from_static(value);
                response.headers_mut().insert(name, value);
            }
            response
        }
    };
    serve_requests(listener, what, answer).await;
}

async fn serve_requests<A, F>(listener: TcpListener, what: &'static str, answer: A)
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let places = Arc::new(Connections::new(CONNECTIONS));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection for {what}");
                sleep(PAUSE).await;
                continue;
            }
        };
        let (place, made_room, has_made_room) = places.enter(peer.ip());
        if has_made_room && let Some(line) = FULL.line(std::time::Instant::now()) {
            tracing::warn!(
                left_out = line.left_out,
                "all {CONNECTIONS} connections for {what} are in use: one was closed for a new one of {}",
                peer.ip()
            );
        }
        let (answer, places) = (answer.clone(), places.clone());
        tokio::spawn(async move {
            let in_use = places.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                in_use.used(place);
                let answer = answer(request);
                async { Ok::<_, Infallible>(answer.await) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                ended = timeout(CONNECTION_TIMEOUT, connection) => {
                    if let Ok(Err(error)) = ended {
                        tracing::debug!(%error, "a connection for {what} failed");
                    }
                }
                _ = made_room => {}
            }
            places.leave(place);
        });
    }
}

fn answer(
    method: &Method,
    path: &str,
    accept: &str,
    encode: impl Fn() -> Result<String, fmt::Error>,
    ready: impl Fn() -> bool,
) -> Response<Full<Bytes>> {
    if !["/metrics", "/healthz", "/readyz"].contains(&path) {
        return plain(
            StatusCode::NOT_FOUND,
            "metrics are at /metrics, and there are /healthz and /readyz\n",
        );
    }
    if method != Method::GET && method != Method::HEAD {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "GET only\n");
        response
            .headers_mut()
            .insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    if path != "/metrics" {
        return match path == "/healthz" || ready() {
            true => plain(StatusCode::OK, "ok\n"),
            false => plain(StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
        };
    }
    match encode() {
        Ok(text) => {
            let (text, kind) = match classic::is_wanted(accept) {
                true => (classic::convert(&text), classic::CONTENT_TYPE),
                false => (text, OPENMETRICS),
            };
            let mut response = Response::new(Full::new(Bytes::from(text)));
            let kind = hyper::header::HeaderValue::from_static(kind);
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, kind);
            headers.insert(VARY, hyper::header::HeaderValue::from_static("Accept"));
            response
        }
        Err(_) => plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            "cannot encode the metrics\n",
        ),
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode() -> Result<String, fmt::Error> {
        Ok("# EOF\n".to_owned())
    }

    #[test]
    fn only_a_get_of_the_metrics_path_returns_metrics() {
        let status = |method, path| answer(&method, path, "", encode, || true).status();
        assert_eq!(status(Method::GET, "/metrics"), StatusCode::OK);
        assert_eq!(status(Method::GET, "/"), StatusCode::NOT_FOUND);
        assert_eq!(
            status(Method::POST, "/metrics"),
            StatusCode::METHOD_NOT_ALLOWED
        );
    }

    #[test]
    fn a_process_that_is_not_ready_is_healthy_all_the_same() {
        let status = |path, ready| answer(&Method::GET, path, "", encode, || ready).status();
        assert_eq!(status("/readyz", true), StatusCode::OK);
        assert_eq!(status("/readyz", false), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status("/healthz", false), StatusCode::OK);
        assert_eq!(status("/metrics", false), StatusCode::OK);
    }

    #[test]
    fn an_encoding_error_is_a_server_error() {
        let answer = answer(&Method::GET, "/metrics", "", || Err(fmt::Error), || true);
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }

    #[test]
    fn an_address_in_use_is_an_error_that_names_the_option() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = taken.local_addr().unwrap();
        let error = spawn(Listen::At(addr), "metrics", encode)
            .unwrap_err()
            .to_string();
        assert!(error.contains("choose another --metrics"), "{error}");
    }

    #[test]
    fn the_content_type_is_openmetrics_unless_text_is_wanted() {
        for (accept, kind) in [("*/*", OPENMETRICS), ("text/plain", classic::CONTENT_TYPE)] {
            let response = answer(&Method::GET, "/metrics", accept, encode, || true);
            assert_eq!(response.headers()[CONTENT_TYPE], kind);
        }
    }
}
