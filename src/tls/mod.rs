//! TLS: the listener's certificates towards clients, and the authorities trusted for engines.
//!
//! The library is rustls with ring: no system library needs separate patches, and the binary can be
//! linked statically. Without the feature `tls` the same names exist and refuse: a configuration
//! with TLS then does not start.

#[cfg(not(feature = "tls"))]
mod absent;
#[cfg(feature = "tls")]
mod engine;
#[cfg(feature = "tls")]
mod listener;
#[cfg(feature = "tls")]
mod pem;

#[cfg(not(feature = "tls"))]
pub use absent::{EngineTls, ListenerTls};
#[cfg(feature = "tls")]
pub use engine::{EngineStream, EngineTls};
#[cfg(feature = "tls")]
pub use listener::{ClientStream, ListenerTls};

/// Files of the listener, PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerFiles {
    /// The certificate and its chain of intermediate authorities.
    pub cert: String,
    /// Its private key: PKCS #8, PKCS #1 or SEC 1.
    pub key: String,
    /// Authorities, one of which must have signed each client's certificate.
    pub client_ca: Option<String>,
}

/// Files and names for TLS towards engines; all may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineFiles {
    /// Trusted authorities; `None` = those of the system.
    pub ca: Option<String>,
    /// Certificate that is shown to engines.
    pub cert: Option<String>,
    /// Its private key.
    pub key: Option<String>,
    /// The name that engines' certificates must have, in place of the host that is connected to.
    pub name: Option<String>,
}

/// TLS that can't be set up; each names the setting at fault.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that is not there, is too large or can't be read.
    #[error("{key}: {path} can't be read: {source}")]
    Unreadable {
        /// Name of the setting.
        key: &'static str,
        /// Path of the file.
        path: String,
        /// Cause of the error.
        source: std::io::Error,
    },
    /// A file without a certificate or private key.
    #[error("{key}: {path} has no {wanted} in PEM")]
    Empty {
        /// Name of the setting.
        key: &'static str,
        /// Path of the file.
        path: String,
        /// A certificate, or a private key.
        wanted: &'static str,
    },
    /// A file whose content can't be used.
    #[error("{key}: {why}")]
    Unusable {
        /// Name of the setting.
        key: &'static str,
        /// Cause, in the words of the TLS library; these hold no secret.
        why: String,
    },
    /// The system has no authorities: an image without any files, for one.
    #[error("engine.tls_ca is not set, and this system has no certificates of authorities: name a file")]
    NoRoots,
    /// The program was built without TLS.
    #[error("{key} needs TLS, and this program was built without the feature `tls`")]
    NotBuilt {
        /// Name of the setting.
        key: &'static str,
    },
}

/// Reasons why there is no client for control calls.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The settings `engine.tls_*` are wrong.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The client can't be made.
    #[error("cannot set up the HTTP client: {0}")]
    Client(#[from] reqwest::Error),
}

/// A client for control calls that knows the system's authorities. It uses no proxy and follows no
/// redirect.
///
/// `reqwest`'s own builder is not used, because it panics without a process-wide TLS provider.
pub fn http() -> reqwest::ClientBuilder {
    match EngineTls::new(&EngineFiles::default()) {
        Ok(tls) => tls.http(),
        // Without files no setting can be wrong.
        Err(_) => plain_http(),
    }
}

/// Installs ring as the process-wide TLS provider, unless there is one. One library uses the
/// process's provider and accepts no other.
#[cfg(feature = "tls")]
pub fn install_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Another thread may have installed one meanwhile: either will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

fn plain_http() -> reqwest::ClientBuilder {
    reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none())
}
