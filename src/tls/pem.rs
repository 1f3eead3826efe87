//! Reader of certificates and private keys in PEM files.

use std::fs::File;
use std::io::{self, Read};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::TlsError;

/// Most bytes of a file: four times a bundle of all public authorities.
const FILE_BYTES: u64 = 1 << 20;

/// A file of a setting.
#[derive(Debug)]
pub(super) struct Pem {
    key: &'static str,
    path: String,
    pub(super) bytes: Vec<u8>,
}

impl Pem {
    /// Reads the file that the setting `key` names.
    pub(super) fn read(key: &'static str, path: &str) -> Result<Pem, TlsError> {
        let unreadable = |source| TlsError::Unreadable { key, path: path.to_owned(), source };
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(unreadable)?;
        file.take(FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > FILE_BYTES {
            return Err(unreadable(io::Error::other(format!("it is longer than {FILE_BYTES} bytes"))));
        }
        Ok(Pem { key, path: path.to_owned(), bytes })
    }

    /// All certificates in it, at least one.
    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        let read = read.map_err(|e| self.unusable(&e))?;
        if read.is_empty() { Err(self.empty("certificate")) } else { Ok(read) }
    }

    /// The first private key in it.
    pub(super) fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|e| match e {
            rustls::pki_types::pem::Error::NoItemsFound => self.empty("private key"),
            other => self.unusable(&other),
        })
    }

    /// The certificates as authorities.
    pub(super) fn authorities(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|e| self.unusable(&e))?;
        }
        Ok(roots)
    }

    /// The TLS library's objection as an error.
    pub(super) fn unusable(&self, why: &impl std::fmt::Display) -> TlsError {
        TlsError::Unusable { key: self.key, why: format!("{}: {why}", self.path) }
    }

    fn empty(&self, wanted: &'static str) -> TlsError {
        TlsError::Empty { key: self.key, path: self.path.clone(), wanted }
    }
}
