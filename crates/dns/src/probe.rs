//! Probes of relays.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config::Probe;

/// Why a probe failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    /// There was no answer in time.
    #[error("no answer within {}", humantime::format_duration(*.0))]
    TimedOut(Duration),
    /// The connection failed.
    #[error("{0}")]
    Connect(#[from] std::io::Error),
    /// The answer is no HTTP.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// The answer has another status.
    #[error("it answers {0}")]
    Status(StatusCode),
}

/// Finds out whether a relay is up.
///
/// # Errors
/// [`ProbeError`] if it is not.
pub(crate) async fn probe(probe: &Probe, patience: Duration) -> Result<(), ProbeError> {
    let outcome = async {
        match probe {
            Probe::Connect(address) => TcpStream::connect(address).await.map(drop)?,
            Probe::Http { address, path } => get(*address, path).await?,
        }
        Ok(())
    };
    let late = |_| Err(ProbeError::TimedOut(patience));
    timeout(patience, outcome).await.unwrap_or_else(late)
}

async fn get(address: SocketAddr, path: &str) -> Result<(), ProbeError> {
    let stream = TcpStream::connect(address).await?;
    let (mut client, connection) =
        hyper::client::conn::http1::handshake::<_, Empty<Bytes>>(TokioIo::new(stream)).await?;
    let mut request = Request::new(Empty::new());
    // The configuration accepts no other path.
    *request.uri_mut() = path.parse().unwrap_or_default();
    if let Ok(host) = address.to_string().parse() {
        request.headers_mut().insert(header::HOST, host);
    }
    let answer = async {
        let status = client.send_request(request).await?.status();
        match status.is_success() {
            true => Ok(()),
            false => Err(ProbeError::Status(status)),
        }
    };
    // The connection is driven here and closed with this function, whatever the peer does.
    tokio::select! {
        answer = answer => answer,
        Err(error) = connection => Err(error.into()),
    }
}
