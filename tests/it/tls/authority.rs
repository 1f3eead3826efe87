//! Certificates for an hour of testing: an authority, and what it signs; and both ends of TLS made
//! of them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use pd_proxy::sim::Engine;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The authority that signs.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, PEM.
pub struct Signed {
    pub cert: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A certificate for `name`, a host or an address.
    pub fn sign(&self, name: &str) -> Signed {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap();
        Signed { cert: cert.pem(), key: key.serialize_pem() }
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem().as_bytes()).unwrap()).unwrap();
        roots
    }

    /// A client that believes this authority, shows `shown`, and offers `alpn`.
    pub fn client(&self, shown: Option<&Signed>, alpn: &[&str]) -> TlsConnector {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots());
        let mut config = match shown {
            None => config.with_no_client_auth(),
            Some(signed) => config.with_client_auth_cert(vec![signed.der()], signed.key_der()).unwrap(),
        };
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsConnector::from(Arc::new(config))
    }
}

impl Signed {
    fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.cert.as_bytes()).unwrap()
    }

    fn key_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap()
    }

    /// Writes both into `dir`; gives their paths.
    pub fn write(&self, dir: &Path, name: &str) -> (String, String) {
        (file(dir, &format!("{name}.pem"), &self.cert), file(dir, &format!("{name}.key"), &self.key))
    }
}

/// Writes a file; gives its path.
pub fn file(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A handshake with whoever listens at `to`, as 127.0.0.1.
pub async fn connect(client: &TlsConnector, to: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
    let socket = TcpStream::connect(to).await?;
    client.connect(ServerName::try_from("127.0.0.1").unwrap(), socket).await
}

/// TLS in front of an engine: what it is reached at, until it is dropped.
pub struct Front {
    pub at: SocketAddr,
    _serving: JoinSet<()>,
}

impl Front {
    /// Shows `signed`; clients must show what `clients` signed, if that is given.
    pub async fn of(engine: &Engine, signed: &Signed, clients: Option<&Authority>) -> Front {
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider.clone());
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = match clients {
            None => config.with_no_client_auth(),
            Some(authority) => {
                let roots = Arc::new(authority.roots());
                let judge = rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider);
                config.with_client_cert_verifier(judge.build().unwrap())
            }
        };
        let config = config.with_single_cert(vec![signed.der()], signed.key_der()).unwrap();
        let (acceptor, behind) = (TlsAcceptor::from(Arc::new(config)), engine.addr());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                open.spawn(async move {
                    let Ok(mut outside) = acceptor.accept(socket).await else { return };
                    let Ok(mut inside) = TcpStream::connect(behind).await else { return };
                    let _ = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
                });
            }
        });
        Front { at, _serving: serving }
    }
}
