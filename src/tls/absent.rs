//! Substitute for TLS in a build without it.

use super::{EngineFiles, ListenerFiles, TlsError, plain_http};

/// Placeholder: it can make plain connections alone.
#[derive(Clone, Debug)]
pub struct EngineTls(());

/// Placeholder without a value: it can't be made.
#[derive(Debug)]
pub enum ListenerTls {}

impl EngineTls {
    /// Accepts settings without any file or name, for plain connections.
    ///
    /// # Errors
    /// A file or a name is given.
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

    /// Fails: an engine over TLS can't be reached.
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

    /// Has nothing to read again.
    ///
    /// # Errors
    /// Never.
    pub fn refresh(&self) -> Result<bool, TlsError> {
        match *self {}
    }
}
