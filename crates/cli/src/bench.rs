//! `vit bench`: the speed of models, image loading and search on this machine, and profiles of models.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use vit::bench::{self, BenchOptions, Isa, Measurement, Profile, ProfileRow};
use vit_data::dataset::{ReadOptions, is_formula, open_all};
use vit_data::{Preprocess, find_images};
use vit_search::{FileStamp, Index, IndexSettings, IndexWriter, ModelId, VectorType};
use vit_system::atomic_file;
use vit_train::finite_json;

use crate::Outcome;
use crate::checkpoints::ArchitectureArgument;
use crate::device_options::DeviceArguments;
use crate::images::parse_size;
use crate::table::{Align, Table, bytes, thousands};
use crate::train::read_recipe;

/// Measure how fast models run and images load
#[derive(Args)]
#[command(
    after_help = "Examples:\n  vit bench infer --model B/16 --batch 8\n  vit bench infer --model B/16 --profile\n  vit bench train --model Ti/16 --batch 16\n  vit bench data examples/images\n  vit bench search --vectors 100000"
)]
pub struct Arguments {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// Time the forward pass
    Infer {
        #[command(flatten)]
        model: ModelArguments,
        /// Of the text tower of an image-text model, on --batch texts
        #[arg(long)]
        text: bool,
    },
    /// Time a training step: forward, backward, AdamW
    Train {
        #[command(flatten)]
        model: ModelArguments,
        /// Recompute activations in the backward pass instead of keeping them
        #[arg(long)]
        recompute: bool,
        /// Pass gradients through NCCL, as its only rank: what that costs
        #[arg(long)]
        nccl: bool,
        /// The step of a recipe, such as mae, instead of one of a classifier with AdamW
        #[arg(long, value_name = "NAME|FILE")]
        recipe: Option<String>,
        /// Change a setting of the recipe: --set pretraining.decoder_depth=8
        #[arg(long = "set", value_name = "KEY=VALUE", requires = "recipe")]
        settings: Vec<String>,
    },
    /// Time decoding, resizing and normalising on one core
    Data {
        /// Images, folders or patterns, or a dataset by formula such as fractals:1000
        #[arg(required = true)]
        images: Vec<OsString>,
        /// Height and width that images are resized to
        #[arg(long, default_value = "224", value_parser = parse_size)]
        image_size: [usize; 2],
        /// Seconds to measure
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Time a query of an index, or of random vectors
    Search(SearchArguments),
}

#[derive(Args)]
struct SearchArguments {
    /// An index; without one, random vectors are made
    index: Option<PathBuf>,
    /// How many random vectors
    #[arg(long, value_name = "N", default_value_t = 100_000, conflicts_with = "index")]
    vectors: usize,
    /// Elements of a random vector
    #[arg(long, value_name = "N", default_value_t = 512, conflicts_with = "index")]
    dim: usize,
    /// How random vectors are stored: f16 or int8
    #[arg(long, value_name = "TYPE", default_value = "f16", conflicts_with = "index")]
    dtype: VectorType,
    /// The best vectors to find
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// CPU threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Seconds to measure
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ModelArguments {
    #[command(flatten)]
    model: ArchitectureArgument,
    /// Images in one run
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    batch: u32,
    /// Another image size: one number, or HEIGHTxWIDTH
    #[arg(long, value_parser = parse_size)]
    image_size: Option<[usize; 2]>,
    #[command(flatten)]
    device: DeviceArguments,
    /// CPU instructions: amx, avx512, avx2, neon or portable [default: the best]
    #[arg(long, help_heading = "How to run")]
    isa: Option<Isa>,
    /// Time every operation and layer, and write a trace for ui.perfetto.dev or
    /// chrome://tracing [default FILE: trace.json]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "trace.json")]
    profile: Option<PathBuf>,
    /// Seconds to measure
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The model that is measured by default.
const DEFAULT_MODEL: &str = "vit_base_patch16_224";

impl ModelArguments {
    fn name(&self) -> String {
        self.model.name_or(Some(DEFAULT_MODEL)).unwrap_or_default()
    }

    fn options(&self) -> BenchOptions {
        BenchOptions {
            model: self.name(),
            batch: self.batch as usize,
            image_size: self.image_size,
            device: self.device.inference(),
            isa: self.isa,
            time: seconds(self.seconds),
            recompute: false,
            nccl: false,
            recipe: None,
            text: false,
        }
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.1, 3600.0))
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    match arguments.benchmark {
        Benchmark::Infer { model, text } => {
            let options = BenchOptions { text, ..model.options() };
            match &model.profile {
                Some(trace) => profile(&model, &bench::profile(&options, false)?, trace),
                None => whole(&model, bench::infer(&options)?),
            }
        }
        Benchmark::Train { model, recompute, nccl, recipe, settings } => {
            let mut recipe = recipe.as_deref().map(read_recipe).transpose()?;
            if let Some(recipe) = &mut recipe {
                recipe.set_all(settings.iter().map(String::as_str))?;
            }
            let options = BenchOptions { recompute, nccl, recipe, ..model.options() };
            match &model.profile {
                Some(trace) => profile(&model, &bench::profile(&options, true)?, trace),
                None => whole(&model, bench::train(&options)?),
            }
        }
        Benchmark::Search(arguments) => search(&arguments),
        Benchmark::Data { images, image_size, seconds: time, json } => {
            let preprocess = Preprocess { image_size, crop_pct: 0.875, ..Preprocess::default() };
            let (m, first) = match images.as_slice() {
                [one] if is_formula(one.as_ref()) => {
                    let samples = open_all(one.as_ref(), None, &ReadOptions::default())?.samples;
                    let preprocess = Preprocess { crop_pct: 1.0, ..preprocess };
                    (bench::drawn_data(samples.as_ref(), &preprocess, seconds(time))?, "draw")
                }
                _ => (bench::data(&find_images(&images, true)?, &preprocess, seconds(time))?, "decode"),
            };
            let [decode, resize, normalise] = m.stages_ms;
            let mut out = std::io::stdout().lock();
            if json {
                let object = json!({
                    "images": m.images, format!("{first}_ms"): decode, "resize_ms": resize, "normalise_ms": normalise,
                    "images_per_s": m.images_per_s,
                });
                writeln!(out, "{:#}", finite_json(object))?;
            } else {
                writeln!(out, "{:.0} images/s on one core ({} images)", m.images_per_s, m.images)?;
                writeln!(out, "{first} {decode:.2} ms, resize and crop {resize:.2} ms, normalise {normalise:.2} ms")?;
            }
            Ok(Outcome::Fine)
        }
    }
}

fn search(arguments: &SearchArguments) -> anyhow::Result<Outcome> {
    let mut random = random_values();
    let temporary = tempfile::tempdir()?;
    let index = match &arguments.index {
        Some(index) => Index::open(index)?,
        None => {
            let model = ModelId { path: "random".into(), fingerprint: String::new() };
            let SearchArguments { vectors, dim, dtype, .. } = *arguments;
            let settings = IndexSettings { files: PathBuf::new(), model, dim, vectors: dtype };
            let mut writer = IndexWriter::open(temporary.path(), settings)?;
            for row in 0..vectors {
                let vector: Vec<f32> = random.by_ref().take(dim).collect();
                writer.add(FileStamp { file: row.to_string(), size: 0, modified: 0 }, row as u128, &vector)?;
            }
            writer.finish(|_| true)?;
            Index::open(temporary.path())?
        }
    };
    let IndexSettings { dim, vectors, .. } = *index.settings();
    let threads =
        arguments.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()), |n| n as usize);
    let (mut times, mut start) = (Vec::new(), Instant::now());
    // The first queries bring the vectors into memory.
    for round in 0.. {
        let query: Vec<f32> = random.by_ref().take(dim).collect();
        let begin = Instant::now();
        index.search(&query, arguments.top, threads)?;
        if round == 3 {
            start = Instant::now();
        } else if round > 3 {
            times.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        if times.len() >= 5 && start.elapsed() >= seconds(arguments.seconds) {
            break;
        }
    }
    let [median, p10, p90] = [0.5, 0.1, 0.9].map(|share| bench::quantile(&times, share));
    let bytes = (index.len() * dim * if vectors == VectorType::F16 { 2 } else { 1 }) as f64;
    let gbytes = bytes / median / 1e6;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let object = json!({
            "vectors": index.len(), "dim": dim, "dtype": vectors.to_string(), "top": arguments.top, "threads": threads,
            "queries": times.len(), "median_ms": median, "p10_ms": p10, "p90_ms": p90, "gbytes_per_s": gbytes,
        });
        writeln!(out, "{:#}", finite_json(object))?;
    } else {
        writeln!(out, "{} vectors of {dim} in {vectors}, {threads} threads", thousands(index.len() as u64))?;
        writeln!(out, "median   {median:.2} ms (p10 {p10:.2}, p90 {p90:.2}; {} queries)", times.len())?;
        writeln!(out, "rate     {gbytes:.1} GB/s")?;
    }
    Ok(Outcome::Fine)
}

/// Reproducible values between -1 and 1, by Knuth's linear congruential generator.
fn random_values() -> impl Iterator<Item = f32> {
    let mut state = 1u64;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    })
}

fn whole(arguments: &ModelArguments, m: Measurement) -> anyhow::Result<Outcome> {
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let mut object = json!({
            "model": arguments.name(), "batch": arguments.batch, "device": m.device, "precision": arguments.device.inference().precision.to_string(),
            "runs": m.runs, "median_ms": m.median_ms, "p10_ms": m.p10_ms, "p90_ms": m.p90_ms,
            "images_per_s": m.images_per_s, "gflops": m.gflops, "peak_gflops": m.peak_gflops,
            "peak_share": m.peak_share, "peak_memory_bytes": m.peak_memory_bytes,
            "planned_memory_bytes": m.planned_memory_bytes,
        });
        if let Some(threads) = m.threads {
            object["threads"] = json!(threads);
        }
        writeln!(out, "{:#}", finite_json(object))?;
        return Ok(Outcome::Fine);
    }
    let threads = m.threads.map_or(String::new(), |threads| format!(", {threads} threads"));
    writeln!(
        out,
        "{}, batch {}, {}{threads}, {}",
        arguments.name(),
        arguments.batch,
        m.device,
        arguments.device.inference().precision
    )?;
    writeln!(out, "median   {:.2} ms (p10 {:.2}, p90 {:.2}; {} runs)", m.median_ms, m.p10_ms, m.p90_ms, m.runs)?;
    writeln!(out, "rate     {:.1} images/s, {:.1} GFLOP/s", m.images_per_s, m.gflops)?;
    writeln!(out, "peak     {:.1} GFLOP/s measured, {:.1}% of it reached", m.peak_gflops, 100.0 * m.peak_share)?;
    writeln!(out, "memory   {} at most, {} planned", bytes(m.peak_memory_bytes), bytes(m.planned_memory_bytes))?;
    Ok(Outcome::Fine)
}

fn profile(arguments: &ModelArguments, profile: &Profile, trace: &Path) -> anyhow::Result<Outcome> {
    atomic_file::write(trace, profile.chrome_trace().to_string())
        .with_context(|| format!("the trace {} cannot be written", trace.display()))?;
    let (operations, layers) = (profile.by_operation(), profile.by_layer());
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let object = json!({
            "model": arguments.name(), "batch": arguments.batch, "runs": profile.runs, "ms": profile.total_ms(),
            "peak_gflops": profile.peak_gflops, "operations": rows(&operations), "layers": rows(&layers),
            "trace": trace,
        });
        writeln!(out, "{:#}", finite_json(object))?;
        return Ok(Outcome::Fine);
    }
    print_rows(&mut out, "LAYER", &layers)?;
    writeln!(out)?;
    print_rows(&mut out, "OPERATION", &operations)?;
    writeln!(out)?;
    let (total, runs) = (profile.total_ms(), profile.runs);
    writeln!(out, "{total:.3} ms in all, medians of {runs} runs; trace in {}", trace.display())?;
    Ok(Outcome::Fine)
}

fn rows(rows: &[ProfileRow]) -> Vec<Value> {
    let row = |r: &ProfileRow| {
        json!({
            "name": r.name, "shapes": r.shapes, "count": r.count, "ms": r.ms, "share": r.share, "gflops": r.gflops,
            "peak_share": r.peak_share, "gbytes_per_s": r.gbytes,
        })
    };
    rows.iter().map(row).collect()
}

fn print_rows(out: &mut impl Write, heading: &str, rows: &[ProfileRow]) -> anyhow::Result<()> {
    let with_shapes = rows.iter().any(|row| !row.shapes.is_empty());
    let mut columns = vec![(heading, Align::Left)];
    columns.extend(with_shapes.then_some(("SHAPES", Align::Left)));
    columns.extend(["COUNT", "MS", "SHARE", "GFLOP/S", "OF PEAK", "GB/S"].map(|name| (name, Align::Right)));
    let mut table = Table::new(&columns);
    for row in rows {
        let rate = |value: String| if row.gflops > 0.0 { value } else { String::new() };
        let mut cells = vec![row.name.clone()];
        cells.extend(with_shapes.then(|| row.shapes.clone()));
        cells.extend([
            row.count.to_string(),
            format!("{:.3}", row.ms),
            format!("{:.1}%", 100.0 * row.share),
            rate(format!("{:.0}", row.gflops)),
            rate(format!("{:.0}%", 100.0 * row.peak_share)),
            format!("{:.1}", row.gbytes),
        ]);
        table.row(cells);
    }
    table.print(out, |_| None)?;
    Ok(())
}
