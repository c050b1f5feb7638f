//! Serves OpenMetrics over HTTP to scrapers on a local port. The caller encodes the metrics.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:9464").await?;
//! taut_exposition::serve(listener, || Ok("# EOF\n".to_owned())).await;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// The number of concurrent scrapers; more wait in the listen queue.
const CONNECTIONS: usize = 16;
/// The time limit of a scraper's connection.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time limit of a request's head.
const HEAD_PATIENCE: Duration = Duration::from_secs(5);
/// The pause after accept failed for lack of a resource.
const PAUSE: Duration = Duration::from_millis(100);

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves the output of `encode` at `/metrics` for ever: an exposition in OpenMetrics' text format.
pub async fn serve<E>(listener: TcpListener, encode: E)
where
    E: Fn() -> Result<String, fmt::Error> + Clone + Send + Sync + 'static,
{
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a scraper");
                sleep(PAUSE).await;
                continue;
            }
        };
        let encode = encode.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                std::future::ready(Ok::<_, Infallible>(answer(
                    request.method(),
                    request.uri().path(),
                    &encode,
                )))
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_PATIENCE)
                .serve_connection(TokioIo::new(stream), service);
            if let Ok(Err(error)) = timeout(PATIENCE, connection).await {
                tracing::debug!(%error, "a scraper's connection failed");
            }
            drop(permit);
        });
    }
}

fn answer(
    method: &Method,
    path: &str,
    encode: impl Fn() -> Result<String, fmt::Error>,
) -> Response<Full<Bytes>> {
    if path != "/metrics" {
        return plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n");
    }
    if method != Method::GET && method != Method::HEAD {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "GET only\n");
        response
            .headers_mut()
            .insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match encode() {
        Ok(text) => {
            let mut response = Response::new(Full::new(Bytes::from(text)));
            response.headers_mut().insert(
                CONTENT_TYPE,
                hyper::header::HeaderValue::from_static(OPENMETRICS),
            );
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

    fn told() -> Result<String, fmt::Error> {
        Ok("# EOF\n".to_owned())
    }

    #[test]
    fn only_a_get_of_metrics_is_answered_with_them() {
        let status = |method, path| answer(&method, path, told).status();
        assert_eq!(status(Method::GET, "/metrics"), StatusCode::OK);
        assert_eq!(status(Method::GET, "/"), StatusCode::NOT_FOUND);
        assert_eq!(
            status(Method::POST, "/metrics"),
            StatusCode::METHOD_NOT_ALLOWED
        );
    }

    #[test]
    fn what_cannot_be_told_is_an_error_of_the_server() {
        let answer = answer(&Method::GET, "/metrics", || Err(fmt::Error));
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }

    #[test]
    fn the_type_is_openmetrics() {
        let response = answer(&Method::GET, "/metrics", told);
        assert_eq!(response.headers()[CONTENT_TYPE], OPENMETRICS);
    }
}
