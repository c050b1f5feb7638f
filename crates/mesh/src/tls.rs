//! The TLS of connections between relays: version 1.3 (RFC 8446), both ends authenticated by raw public
//! keys (RFC 7250), no session resumption and no early data.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme, version,
};

use crate::crypto::{kernel_provider, provider};
use crate::identity::{PrivateKey, PublicKey};
use crate::members::Members;

/// What a relay needs to dial one other relay: its own key, and the keys that the other may have.
#[derive(Clone, Debug)]
pub struct DialTls(pub(crate) Arc<ClientConfig>);

/// What a relay needs to accept connections of other relays: its own key, and those of all members.
#[derive(Clone, Debug)]
pub struct AcceptTls(pub(crate) Arc<ServerConfig>);

// === impl DialTls ===

impl DialTls {
    /// Returns what a relay with key `own` needs to dial a relay with one of the keys `peer`.
    pub fn new(own: &PrivateKey, peer: &[PublicKey]) -> Self {
        Self::with(provider().clone(), own, peer)
    }

    /// Returns the same for connections whose keys may leave this process
    /// ([`Channel::into_keys`](crate::channel::Channel::into_keys)).
    pub fn for_kernel(own: &PrivateKey, peer: &[PublicKey]) -> Self {
        let mut tls = Self::with(kernel_provider().clone(), own, peer);
        // Nobody else has it yet.
        Arc::make_mut(&mut tls.0).enable_secret_extraction = true;
        tls
    }

    pub(crate) fn with(
        provider: Arc<CryptoProvider>,
        own: &PrivateKey,
        peer: &[PublicKey],
    ) -> Self {
        let certified = Arc::new(AlwaysResolvesClientRawPublicKeys::new(own.certified()));
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .expect("the provider has suites of TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Peer(peer.to_vec())))
            .with_client_cert_resolver(certified);
        // Members are known by their keys; a name would only tell observers who is dialled.
        config.enable_sni = false;
        // Every connection is made before it is needed, and a ticket would outlive a revoked key.
        config.resumption = Resumption::disabled();
        Self(Arc::new(config))
    }
}

// === impl AcceptTls ===

impl AcceptTls {
    /// Returns what a relay with key `own` needs to accept connections of `members`. Its own key is
    /// never accepted.
    pub fn new(own: &PrivateKey, members: Arc<Members>) -> Self {
        Self::with(provider().clone(), own, members)
    }

    /// Returns the same for connections whose keys may leave this process
    /// ([`Channel::into_keys`](crate::channel::Channel::into_keys)).
    pub fn for_kernel(own: &PrivateKey, members: Arc<Members>) -> Self {
        let mut tls = Self::with(kernel_provider().clone(), own, members);
        Arc::make_mut(&mut tls.0).enable_secret_extraction = true;
        tls
    }

    fn with(provider: Arc<CryptoProvider>, own: &PrivateKey, members: Arc<Members>) -> Self {
        let certified = Arc::new(AlwaysResolvesServerRawPublicKeys::new(own.certified()));
        let verifier = AnyMember {
            own: own.public(),
            members,
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .expect("the provider has suites of TLS 1.3")
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(certified);
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        Self(Arc::new(config))
    }
}

/// Accepts one peer, by its keys.
#[derive(Debug)]
struct Peer(Vec<PublicKey>);

/// Accepts every member of the mesh but this relay itself.
#[derive(Debug)]
struct AnyMember {
    own: PublicKey,
    members: Arc<Members>,
}

/// The error for a key that is not expected. The peer gets an alert of this reason.
fn unknown_key() -> Error {
    CertificateError::ApplicationVerificationFailure.into()
}

fn verify(
    message: &[u8],
    key: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let key = SubjectPublicKeyInfoDer::from(key.as_ref());
    let algorithms = &provider().signature_verification_algorithms;
    verify_tls13_signature_with_raw_key(message, &key, dss, algorithms)
}

/// Unreachable: only TLS 1.3 is offered and accepted.
fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("TLS 1.2 is not in use".into()))
}

impl ServerCertVerifier for Peer {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match PublicKey::from_spki(key) {
            Some(key) if self.0.contains(&key) => Ok(ServerCertVerified::assertion()),
            _ => Err(unknown_key()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(message, key, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for AnyMember {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match PublicKey::from_spki(key) {
            Some(key) if key != self.own && self.members.by_key(&key).is_some() => {
                Ok(ClientCertVerified::assertion())
            }
            _ => Err(unknown_key()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(message, key, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
