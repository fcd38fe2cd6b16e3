//! Errors of remote storage: one sentence each, with the way out. They travel inside of [`io::Error`], because every
//! reader of files has a place for that.

use std::io;

use thiserror::Error;

/// Why an object cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StorageError {
    /// Not a URL with a bucket or server.
    #[error("the URL names no bucket or server; it should look like s3://bucket/folder")]
    Url,
    /// No such object.
    #[error("there is no object of this name, and none whose name begins with it")]
    Missing,
    /// No such bucket.
    #[error("the bucket `{0}` does not exist; check its name, and the endpoint in the environment (AWS_ENDPOINT_URL)")]
    NoBucket(String),
    /// No credentials in the environment.
    #[error("there are no credentials for {service}; set {variables}")]
    NoCredentials {
        /// The service.
        service: &'static str,
        /// How to provide them.
        variables: &'static str,
    },
    /// Variables that cannot be used.
    #[error("the settings of {service} in the environment cannot be used ({reason})")]
    Settings {
        /// The service.
        service: &'static str,
        /// What is wrong with them.
        reason: String,
    },
    /// Credentials that the service does not accept.
    #[error("the credentials are refused ({0}); check them, and the clock of this machine")]
    Credentials(String),
    /// The credentials do not allow the operation.
    #[error("permission denied for these credentials ({0}); the owner of the bucket has to grant access")]
    Denied(String),
    /// A status that neither the service nor the credentials explain.
    #[error("the request is refused ({0}), by the server or by a proxy between")]
    Refused(String),
    /// A proxy that does not connect to the server.
    #[error("the proxy {proxy} does not connect to {host} ({reason}); check HTTPS_PROXY and NO_PROXY")]
    Proxy {
        /// The proxy.
        proxy: String,
        /// The server behind it.
        host: String,
        /// The proxy's answer.
        reason: String,
    },
    /// No connection.
    #[error("{host} cannot be reached ({reason}); check the network, the name, and the endpoint in the environment")]
    Unreachable {
        /// The server.
        host: String,
        /// The error of the last attempt.
        reason: String,
    },
    /// No secure connection.
    #[error(
        "no secure connection to {host} ({reason}); name the file with its authority's certificate in SSL_CERT_FILE"
    )]
    Tls {
        /// The server.
        host: String,
        /// The error of the last attempt.
        reason: String,
    },
    /// A plain connection that was not allowed.
    #[error("the endpoint has no encryption (http://); set {0}=true to use it nevertheless")]
    PlainHttp(&'static str),
    /// The object changed between two reads.
    #[error("the object was replaced while it was in use; start again to read the new one")]
    Changed,
    /// Another process wrote the same run.
    #[error("another process has written to this folder meanwhile; only one may train there")]
    Busy,
    /// Reading ranges is not possible.
    #[error("the server does not send parts of a file (byte ranges); download it, or use a server that does")]
    NoRanges,
    /// Listing is not possible.
    #[error("a web server does not list its files; name single files, such as shards-{{000..127}}.tar")]
    NoListing,
    /// Writing is not possible.
    #[error("a web server cannot be written to; use a bucket or a local folder")]
    ReadOnly,
    /// The server failed, after several attempts.
    #[error("the server fails ({0}), after several attempts")]
    Server(String),
    /// Damaged snapshot.
    #[error("{0}")]
    Snapshot(String),
    /// Compiled without the feature `remote`.
    #[error("this program was built without access to remote storage (feature `remote`)")]
    NotBuilt,
}

impl From<StorageError> for io::Error {
    fn from(error: StorageError) -> Self {
        let kind = match &error {
            StorageError::Missing | StorageError::NoBucket(_) => io::ErrorKind::NotFound,
            StorageError::Credentials(_) | StorageError::Denied(_) => io::ErrorKind::PermissionDenied,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
