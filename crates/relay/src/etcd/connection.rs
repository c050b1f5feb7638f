//! A connection to a server of etcd: HTTP/1.1, with TLS or without.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::TokioIo;
use taut_mesh::etcd::{self, Lines, MAX_REPLY, Request};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use super::failure::Failure;
use super::tls::{Tls, server_name};
use crate::config::Endpoint;
use crate::net::addr::Destination;
use crate::net::names;

/// The number of addresses of a server that are tried.
const MAX_ADDRESSES: usize = 8;

/// A connection for calls, one after the other. Dropping it closes it.
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: HeaderValue,
    token: Option<HeaderValue>,
    patience: Duration,
    driver: AbortHandle,
}

/// The answer of a watch, which does not end.
pub(super) struct Stream {
    body: Incoming,
    lines: Lines,
    ready: std::collections::VecDeque<Vec<u8>>,
    /// Kept open for the body.
    _connection: Connection,
}

// === impl Connection ===

impl Connection {
    /// Connects to a server. Connecting and every call may take `patience`. Also returns the server's
    /// certificate (DER), if it has one.
    pub(super) async fn open(
        endpoint: &Endpoint,
        tls: Option<&Tls>,
        patience: Duration,
    ) -> Result<(Self, Option<Vec<u8>>), Failure> {
        let open = async {
            let stream = connect(endpoint, Instant::now() + patience).await?;
            let Some(tls) = tls.filter(|_| endpoint.tls) else {
                return Ok((Self::over(stream, endpoint, patience).await?, None));
            };
            let connector = TlsConnector::from(Arc::clone(&tls.config));
            let stream = connector.connect(server_name(endpoint)?, stream).await;
            let stream = stream.map_err(Failure::tls)?;
            let certificates = stream.get_ref().1.peer_certificates();
            let certificate = certificates.and_then(|all| all.first()).map(|c| c.to_vec());
            Ok((Self::over(stream, endpoint, patience).await?, certificate))
        };
        timeout(patience, open)
            .await
            .map_err(|_| Failure::TimedOut)?
    }

    async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        endpoint: &Endpoint,
        patience: Duration,
    ) -> Result<Self, Failure> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // The sender reports how the connection ends.
        let driver = tokio::spawn(async move { drop(connection.await) }).abort_handle();
        let host = format!("{endpoint}");
        let host = host.rsplit_once("//").map_or("", |(_, host)| host);
        Ok(Self {
            sender,
            host: HeaderValue::from_str(host)
                .map_err(|_| Failure::Closed("no host name".into()))?,
            token: None,
            patience,
            driver,
        })
    }

    /// Uses this token from now on.
    pub(super) fn set_token(&mut self, token: &str) -> Result<(), Failure> {
        let mut token = HeaderValue::from_str(token)
            .map_err(|_| Failure::Closed("a token that is no header value".into()))?;
        token.set_sensitive(true);
        self.token = Some(token);
        Ok(())
    }

    /// Makes a call and returns the body of its reply.
    pub(super) async fn call(&mut self, request: &Request) -> Result<Vec<u8>, Failure> {
        let patience = self.patience;
        let call = async {
            let response = self.send(request).await?;
            let status = response.status();
            let body = read_all(response.into_body()).await?;
            match status {
                StatusCode::OK => Ok(body),
                _ => Err(etcd::fault(status.as_u16(), &body).into()),
            }
        };
        timeout(patience, call)
            .await
            .map_err(|_| Failure::TimedOut)?
    }

    /// Makes a call whose answer does not end.
    pub(super) async fn stream(mut self, request: &Request) -> Result<Stream, Failure> {
        let patience = self.patience;
        let begin = async {
            let response = self.send(request).await?;
            let status = response.status();
            let body = response.into_body();
            match status {
                StatusCode::OK => Ok(body),
                _ => Err(etcd::fault(status.as_u16(), &read_all(body).await?).into()),
            }
        };
        let begun: Result<_, Failure> = timeout(patience, begin)
            .await
            .map_err(|_| Failure::TimedOut)?;
        Ok(Stream {
            body: begun?,
            lines: Lines::default(),
            ready: std::collections::VecDeque::new(),
            _connection: self,
        })
    }

    async fn send(&mut self, request: &Request) -> Result<Response<Incoming>, Failure> {
        let mut http = hyper::Request::builder()
            .method(Method::POST)
            .uri(request.path)
            .header(HOST, &self.host)
            .header(CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            http = http.header(AUTHORIZATION, token);
        }
        let http = http
            .body(Full::from(request.body.clone()))
            .map_err(|e| Failure::Closed(e.to_string()))?;
        self.sender.ready().await?;
        Ok(self.sender.send_request(http).await?)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

// === impl Stream ===

impl Stream {
    /// Returns the next line. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Vec<u8>, Failure> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Ok(line);
            }
            let Some(frame) = self.body.frame().await else {
                return Err(Failure::Closed("the watch has ended".into()));
            };
            if let Some(piece) = frame?.data_ref() {
                self.ready.extend(self.lines.push(piece)?);
            }
        }
    }
}

async fn read_all(body: Incoming) -> Result<Vec<u8>, Failure> {
    let body = Limited::new(body, MAX_REPLY).collect().await;
    let body = body.map_err(|error| match error.downcast::<hyper::Error>() {
        Ok(error) => Failure::from(*error),
        Err(_) => etcd::ReplyError::TooLong.into(),
    });
    Ok(body?.to_bytes().to_vec())
}

/// Connects to the first address of a server that answers. Each address gets an equal part of the time that
/// is left.
async fn connect(endpoint: &Endpoint, deadline: Instant) -> Result<TcpStream, Failure> {
    let destination = Destination {
        host: endpoint.host.clone(),
        port: endpoint.port,
    };
    let addrs = names::look_up_again(&destination).await;
    let addrs = addrs.map_err(|error| Failure::LookUp(io::Error::other(error)))?;
    let addrs: Vec<_> = addrs
        .iter()
        .take(MAX_ADDRESSES)
        .map(|addr| addr.0)
        .collect();
    let mut last = Failure::LookUp(io::ErrorKind::NotFound.into());
    for (i, addr) in addrs.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let others = u32::try_from(addrs.len() - i).unwrap_or(1);
        let until = Instant::now() + left / others;
        match timeout_at(until, TcpStream::connect(addr)).await {
            Ok(Ok(stream)) => {
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => last = Failure::Unreachable(error),
            Err(_) => last = Failure::TimedOut,
        }
    }
    Err(last)
}
