//! `vit serve`: models over HTTP.

use std::collections::HashSet;
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use tracing::Level;
use vit::{DeviceChoice, DeviceOptions, Precision};
use vit_data::DecodeOptions;
use vit_models::builtin;
use vit_serve::engine::{EngineOptions, ModelCard, ModelSource};
use vit_serve::{LogFormat, ServeOptions, Server, TlsFiles};

use crate::table::{Align, Table, bytes, short};
use crate::terminal::{self, Meaning, printable, styled};
use crate::{Outcome, checkpoints};

/// Serve models over HTTP, with a page to try them
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit serve
  vit serve --model runs/pets --model dino=dinov2_folder --device cuda
  vit serve --bind 0.0.0.0:8000 --api-key-file keys.txt --admin-bind :8001

  curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg' \\
      http://127.0.0.1:8000/v1/classify

The page is at /, all routes with examples at /docs. SIGHUP loads changed models
without losing a request. SIGTERM and Ctrl-C stop accepting requests and answer
those that are in; the exit status is then 0.")]
pub struct Arguments {
    /// A model to serve, under a name for requests or that of its path: a
    /// checkpoint folder, a weights file, a run's folder, or cifar10. Repeat it
    /// for more; the first answers requests that name none [default: cifar10]
    #[arg(long = "model", short, env = "VIT_MODEL", hide_env_values = true, value_name = "[NAME=]PATH")]
    models: Vec<String>,
    /// The address of the server; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8000", value_parser = address)]
    bind: SocketAddr,
    /// Another address for /metrics and /admin, which then leave --bind
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    admin_bind: Option<SocketAddr>,

    /// Where to run: auto, cpu, cuda or cuda:N; several as a list or by
    /// repetition, each with every model [default: auto]
    #[arg(long = "device", value_name = "DEVICE", value_delimiter = ',', help_heading = "How to run")]
    devices: Vec<DeviceChoice>,
    /// f32; tf32, bf16, f16 or fp8 on GPUs; int8 on CPUs [default: f32]
    #[arg(long, help_heading = "How to run")]
    precision: Option<Precision>,
    /// CPU threads of one run of a model [default: all cores]
    #[arg(long, value_name = "N", help_heading = "How to run", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Copies of every model on each device
    #[arg(long, value_name = "N", default_value = "1", help_heading = "How to run", value_parser = clap::value_parser!(u32).range(1..=64))]
    replicas: u32,
    /// Threads that decode images [default: all cores]
    #[arg(long, value_name = "N", help_heading = "How to run", value_parser = clap::value_parser!(u32).range(1..=1024))]
    decoders: Option<u32>,

    /// Images in one run of a model, at most [default: 8, on a GPU 64]
    #[arg(long, value_name = "N", help_heading = "Batches and queue", value_parser = clap::value_parser!(u32).range(1..=4096))]
    max_batch: Option<u32>,
    /// How long an image waits for others to fill its batch, like 5ms [default:
    /// from the model's batch times, which are measured at start]
    #[arg(long, value_name = "TIME", help_heading = "Batches and queue", value_parser = time)]
    max_delay: Option<Duration>,
    /// Images of a model that may wait; more are refused with status 429
    /// [default: 128, or 8 batches]
    #[arg(long, value_name = "N", help_heading = "Batches and queue", value_parser = clap::value_parser!(u32).range(1..))]
    queue: Option<u32>,
    /// The time of a request, after which it is dropped with status 504
    #[arg(long, value_name = "TIME", default_value = "30s", help_heading = "Batches and queue", value_parser = time)]
    timeout: Duration,
    /// How long requests that are in may take after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "30s", help_heading = "Batches and queue", value_parser = time)]
    shutdown_timeout: Duration,

    /// The largest body of a request
    #[arg(long, value_name = "SIZE", default_value = "32MB", help_heading = "Limits", value_parser = size)]
    max_body: usize,
    /// Refuse images with more pixels than this
    #[arg(long, value_name = "N", default_value = "50000000", help_heading = "Limits", value_parser = clap::value_parser!(u64).range(1..))]
    max_pixels: u64,
    /// Images in one request, at most
    #[arg(long, value_name = "N", default_value = "64", help_heading = "Limits", value_parser = clap::value_parser!(u32).range(1..))]
    max_images: u32,
    /// Connections at a time; others wait to be accepted
    #[arg(long, value_name = "N", default_value = "1024", help_heading = "Limits", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,

    /// A file of keys, one per line; requests need one of them as
    /// `Authorization: Bearer KEY`
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    api_key_file: Option<PathBuf>,
    /// Let pages of this origin use the server, scheme and host; * for all, repeat
    /// it for more
    #[arg(long = "cors", value_name = "ORIGIN", help_heading = "Access", value_parser = origin)]
    origins: Vec<String>,
    /// HTTPS: the chain of certificates, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "Access")]
    tls_cert: Option<PathBuf>,
    /// HTTPS: the private key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "Access")]
    tls_key: Option<PathBuf>,
    /// Fetch images by URL from these hosts, never from private addresses
    #[arg(long = "allow-urls", value_name = "HOST", num_args = 1.., value_delimiter = ',', help_heading = "Access")]
    url_hosts: Vec<String>,

    /// A line for every request on standard error: text or json
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    log: Option<Log>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
#[value(rename_all = "lower")]
enum Log {
    Text,
    Json,
}

/// `HOST:PORT`; `:PORT` is every address of the machine.
fn address(text: &str) -> Result<SocketAddr, String> {
    let full = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_string() };
    let found = full.to_socket_addrs().ok().and_then(|mut all| all.next());
    found.ok_or_else(|| "should be HOST:PORT like 0.0.0.0:8000".into())
}

/// A number with the unit `ms`, `s` or `m`. Without one, 5 could mean either, so only 0 is accepted.
fn time(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1e-3,
        "s" => 1.0,
        "" if digits == "0" => 1.0,
        "m" | "min" => 60.0,
        _ => f64::NAN,
    };
    let seconds = digits.parse::<f64>().map_or(f64::NAN, |value| value * unit);
    let valid = (0.0..=86_400.0).contains(&seconds);
    if valid { Ok(Duration::from_secs_f64(seconds)) } else { Err("should be a time like 5ms, 30s or 2m".into()) }
}

/// A number of bytes with the unit `kB`, `MB` or `GB`, or none.
fn size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        _ => f64::NAN,
    };
    let bytes = digits.parse::<f64>().map_or(f64::NAN, |value| value * unit);
    let valid = (1.0..=1e12).contains(&bytes);
    if valid { Ok(bytes as usize) } else { Err("should be a size like 500kB or 20MB".into()) }
}

/// `*`, or a scheme and a host without a path.
fn origin(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let valid = text == "*" || host.is_some_and(|host| !host.is_empty() && !host.contains(['/', ' ', '?', '#']));
    if valid { Ok(text.into()) } else { Err("should be an origin like https://example.org, or *".into()) }
}

/// The models, each under the name given or one derived from its path.
fn sources(models: &[String]) -> anyhow::Result<Vec<ModelSource>> {
    let builtin = [builtin::NAME.to_string()];
    let models = if models.is_empty() { &builtin } else { models };
    let mut names = HashSet::new();
    let mut sources = Vec::new();
    for text in models {
        let (name, path) = match text.split_once('=') {
            // A path may contain `=`.
            Some((name, path)) if !Path::new(text).exists() => (name.to_string(), PathBuf::from(path)),
            _ => (name_of(Path::new(text)), PathBuf::from(text)),
        };
        anyhow::ensure!(
            !name.is_empty() && !name.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control()),
            "--model {text}: `{name}` is no name for requests; give one as --model NAME={}",
            path.display()
        );
        checkpoints::exists(&path)?;
        anyhow::ensure!(
            names.insert(name.clone()),
            "two models are named `{name}`; give one another name as --model NAME={}",
            path.display()
        );
        sources.push(ModelSource { name, path });
    }
    Ok(sources)
}

/// The last part of a path that tells models apart: `runs/pets/best` is `pets`, `weights/b16.safetensors` is `b16`.
fn name_of(path: &Path) -> String {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let generic = |name: &str| ["best", "last", "model", "checkpoint", "config", "pytorch_model"].contains(&name);
    let parts = full
        .ancestors()
        .filter_map(|part| if part == full && full.is_file() { part.file_stem() } else { part.file_name() });
    let names: Vec<String> = parts.map(|name| name.to_string_lossy().into_owned()).collect();
    let name = names.iter().find(|name| !generic(name)).or(names.first());
    name.map(|name| name.replace(char::is_whitespace, "_")).unwrap_or_default()
}

impl Arguments {
    fn options(&self) -> anyhow::Result<ServeOptions> {
        let choices = if self.devices.is_empty() { vec![DeviceChoice::default()] } else { self.devices.clone() };
        let device = |choice: DeviceChoice| {
            let options = DeviceOptions::new().device(choice).precision(self.precision.unwrap_or_default());
            self.threads.map_or(options, |threads| options.threads(threads as usize))
        };
        let devices: Vec<DeviceOptions> = choices.into_iter().map(device).collect();
        let max_batch = match self.max_batch {
            Some(batch) => batch as usize,
            None if on_gpu(&devices)? => GPU_BATCH,
            None => CPU_BATCH,
        };
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let engine = EngineOptions {
            models: sources(&self.models)?,
            devices,
            replicas: self.replicas as usize,
            max_batch,
            max_delay: self.max_delay,
            queue: self.queue.map_or((8 * max_batch).max(SMALLEST_QUEUE), |n| n as usize),
            decoders: self.decoders.map_or_else(cores, |n| n as usize),
            decode: DecodeOptions { max_pixels: self.max_pixels, ..DecodeOptions::default() },
        };
        let tls = self.tls_cert.clone().zip(self.tls_key.clone());
        Ok(ServeOptions {
            engine,
            bind: self.bind,
            admin_bind: self.admin_bind,
            tls: tls.map(|(certificate, key)| TlsFiles { certificate, key }),
            api_key_file: self.api_key_file.clone(),
            cors_origins: self.origins.clone(),
            url_hosts: self.url_hosts.clone(),
            timeout: self.timeout,
            max_body_bytes: self.max_body,
            max_images: self.max_images as usize,
            max_connections: self.max_connections as usize,
            shutdown_timeout: self.shutdown_timeout,
            ..ServeOptions::default()
        })
    }
}

/// Batches by default: large enough for nearly the device's full throughput.
const CPU_BATCH: usize = 8;
const GPU_BATCH: usize = 64;
const SMALLEST_QUEUE: usize = 128;

fn on_gpu(devices: &[DeviceOptions]) -> anyhow::Result<bool> {
    for device in devices {
        let gpu = match device.device {
            DeviceChoice::Cpu => false,
            DeviceChoice::Cuda(_) => true,
            DeviceChoice::Auto => device.open()?.name() != "cpu",
        };
        if gpu {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Free memory at the end of a thread's heap that stays mapped. With glibc's 128 kB every decoder would give back the pages
/// of each image and fault them in again for the next one, and page faults of all decoders wait for one lock.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT_FREE: libc::c_int = 64 << 20;

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    // SAFETY: `mallopt` only changes a setting of the allocator, and no other thread runs yet.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_FREE)
    };
    let options = arguments.options()?;
    let format = if arguments.log == Some(Log::Json) { LogFormat::Json } else { LogFormat::Text };
    vit_serve::log_to_stderr(format, if arguments.log.is_some() { Level::INFO } else { Level::WARN });
    keep_running_on_panics();
    let server = {
        let names: Vec<&str> = options.engine.models.iter().map(|model| model.name.as_str()).collect();
        let _busy = terminal::busy(format!("compiling and measuring {}", names.join(", ")));
        Server::start(options)?
    };
    print_start(&server, arguments.tls_cert.is_some())?;
    server.run()?;
    Ok(Outcome::Fine)
}

/// The engine answers a request whose thread panics with an error; the process continues.
fn keep_running_on_panics() {
    std::panic::set_hook(Box::new(|panic| {
        if !vit_data::decode::catches_panics() {
            terminal::error(format_args!("this is a bug in vit {}: {panic}", env!("CARGO_PKG_VERSION")));
        }
    }));
}

fn print_start(server: &Server, tls: bool) -> anyhow::Result<()> {
    let scheme = if tls { "https" } else { "http" };
    let mut out = std::io::stdout().lock();
    // Scripts read the address from this line.
    writeln!(out, "listening on {}", styled(&format!("{scheme}://{}", server.address()), Meaning::Heading))?;
    writeln!(out, "  page    {scheme}://{}/", server.address())?;
    writeln!(out, "  routes  {scheme}://{}/docs", server.address())?;
    if let Some(admin) = server.admin_address() {
        writeln!(out, "  admin   http://{admin}/metrics")?;
    }
    writeln!(out)?;
    let columns = ["model", "parameters", "device", "memory", "images in a batch: milliseconds", "wait"];
    let mut table = Table::new(&columns.map(|name| (name, Align::Left)));
    for model in server.engine().models() {
        table.row(row(model.card()));
    }
    table.print(&mut out, |_| None)?;
    Ok(out.flush()?)
}

fn row(card: &ModelCard) -> Vec<String> {
    let milliseconds = |seconds: f64| {
        let value = 1e3 * seconds;
        if value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
    };
    let batches: Vec<String> =
        card.batches.iter().map(|(n, seconds)| format!("{n}: {}", milliseconds(*seconds))).collect();
    vec![
        printable(&card.name).into_owned(),
        short(card.parameters),
        format!("{}, {}", card.devices.join(" + "), card.precision),
        bytes(card.memory_bytes as u64),
        batches.join("  "),
        format!("{} ms", milliseconds(card.max_delay.as_secs_f64())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_have_units() {
        assert_eq!(time("5ms"), Ok(Duration::from_millis(5)));
        assert_eq!(time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(time("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(time("0"), Ok(Duration::ZERO));
        assert_eq!(size("20MB"), Ok(20_000_000));
        assert_eq!(size("1.5kB"), Ok(1500));
        assert_eq!(size("77"), Ok(77));
        for wrong in ["", "5", "ms", "-1s", "1h", "inf", "nan", "9e9s"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "MB", "-1", "0", "1XB", "inf"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn addresses_and_origins_are_checked() {
        assert_eq!(address("127.0.0.1:80").unwrap().port(), 80);
        assert_eq!(address(":8001").unwrap().to_string(), "0.0.0.0:8001");
        assert_eq!(address("[::1]:9").unwrap().to_string(), "[::1]:9");
        for wrong in ["", "8000", "127.0.0.1", "127.0.0.1:99999"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
        assert!(
            origin("https://example.org").is_ok() && origin("http://localhost:3000").is_ok() && origin("*").is_ok()
        );
        for wrong in ["example.org", "https://", "https://example.org/page", ""] {
            assert!(origin(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn models_get_the_name_that_tells_them_apart() {
        assert_eq!(name_of(Path::new("cifar10")), "cifar10");
        assert_eq!(name_of(Path::new("weights/b16.safetensors")), "b16.safetensors");
        assert_eq!(name_of(Path::new("runs/pets/best")), "pets");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("b16.safetensors");
        std::fs::write(&file, "").unwrap();
        assert_eq!(name_of(&file), "b16");
        let text = format!("a={}", file.display());
        assert_eq!(sources(std::slice::from_ref(&text)).unwrap()[0].name, "a");
        let twice = sources(&[text.clone(), text]).unwrap_err().to_string();
        assert!(twice.contains("two models are named `a`") && twice.contains("--model NAME="), "{twice}");
    }
}
