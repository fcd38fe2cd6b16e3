//! The services behind the schemes of URLs, with the credentials of the environment.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};

use super::failure;
use super::transport::Connector;
use crate::error::StorageError;
use crate::location::Location;

/// The name of an object, as its service has it.
pub(super) fn key(location: &Location) -> Result<Key, StorageError> {
    let key = match location.scheme {
        "http" | "https" => Key::from_url_path(location.key),
        _ => Key::parse(location.key),
    };
    key.map_err(|_| StorageError::Url)
}

/// Errors of a server are repeated for some minutes: a run of days should survive a restart of the service.
fn retry() -> RetryConfig {
    let backoff =
        BackoffConfig { init_backoff: Duration::from_millis(50), max_backoff: Duration::from_secs(15), base: 2.0 };
    RetryConfig { backoff, max_retries: 12, retry_timeout: Duration::from_secs(180) }
}

fn connector() -> Result<Connector, StorageError> {
    static CONNECTOR: OnceLock<Result<Connector, StorageError>> = OnceLock::new();
    let made = CONNECTOR.get_or_init(|| Connector::new().map_err(|error| StorageError::Server(error.to_string())));
    made.clone()
}

/// A service with buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    S3,
    Google,
    Azure,
}

impl Service {
    pub(super) fn of(scheme: &str) -> Option<Service> {
        match scheme {
            "s3" => Some(Service::S3),
            "gs" => Some(Service::Google),
            "az" => Some(Service::Azure),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Service::S3 => "S3",
            Service::Google => "Google Cloud Storage",
            Service::Azure => "Azure Blob Storage",
        }
    }

    /// Its server, for messages.
    pub(super) fn endpoint(self) -> String {
        let variables: &[&str] = match self {
            Service::S3 => &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"],
            Service::Google => &["GOOGLE_BASE_URL"],
            Service::Azure => &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"],
        };
        variables.iter().find_map(|name| std::env::var(name).ok()).unwrap_or_else(|| self.name().into())
    }

    /// The variable that allows connections without encryption.
    pub(super) fn allow_http(self) -> &'static str {
        match self {
            Service::S3 => "AWS_ALLOW_HTTP",
            Service::Google => "GOOGLE_ALLOW_HTTP",
            Service::Azure => "AZURE_ALLOW_HTTP",
        }
    }

    pub(super) fn no_credentials(self) -> StorageError {
        let variables = match self {
            Service::S3 => {
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, or AWS_SKIP_SIGNATURE=true for a public bucket"
            }
            Service::Google => "GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_SKIP_SIGNATURE=true for a public bucket",
            Service::Azure => {
                "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_SKIP_SIGNATURE=true for a public \
                 container"
            }
        };
        StorageError::NoCredentials { service: self.name(), variables }
    }
}

pub(super) fn connect(location: &Location) -> Result<Arc<dyn ObjectStore>, StorageError> {
    let (bucket, connector) = (location.bucket, connector()?);
    let Some(service) = Service::of(location.scheme) else {
        let url = format!("{}://{bucket}", location.scheme);
        let options = ClientOptions::new().with_allow_http(location.scheme == "http");
        let builder = HttpBuilder::new().with_url(&url).with_client_options(options).with_retry(retry());
        let server = builder.with_http_connector(connector).build().map_err(|_| StorageError::Url)?;
        return Ok(Arc::new(server));
    };
    let unusable = |error: object_store::Error| StorageError::Settings {
        service: service.name(),
        reason: failure::root_cause(&error),
    };
    Ok(match service {
        Service::S3 => Arc::new(s3(bucket)?.with_http_connector(connector).build().map_err(unusable)?),
        Service::Google => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_retry(retry());
            Arc::new(builder.with_http_connector(connector).build().map_err(unusable)?)
        }
        Service::Azure => {
            let variables = ["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR"];
            if variables.iter().all(|name| std::env::var_os(name).is_none()) {
                return Err(service.no_credentials());
            }
            let builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket).with_retry(retry());
            Arc::new(builder.with_http_connector(connector).build().map_err(unusable)?)
        }
    })
}

/// Variables of which one names credentials of S3.
const AWS_VARIABLES: [&str; 5] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
];

/// S3 with the credentials of the environment, of the user's profile, or of the machine, in this order.
fn s3(bucket: &str) -> Result<AmazonS3Builder, StorageError> {
    // Some services that follow S3 have no bulk delete.
    let builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry());
    let mut builder = builder.with_disable_bulk_delete(true);
    let profile = profile(&["credentials", "config"]);
    if AWS_VARIABLES.iter().all(|name| std::env::var_os(name).is_none()) {
        let setting = |name: &str| profile.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        match (setting("aws_access_key_id"), setting("aws_secret_access_key")) {
            (Some(id), Some(secret)) => {
                builder = builder.with_access_key_id(id).with_secret_access_key(secret);
                if let Some(token) = setting("aws_session_token") {
                    builder = builder.with_token(token);
                }
            }
            _ if !is_on_amazon() => {
                return Err(Service::S3.no_credentials());
            }
            _ => {}
        }
    }
    if builder.get_config_value(&AmazonS3ConfigKey::Region).is_none()
        && let Some((_, region)) = profile.into_iter().find(|(key, _)| key == "region")
    {
        builder = builder.with_region(region);
    }
    Ok(builder)
}

/// The settings of the user's profile in `~/.aws`.
fn profile(files: &[&str]) -> Vec<(String, String)> {
    let name = std::env::var("AWS_PROFILE").unwrap_or_else(|_| "default".into());
    let home = std::env::var_os("HOME").or_else(|| std::env::var_os("USERPROFILE")).map(PathBuf::from);
    let path = |file: &str| {
        let variable = if file == "config" { "AWS_CONFIG_FILE" } else { "AWS_SHARED_CREDENTIALS_FILE" };
        std::env::var_os(variable).map(PathBuf::from).or_else(|| Some(home.as_ref()?.join(".aws").join(file)))
    };
    let texts = files.iter().filter_map(|file| std::fs::read_to_string(path(file)?).ok());
    texts.flat_map(|text| settings_of(&text, &name)).collect()
}

fn settings_of(text: &str, profile: &str) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    let mut is_inside = false;
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            is_inside = section.trim_start_matches("profile ").trim() == profile;
        } else if let Some((key, value)) = line.split_once('=').filter(|_| is_inside) {
            settings.push((key.trim().to_owned(), value.trim().to_owned()));
        }
    }
    settings
}

/// Whether the machine has the service that gives credentials to its role. Elsewhere a request would wait for minutes.
fn is_on_amazon() -> bool {
    let metadata = SocketAddr::from(([169, 254, 169, 254], 80));
    TcpStream::connect_timeout(&metadata, Duration::from_secs(1)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_sections() {
        let text = "[default]\naws_access_key_id = a\n\n[profile work]\naws_access_key_id=b\nregion = eu-west-1\n";
        assert_eq!(settings_of(text, "default"), [("aws_access_key_id".into(), "a".into())]);
        let work = settings_of(text, "work");
        assert_eq!(work, [("aws_access_key_id".into(), "b".into()), ("region".into(), "eu-west-1".to_string())]);
    }
}
