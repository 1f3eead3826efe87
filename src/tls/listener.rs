//! TLS towards clients, with files that may be replaced while the gateway runs.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::pem::Pem;
use super::{ListenerFiles, TlsError};

/// A client's connection.
pub type ClientStream = tokio_rustls::server::TlsStream<TcpStream>;

/// The listener's certificate, and the authorities that clients' certificates must come from.
#[derive(Debug)]
pub struct ListenerTls {
    files: ListenerFiles,
    current: ArcSwap<CurrentConfig>,
}

#[derive(Debug)]
struct CurrentConfig {
    config: Arc<ServerConfig>,
    /// Digest of the files in use. New connections get a new configuration only when it changes.
    contents: Contents,
}

/// Content of the listener's files.
#[derive(Debug)]
struct CertificateFiles {
    cert: Pem,
    key: Pem,
    client_ca: Option<Pem>,
}

/// A digest of the files, so that no second copy of a private key is kept.
type Contents = blake3::Hash;

impl ListenerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] names the file and the setting.
    pub fn load(files: ListenerFiles) -> Result<ListenerTls, TlsError> {
        let read = CertificateFiles::from(&files)?;
        let current = ArcSwap::from_pointee(read.current()?);
        Ok(ListenerTls { files, current })
    }

    /// Reads the files again; `true` when their contents had changed and are in use from now on.
    /// Blocks on the disk.
    ///
    /// # Errors
    /// [`TlsError`] when they can't be used. The previous configuration then stays in use, as it
    /// does while only one of certificate and key has been replaced.
    pub fn refresh(&self) -> Result<bool, TlsError> {
        let read = CertificateFiles::from(&self.files)?;
        if read.contents() == self.current.load().contents {
            return Ok(false);
        }
        self.current.store(Arc::new(read.current()?));
        Ok(true)
    }

    /// Performs the handshake with one client. The caller sets the time limit. The flag is true if
    /// HTTP/2 was negotiated.
    ///
    /// # Errors
    /// The client broke the protocol or disconnected.
    pub async fn accept(&self, socket: TcpStream) -> std::io::Result<(ClientStream, bool)> {
        let acceptor = TlsAcceptor::from(self.current.load().config.clone());
        let stream = acceptor.accept(socket).await?;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok((stream, http2))
    }
}

impl CertificateFiles {
    fn from(files: &ListenerFiles) -> Result<CertificateFiles, TlsError> {
        Ok(CertificateFiles {
            cert: Pem::read("tls.cert", &files.cert)?,
            key: Pem::read("tls.key", &files.key)?,
            client_ca: files.client_ca.as_ref().map(|path| Pem::read("tls.client_ca", path)).transpose()?,
        })
    }

    fn contents(&self) -> Contents {
        let mut hasher = blake3::Hasher::new();
        for file in [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()].into_iter().flatten() {
            hasher.update(&(file.bytes.len() as u64).to_le_bytes()).update(&file.bytes);
        }
        hasher.finalize()
    }

    fn current(&self) -> Result<CurrentConfig, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let versions = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| self.cert.unusable(&e))?;
        let clients = match &self.client_ca {
            None => versions.with_no_client_auth(),
            Some(ca) => {
                let roots = Arc::new(ca.authorities()?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                versions.with_client_cert_verifier(verifier.map_err(|e| ca.unusable(&e))?)
            }
        };
        let mut config = clients
            .with_single_cert(self.cert.certificates()?, self.key.private_key()?)
            .map_err(|e| self.cert.unusable(&e))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(CurrentConfig { config: Arc::new(config), contents: self.contents() })
    }
}
