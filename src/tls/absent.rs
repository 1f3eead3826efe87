//! Substitute for TLS in a build without it.

use super::{EngineFiles, ListenerFiles, TlsError, plain_http};

/// Nothing: there is no way to make one that serves.
#[derive(Clone, Debug)]
pub struct EngineTls(());

/// Nothing: it can't be made.
#[derive(Debug)]
pub enum ListenerTls {}

impl EngineTls {
    /// Plain connections alone.
    ///
    /// # Errors
    /// When a file or a name is given.
    pub fn new(files: &EngineFiles) -> Result<EngineTls, TlsError> {
        let given = [
            ("engine.tls_ca", &files.ca),
            ("engine.tls_cert", &files.cert),
            ("engine.tls_key", &files.key),
            ("engine.tls_name", &files.name),
        ];
        match given.into_iter().find(|(_, value)| value.is_some()) {
            Some((key, _)) => Err(TlsError::NotBuilt { key }),
            None => Ok(EngineTls(())),
        }
    }

    /// Never: an engine over TLS can't be reached.
    ///
    /// # Errors
    /// Always.
    pub fn check(&self) -> Result<(), TlsError> {
        Err(TlsError::NotBuilt { key: "an engine at https://" })
    }

    /// A client for control calls.
    pub fn http(&self) -> reqwest::ClientBuilder {
        plain_http()
    }
}

impl ListenerTls {
    /// Fails: there is no TLS in this build.
    ///
    /// # Errors
    /// It always fails.
    pub fn load(_files: ListenerFiles) -> Result<ListenerTls, TlsError> {
        Err(TlsError::NotBuilt { key: "tls.cert" })
    }

    /// Nothing to read again.
    ///
    /// # Errors
    /// Never.
    pub fn refresh(&self) -> Result<bool, TlsError> {
        match *self {}
    }
}
