//! `[relay.mesh.etcd]`: where the list of members comes from, besides its file.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use hyper::Uri;
use serde::Deserialize;
use toml::Spanned;

use super::field::{OneOrMany, Time, set_time};

/// The largest number of endpoints.
pub const MAX_ENDPOINTS: usize = 8;

/// The list of members in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// The servers, in the order in which they are tried.
    pub endpoints: Vec<Endpoint>,
    /// The prefix of this mesh's keys.
    pub prefix: String,
    /// Certificates of the authorities that the servers' certificates come from, in PEM.
    pub ca_file: Option<PathBuf>,
    /// This relay's certificate and private key, in PEM.
    pub client: Option<ClientCertificate>,
    /// The user and the file with its password.
    pub login: Option<Login>,
    /// How long a connection or a call may take.
    pub timeout: Duration,
    /// The interval at which the list is read although no change has been reported.
    pub interval: Duration,
    /// The term of the lease under which this relay announces itself; `None`: it does not.
    pub lease: Option<Duration>,
}

/// A server of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Name or address.
    pub host: String,
    /// Port for clients.
    pub port: u16,
    /// Whether connections use TLS.
    pub tls: bool,
}

/// A certificate and its private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate, and those between it and its authority.
    pub cert_file: PathBuf,
    /// The private key.
    pub key_file: PathBuf,
}

/// A user of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The name.
    pub user: String,
    /// The file with the password.
    pub password_file: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EtcdSection {
    endpoints: Spanned<OneOrMany>,
    prefix: Option<Spanned<String>>,
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    user: Option<String>,
    password_file: Option<PathBuf>,
    timeout: Option<Spanned<Time>>,
    interval: Option<Spanned<Time>>,
    lease: Option<Spanned<Time>>,
    announce: Option<bool>,
}

/// The range of `timeout`.
const TIMEOUT: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(60);
/// The range of `interval`.
const INTERVAL: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(3600);
/// The range of `lease`. etcd's own least term is about 2 s.
const LEASE: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(3)..=Duration::from_secs(3600);

impl EtcdConfig {
    /// Returns the defaults with these servers: no TLS and no login.
    pub fn new(endpoints: Vec<Endpoint>) -> Self {
        Self {
            endpoints,
            prefix: "/taut".to_owned(),
            ca_file: None,
            client: None,
            login: None,
            timeout: Duration::from_secs(5),
            interval: Duration::from_secs(60),
            lease: Some(Duration::from_secs(30)),
        }
    }
}

impl EtcdSection {
    /// Returns the checked section; `at` is the offset where it begins.
    pub(super) fn check(self, at: usize) -> Result<EtcdConfig, (usize, String)> {
        let fail = |at: usize, message: &str| Err((at, format!("relay.mesh.etcd.{message}")));
        let endpoints_at = self.endpoints.span().start;
        let texts = self.endpoints.into_inner().into_vec();
        if !(1..=MAX_ENDPOINTS).contains(&texts.len()) {
            return fail(
                endpoints_at,
                &format!("endpoints: name 1 to {MAX_ENDPOINTS} servers"),
            );
        }
        let endpoints = texts.iter().map(|text| {
            text.parse()
                .map_err(|e| (endpoints_at, format!("relay.mesh.etcd.endpoints: {e}")))
        });
        let mut etcd = EtcdConfig::new(endpoints.collect::<Result<_, _>>()?);
        if let Some(prefix) = self.prefix {
            let (at, text) = (prefix.span().start, prefix.into_inner());
            let is_plain = text.bytes().all(|b| b.is_ascii_graphic());
            if !text.starts_with('/') || text.len() > 200 || !is_plain {
                return fail(
                    at,
                    "prefix: must begin with `/` and have at most 200 visible ASCII characters",
                );
            }
            etcd.prefix = text;
        }
        etcd.ca_file = self.ca_file;
        etcd.client = match (self.cert_file, self.key_file) {
            (Some(cert_file), Some(key_file)) => Some(ClientCertificate {
                cert_file,
                key_file,
            }),
            (None, None) => None,
            _ => {
                return fail(
                    at,
                    "cert_file and key_file need one another; name both or neither",
                );
            }
        };
        etcd.login = match (self.user, self.password_file) {
            (Some(user), Some(password_file)) => Some(Login {
                user,
                password_file,
            }),
            (None, None) => None,
            _ => {
                return fail(
                    at,
                    "user and password_file need one another; name both or neither",
                );
            }
        };
        let tls = etcd.endpoints.iter().any(|endpoint| endpoint.tls);
        if tls && etcd.ca_file.is_none() {
            return fail(
                at,
                "ca_file: an https endpoint needs the certificate of its authority",
            );
        }
        if !tls && (etcd.ca_file.is_some() || etcd.client.is_some()) {
            return fail(
                endpoints_at,
                "endpoints: certificates are for https endpoints, and none of these is one",
            );
        }
        let exposes = |endpoint: &Endpoint| !endpoint.tls && !endpoint.is_loopback();
        if etcd.login.is_some() && etcd.endpoints.iter().any(exposes) {
            return fail(
                endpoints_at,
                "endpoints: a password must not travel without TLS; use https",
            );
        }
        set_time(
            &mut etcd.timeout,
            self.timeout,
            TIMEOUT,
            "mesh.etcd.timeout",
        )?;
        set_time(
            &mut etcd.interval,
            self.interval,
            INTERVAL,
            "mesh.etcd.interval",
        )?;
        let mut lease = etcd.lease.unwrap_or_default();
        set_time(&mut lease, self.lease, LEASE, "mesh.etcd.lease")?;
        etcd.lease = self.announce.unwrap_or(true).then_some(lease);
        Ok(etcd)
    }
}

// === impl Endpoint ===

impl Endpoint {
    fn is_loopback(&self) -> bool {
        let addr = self.host.parse::<IpAddr>();
        self.host == "localhost" || addr.is_ok_and(|addr| addr.is_loopback())
    }
}

/// A text that is not an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a URL such as \"https://etcd.example:2379\"")]
pub struct EndpointError(String);

impl std::str::FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let error = || EndpointError(text.chars().take(200).collect());
        let uri: Uri = text.parse().map_err(|_| error())?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(error()),
        };
        let authority = uri.authority().ok_or_else(error)?;
        if uri.path() != "/" || uri.query().is_some() || authority.as_str().contains('@') {
            return Err(error());
        }
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']');
        match (host, authority.port_u16()) {
            ("", _) | (_, None | Some(0)) => Err(error()),
            (host, Some(port)) => Ok(Self {
                host: host.to_owned(),
                port,
                tls,
            }),
        }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_scheme_a_host_and_a_port() {
        for text in [
            "http://127.0.0.1:2379",
            "https://etcd.example:2379",
            "https://[2001:db8::1]:1",
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        let slash: Endpoint = "https://a:1/".parse().unwrap();
        assert_eq!((slash.host.as_str(), slash.port, slash.tls), ("a", 1, true));
        for bad in [
            "",
            "a:1",
            "ftp://a:1",
            "http://a",
            "http://a:0",
            "http://a:1/x",
            "http://u@a:1",
            "http://:1",
        ] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
        }
    }

    fn section(text: &str) -> Result<EtcdConfig, String> {
        let section: EtcdSection = toml::from_str(text).map_err(|e| e.to_string())?;
        section.check(0).map_err(|(_, message)| message)
    }

    #[test]
    fn what_would_expose_a_password_or_check_no_server_is_refused() {
        let login = "user = \"a\"\npassword_file = \"b\"\n";
        for (text, expected) in [
            ("endpoints = []".to_owned(), "endpoints: name 1 to 8"),
            (
                "endpoints = \"https://a:1\"".to_owned(),
                "ca_file: an https endpoint",
            ),
            (
                format!("endpoints = \"http://a:1\"\n{login}"),
                "endpoints: a password must not",
            ),
            (
                "endpoints = \"http://a:1\"\nca_file = \"c\"".to_owned(),
                "endpoints: certificates are",
            ),
            (
                "endpoints = \"http://a:1\"\nuser = \"a\"".to_owned(),
                "user and password_file",
            ),
            (
                "endpoints = \"http://a:1\"\nprefix = \"taut\"".to_owned(),
                "prefix: must begin",
            ),
        ] {
            let message = section(&text).unwrap_err();
            assert!(
                message.starts_with(&format!("relay.mesh.etcd.{expected}")),
                "{message}"
            );
        }
        let local = section(&format!("endpoints = \"http://127.0.0.1:1\"\n{login}")).unwrap();
        assert!(local.login.is_some());
        let silent =
            section("endpoints = \"http://a:1\"\nannounce = false\nlease = \"10s\"").unwrap();
        assert_eq!(silent.lease, None);
        assert!(section("endpoints = \"http://a:1\"\ninterval = \"1ms\"").is_err());
    }
}
