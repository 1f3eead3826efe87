//! TLS towards engines: trusted authorities, and the gateway's own certificate.

use std::io;
use std::sync::{Arc, OnceLock};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::pem::Pem;
use super::{EngineFiles, TlsError, plain_http};

/// A connection to an engine.
pub type EngineStream = tokio_rustls::client::TlsStream<TcpStream>;

/// TLS towards engines at `https://`; the same for the legs of requests and for control calls.
#[derive(Clone, Debug)]
pub struct EngineTls {
    config: Arc<ClientConfig>,
    judge: Arc<EngineVerifier>,
}

/// Verifies engines' certificates, by the authorities of a file or of the system. The system's are
/// read when they are first needed. The certificate must be for the name that was dialled, or a
/// configured one.
#[derive(Debug)]
struct EngineVerifier {
    provider: Arc<CryptoProvider>,
    name: Option<ServerName<'static>>,
    /// `None` = no authorities are installed.
    verifier: OnceLock<Option<Arc<WebPkiServerVerifier>>>,
}

impl EngineTls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] names the setting at fault.
    pub fn new(files: &EngineFiles) -> Result<EngineTls, TlsError> {
        let judge = Arc::new(EngineVerifier::new(files)?);
        let unusable = |key, why: String| TlsError::Unusable { key, why };
        let config = ClientConfig::builder_with_provider(judge.provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| unusable("engine.tls_ca", e.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(judge.clone());
        let mut config = match (&files.cert, &files.key) {
            (Some(cert), Some(key)) => {
                let cert = Pem::read("engine.tls_cert", cert)?;
                let key = Pem::read("engine.tls_key", key)?.private_key()?;
                config.with_client_auth_cert(cert.certificates()?, key).map_err(|e| cert.unusable(&e))?
            }
            _ => config.with_no_client_auth(),
        };
        // The legs are HTTP/1.1: a stream per connection, whose end is the request's.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(EngineTls { config: Arc::new(config), judge })
    }

    /// Checks that some authority is trusted, before an engine at `https://` is used.
    ///
    /// # Errors
    /// [`TlsError::NoRoots`] if none could.
    pub fn check(&self) -> Result<(), TlsError> {
        self.judge.verifier().map(|_| ()).ok_or(TlsError::NoRoots)
    }

    /// A client for control calls.
    pub fn http(&self) -> reqwest::ClientBuilder {
        plain_http().tls_backend_preconfigured(ClientConfig::clone(&self.config))
    }

    /// Performs the handshake with an engine that was dialled as `host`. The caller sets the time
    /// limit.
    ///
    /// # Errors
    /// The certificate is not trusted, or the handshake fails otherwise.
    pub async fn connect(&self, socket: TcpStream, host: &str) -> io::Result<EngineStream> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(self.config.clone()).connect(name, socket).await
    }
}

impl EngineVerifier {
    fn new(files: &EngineFiles) -> Result<EngineVerifier, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let unusable = |key, why: String| TlsError::Unusable { key, why };
        let name = files.name.as_ref().map(|name| ServerName::try_from(name.clone())).transpose();
        let name = name.map_err(|e| unusable("engine.tls_name", e.to_string()))?;
        let verifier = OnceLock::new();
        if let Some(path) = &files.ca {
            let ca = Pem::read("engine.tls_ca", path)?;
            let roots = Arc::new(ca.authorities()?);
            let built = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
            let _ = verifier.set(Some(built.map_err(|e| ca.unusable(&e))?));
        }
        Ok(EngineVerifier { provider, name, verifier })
    }

    /// The verifier of the file's authorities, or of the system's. The latter are read at the first
    /// use, as most fleets need none.
    fn verifier(&self) -> Option<&Arc<WebPkiServerVerifier>> {
        let system = || {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone()).build().ok()
        };
        self.verifier.get_or_init(system).as_ref()
    }

    fn checked(&self) -> Result<&Arc<WebPkiServerVerifier>, Error> {
        self.verifier().ok_or_else(|| Error::General(TlsError::NoRoots.to_string()))
    }
}

impl ServerCertVerifier for EngineVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        dialled: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let name = self.name.as_ref().unwrap_or(dialled);
        self.checked()?.verify_server_cert(end_entity, intermediates, name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.checked()?.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.checked()?.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
