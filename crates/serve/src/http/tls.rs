//! TLS: a certificate and its key, which can be replaced while the server runs.

use std::sync::{Arc, RwLock};

use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::{ServeError, TlsFiles};

/// The configuration for new connections.
pub struct Tls(RwLock<Arc<ServerConfig>>);

impl Tls {
    pub fn open(files: &TlsFiles) -> Result<Self, ServeError> {
        Ok(Self(RwLock::new(config(files)?)))
    }

    /// Reads the files again; on failure the old certificate stays.
    pub fn reload(&self, files: &TlsFiles) -> Result<(), ServeError> {
        let new = config(files)?;
        *self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = new;
        Ok(())
    }

    pub fn acceptor(&self) -> TlsAcceptor {
        self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone().into()
    }
}

fn config(TlsFiles { certificate, key }: &TlsFiles) -> Result<Arc<ServerConfig>, ServeError> {
    let wrong = |path: &std::path::Path, what: String| ServeError::Tls { path: path.into(), what };
    let chain: Vec<CertificateDer> = CertificateDer::pem_file_iter(certificate)
        .and_then(|certificates| certificates.collect())
        .map_err(|error| wrong(certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(wrong(certificate, "there is no certificate in it".into()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .map_err(|error| wrong(certificate, error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
