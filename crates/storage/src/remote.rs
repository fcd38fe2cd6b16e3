//! Objects in buckets and on web servers. All requests run on one I/O thread with its own single-threaded runtime; the
//! functions here block their caller until the result is there.

mod failure;
mod read_ahead;
mod services;
mod transport;

use std::collections::HashMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path as Key;
use object_store::{GetOptions, ObjectMeta, ObjectStore, PutMode, PutOptions, PutPayload, UpdateVersion};
use tokio::io::AsyncWriteExt;
use tokio::runtime::{Builder, Handle};
use vit_system::hash::xxh3_128;

use crate::cache::{self, DiskCache};
use crate::error::StorageError;
use crate::location::Location;
use crate::snapshot::ObjectVersion;
use crate::{Extent, ListedObject, PathKind};
use read_ahead::ReadAhead;

/// Size of the parts in which large objects are written, and below which one request writes an object.
const PART_BYTES: usize = 16 << 20;

/// Parts of one object that are written at the same time.
const PARTS_IN_FLIGHT: usize = 4;

/// Pauses before work is repeated.
const REPEATED_AFTER: [Duration; 4] =
    [Duration::from_millis(50), Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(5)];

/// The process's connections.
struct Client {
    runtime: Handle,
    services: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
    /// Size and version of every object that was listed or opened, by a hash of its URL.
    known: Mutex<HashMap<u128, KnownObject>>,
    read_ahead: ReadAhead,
}

/// Size and version of an object when it was first seen.
#[derive(Clone, Debug)]
struct KnownObject {
    bytes: u64,
    etag: Option<Arc<str>>,
}

impl From<&ObjectMeta> for KnownObject {
    fn from(meta: &ObjectMeta) -> Self {
        Self { bytes: meta.size, etag: meta.e_tag.as_deref().map(Arc::from) }
    }
}

/// An object and the service that has it.
#[derive(Clone)]
struct RemoteObject {
    service: Arc<dyn ObjectStore>,
    key: Key,
    url: Arc<str>,
}

impl RemoteObject {
    fn error(&self) -> impl Fn(object_store::Error) -> StorageError + '_ {
        |error| failure::translate(&self.url, &error)
    }

    /// Whether it is on a server that neither lists nor accepts objects.
    fn is_on_web_server(&self) -> bool {
        self.url.starts_with("http")
    }

    fn hash(&self) -> u128 {
        xxh3_128(self.url.as_bytes())
    }
}

/// Repeats work that failed for a reason of the server or the connection. `object_store` repeats requests and continues the
/// bodies of objects, but not those of lists.
async fn repeated<T, F: Future<Output = Result<T, StorageError>>>(work: impl Fn() -> F) -> Result<T, StorageError> {
    for pause in REPEATED_AFTER {
        match work().await {
            Err(StorageError::Server(_)) => tokio::time::sleep(pause).await,
            result => return result,
        }
    }
    work().await
}

/// The client, started at the first use of a URL.
fn client() -> Result<&'static Client, StorageError> {
    static CLIENT: OnceLock<Result<Client, StorageError>> = OnceLock::new();
    let started = CLIENT.get_or_init(|| {
        let failed = |error: std::io::Error| StorageError::Server(format!("no thread for requests: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let run = move || runtime.block_on(std::future::pending::<()>());
        std::thread::Builder::new().name("vit-storage".into()).spawn(run).map_err(failed)?;
        Ok(Client {
            runtime: handle,
            services: Mutex::default(),
            known: Mutex::default(),
            read_ahead: ReadAhead::default(),
        })
    });
    started.as_ref().map_err(Clone::clone)
}

impl Client {
    /// Runs a future on the I/O thread and waits for its result.
    fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, StorageError>> + Send + 'static,
    ) -> Result<T, StorageError> {
        let (sender, receiver) = sync_channel(1);
        self.runtime.spawn(async move {
            // The receiver lives until the result is there.
            let _ = sender.send(work.await);
        });
        receiver.recv().unwrap_or_else(|_| Err(StorageError::Server("a request ended without a result".into())))
    }

    fn object(&self, url: &Path) -> Result<RemoteObject, StorageError> {
        let location = Location::of(url).ok_or(StorageError::Url)?;
        let key = services::key(&location)?;
        let name = format!("{}://{}", location.scheme, location.bucket);
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        let service = match services.get(&name) {
            Some(service) => service.clone(),
            None => {
                let service = services::connect(&location)?;
                services.insert(name, service.clone());
                service
            }
        };
        Ok(RemoteObject { service, key, url: url.to_string_lossy().into() })
    }

    fn known(&self, object: &RemoteObject) -> Option<KnownObject> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&object.hash()).cloned()
    }

    fn learn(&self, hash: u128, found: KnownObject) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(hash, found);
    }

    fn forget(&self, object: &RemoteObject) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&object.hash());
    }

    /// Size and version, from the first time the object was seen.
    async fn find(&self, object: &RemoteObject) -> Result<KnownObject, StorageError> {
        if let Some(known) = self.known(object) {
            return Ok(known);
        }
        let options = GetOptions { head: true, ..GetOptions::default() };
        let found = object.service.get_opts(&object.key, options).await.map_err(object.error())?;
        let found = KnownObject::from(&found.meta);
        self.learn(object.hash(), found.clone());
        Ok(found)
    }

    /// Bytes of an object, from the cache or the service.
    async fn fetch(&self, object: &RemoteObject, range: Option<(u64, u64)>) -> Result<Bytes, StorageError> {
        let known = self.find(object).await?;
        let (offset, length) = range.unwrap_or((0, known.bytes));
        if length == 0 {
            return Ok(Bytes::new());
        }
        let cached = cache::cache().zip(known.etag.clone());
        let cached = cached.map(|(cache, etag)| (cache, DiskCache::key(&object.url, &etag, (offset, length)), etag));
        if let Some((cache, key, etag)) = cached.clone() {
            let (url, range) = (object.url.clone(), (offset, length));
            let find = move || cache.get_from_windows(&url, &etag, known.bytes, range).or_else(|| cache.get(&key));
            if let Some(bytes) = tokio::task::spawn_blocking(find).await.ok().flatten() {
                return Ok(bytes.into());
            }
        }
        let options = GetOptions {
            // A range of the whole object is requested without one, for the sake of simple web servers.
            range: ((offset, length) != (0, known.bytes)).then(|| (offset..offset + length).into()),
            if_match: known.etag.as_deref().map(str::to_owned),
            ..GetOptions::default()
        };
        let found = object.service.get_opts(&object.key, options).await.map_err(object.error())?;
        if found.meta.size != known.bytes {
            return Err(StorageError::Changed);
        }
        let bytes = found.bytes().await.map_err(object.error())?;
        if bytes.len() as u64 != length {
            return Err(StorageError::Changed);
        }
        if let Some((cache, key, _)) = cached {
            let content = bytes.clone();
            tokio::task::spawn_blocking(move || cache.put(&key, &content));
        }
        Ok(bytes)
    }
}

pub(crate) fn kind(url: &Path) -> Result<PathKind, StorageError> {
    let client = client()?;
    let object = client.object(url)?;
    client.wait(async move {
        let mut reason = StorageError::Missing;
        if !object.key.as_ref().is_empty() {
            match self::client()?.find(&object).await {
                Ok(_) => return Ok(PathKind::File),
                // The answer about one object has no text, so a list says more about missing permissions.
                Err(error @ (StorageError::Missing | StorageError::Denied(_))) if !object.is_on_web_server() => {
                    reason = error;
                }
                Err(error) => return Err(error),
            }
        }
        let first = || async {
            let first = object.service.list(Some(&object.key)).next().await;
            first.transpose().map_err(object.error())
        };
        repeated(first).await?.map(|_| PathKind::Folder).ok_or(reason)
    })
}

pub(crate) fn size(url: &Path) -> Result<u64, StorageError> {
    let client = client()?;
    let object = client.object(url)?;
    if let Some(known) = client.known(&object) {
        return Ok(known.bytes);
    }
    client.wait(async move { Ok(self::client()?.find(&object).await?.bytes) })
}

pub(crate) fn read(url: &Path, range: Option<(u64, u64)>) -> Result<Vec<u8>, StorageError> {
    let client = client()?;
    let object = client.object(url)?;
    if let Some(bytes) = client.read_ahead.take(&object, range) {
        return bytes.map(Into::into);
    }
    client.wait(async move {
        let client = self::client()?;
        Ok(repeated(|| client.fetch(&object, range)).await?.into())
    })
}

pub(crate) fn announce(extents: Vec<Extent>) {
    // An error is reported by the read itself.
    let Ok(client) = client() else { return };
    let objects = extents.into_iter().filter_map(|Extent { path, range }| Some((client.object(&path).ok()?, range)));
    client.read_ahead.announce(client, objects);
}

pub(crate) fn list(url: &Path) -> Result<Vec<ListedObject>, StorageError> {
    let client = client()?;
    let object = client.object(url)?;
    let base = url.to_string_lossy().trim_end_matches('/').to_owned();
    client.wait(async move {
        let all = || async { object.service.list(Some(&object.key)).try_collect().await.map_err(object.error()) };
        let found: Vec<ObjectMeta> = repeated(all).await?;
        let prefix = object.key.as_ref();
        let client = self::client()?;
        let mut listed = Vec::with_capacity(found.len());
        for meta in &found {
            let name = meta.location.as_ref().strip_prefix(prefix).unwrap_or_default().trim_start_matches('/');
            // Some tools mark folders by empty objects.
            if name.is_empty() {
                continue;
            }
            client.learn(xxh3_128(format!("{base}/{name}").as_bytes()), meta.into());
            listed.push(ListedObject { name: name.to_owned(), bytes: meta.size });
        }
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listed)
    })
}

/// Copies an object to a local file.
pub(crate) fn download(url: &Path, to: &Path) -> Result<(), StorageError> {
    let client = client()?;
    let (object, to) = (client.object(url)?, to.to_owned());
    client.wait(async move { repeated(|| write_file(&object, &to)).await })
}

async fn write_file(object: &RemoteObject, to: &Path) -> Result<(), StorageError> {
    let found = object.service.get_opts(&object.key, GetOptions::default()).await.map_err(object.error())?;
    let local = |error: std::io::Error| StorageError::Snapshot(format!("{}: {error}", to.display()));
    let mut file = tokio::fs::File::create(to).await.map_err(local)?;
    let mut stream = found.into_stream();
    while let Some(bytes) = stream.next().await {
        file.write_all(&bytes.map_err(object.error())?).await.map_err(local)?;
    }
    file.flush().await.map_err(local)
}

/// Copies a local file to an object, which appears when it is complete.
pub(crate) fn upload(from: &Path, url: &Path) -> Result<(), StorageError> {
    let client = client()?;
    let (object, from) = (writable(client, url)?, from.to_owned());
    let written = object.clone();
    client.wait(async move { repeated(|| read_file(&from, &written)).await })?;
    client.forget(&object);
    Ok(())
}

async fn read_file(from: &Path, object: &RemoteObject) -> Result<(), StorageError> {
    let local = |error: std::io::Error| StorageError::Snapshot(format!("{}: {error}", from.display()));
    let mut file = tokio::fs::File::open(from).await.map_err(local)?;
    let first = part(&mut file).await.map_err(local)?;
    if first.len() < PART_BYTES {
        let put = object.service.put_opts(&object.key, first.into(), PutOptions::default());
        return put.await.map(drop).map_err(object.error());
    }
    let start = object.service.put_multipart_opts(&object.key, Default::default());
    let mut upload = start.await.map_err(object.error())?;
    let written = async {
        let mut parts = futures_util::stream::FuturesUnordered::new();
        let mut next = first;
        while !next.is_empty() {
            parts.push(upload.put_part(PutPayload::from_bytes(next)));
            if parts.len() == PARTS_IN_FLIGHT {
                parts.try_next().await.map_err(object.error())?;
            }
            next = part(&mut file).await.map_err(local)?;
        }
        while parts.try_next().await.map_err(object.error())?.is_some() {}
        Ok(())
    };
    match written.await {
        Ok(()) => match upload.complete().await.map_err(object.error()) {
            // An earlier attempt completed the upload, but its answer was lost. Whether it did is unknown.
            Err(StorageError::Missing) => Err(StorageError::Server("the upload is unknown".into())),
            completed => completed.map(drop),
        },
        Err(error) => {
            // The first error is reported. The service charges for parts that stay.
            let _ = upload.abort().await;
            Err(error)
        }
    }
}

/// The next part of a file; shorter than the others at its end.
async fn part(file: &mut tokio::fs::File) -> std::io::Result<Bytes> {
    use tokio::io::AsyncReadExt;
    let mut bytes = Vec::with_capacity(PART_BYTES);
    file.take(PART_BYTES as u64).read_to_end(&mut bytes).await?;
    Ok(bytes.into())
}

/// Writes a small object. With a version, only in place of that; the result is the new version.
pub(crate) fn replace(
    url: &Path,
    content: Vec<u8>,
    version: Option<ObjectVersion>,
) -> Result<ObjectVersion, StorageError> {
    let client = client()?;
    let object = writable(client, url)?;
    let mode = match version {
        // Services without versions.
        None | Some(ObjectVersion { etag: None, generation: None }) => PutMode::Overwrite,
        Some(ObjectVersion { etag: e_tag, generation: version }) => PutMode::Update(UpdateVersion { e_tag, version }),
    };
    let content = Bytes::from(content);
    let written = object.clone();
    let result = client.wait(async move { repeated(|| put(&written, &content, &mode)).await })?;
    client.forget(&object);
    Ok(result)
}

async fn put(object: &RemoteObject, content: &Bytes, mode: &PutMode) -> Result<ObjectVersion, StorageError> {
    let put = |mode| object.service.put_opts(&object.key, PutPayload::from_bytes(content.clone()), mode);
    let put = match put(mode.clone().into()).await {
        // Services without conditional writes.
        Err(object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. }) => {
            put(PutOptions::default()).await
        }
        put => put,
    };
    match put {
        Ok(put) => Ok(ObjectVersion { etag: put.e_tag, generation: put.version }),
        // The answer to an earlier attempt may have been lost after the object was written.
        Err(object_store::Error::Precondition { .. }) => match newest(object).await? {
            (found, version) if found == *content => Ok(version),
            _ => Err(StorageError::Busy),
        },
        Err(error) => Err(object.error()(error)),
    }
}

/// The newest content of a small object, and its version.
pub(crate) fn read_versioned(url: &Path) -> Result<(Vec<u8>, ObjectVersion), StorageError> {
    let client = client()?;
    let object = client.object(url)?;
    let (content, version) = client.wait(async move { repeated(|| newest(&object)).await })?;
    Ok((content.into(), version))
}

async fn newest(object: &RemoteObject) -> Result<(Bytes, ObjectVersion), StorageError> {
    let found = object.service.get_opts(&object.key, GetOptions::default()).await.map_err(object.error())?;
    let version = ObjectVersion { etag: found.meta.e_tag.clone(), generation: found.meta.version.clone() };
    Ok((found.bytes().await.map_err(object.error())?, version))
}

pub(crate) fn remove(urls: &[PathBuf]) -> Result<(), StorageError> {
    let client = client()?;
    for url in urls {
        let object = writable(client, url)?;
        client.forget(&object);
        client.wait(async move {
            let keys = futures_util::stream::iter([Ok(object.key.clone())]).boxed();
            let removed: Vec<Key> = object.service.delete_stream(keys).try_collect().await.map_err(object.error())?;
            drop(removed);
            Ok(())
        })?;
    }
    Ok(())
}

fn writable(client: &Client, url: &Path) -> Result<RemoteObject, StorageError> {
    let object = client.object(url)?;
    if object.is_on_web_server() { Err(StorageError::ReadOnly) } else { Ok(object) }
}
