//! `vit convert`: weights from one format into another.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::json;
use vit_models::weights::Scheme;
use vit_models::weights::safetensors::Dtype;
use vit_models::{Changes, Layout};
use vit_train::finite_json;

use crate::Outcome;
use crate::checkpoints;
use crate::images::parse_size;
use crate::table::{Align, Table, difference};
use crate::terminal;

/// Convert weights, and compare the outputs before and after
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit convert cifar10 cifar10_f32 --dtype f32
  vit convert cifar10 cifar10_64 --image-size 64 --dtype f16
  vit convert ViT-B_16.npz vit_base

Reads safetensors, PyTorch's .pt, .pth and .bin (tensors only, nothing is
executed) and Google's .npz, with the names of timm, Hugging Face, torchvision
and JAX. Writes model.safetensors and config.json.")]
pub struct Arguments {
    /// The model: a checkpoint folder, a weights file, a run's folder (its best
    /// model), or cifar10 for the built-in one
    #[arg(value_name = "MODEL")]
    source: PathBuf,
    /// The folder to write
    #[arg(required_unless_present = "model", conflicts_with = "model")]
    folder: Option<PathBuf>,
    /// The same as MODEL, as other commands take it: vit convert -m MODEL FOLDER
    #[arg(long, short, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// The layout to write: timm or hugging-face
    #[arg(long, value_enum, default_value_t = LayoutName::Timm, hide_possible_values = true)]
    layout: LayoutName,
    /// Element type of the weights: f32, f16 or bf16
    #[arg(long, value_enum, default_value_t = DtypeName::F32, hide_possible_values = true)]
    dtype: DtypeName,
    /// Another image size: N, or HEIGHTxWIDTH; positions are resampled
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    image_size: Option<[usize; 2]>,
    /// Another patch size: N, or HEIGHTxWIDTH; patch filters are resized as in
    /// FlexiViT, positions resampled
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    patch_size: Option<[usize; 2]>,
    /// Another number of classes: a new head that starts from zero
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    classes: Option<u32>,
    /// Another number of input channels: the patch filters are adapted
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    channels: Option<u32>,
    /// Initialise parameters that the weights lack, and drop those the model lacks
    #[arg(long)]
    allow_unmatched: bool,
    /// Replace a checkpoint that is in the folder already
    #[arg(long)]
    overwrite: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum LayoutName {
    Timm,
    #[value(alias = "hf")]
    HuggingFace,
}

#[derive(Clone, Copy, ValueEnum)]
enum DtypeName {
    F32,
    F16,
    Bf16,
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let (layout, layout_name) = match arguments.layout {
        LayoutName::Timm => (Layout::Timm, "timm"),
        LayoutName::HuggingFace => (Layout::HuggingFace, "Hugging Face"),
    };
    let (dtype, dtype_name) = match arguments.dtype {
        DtypeName::F32 => (Dtype::F32, "f32"),
        DtypeName::F16 => (Dtype::F16, "f16"),
        DtypeName::Bf16 => (Dtype::BF16, "bf16"),
    };
    // With --model, the only positional argument is the folder.
    let (source, folder) = match (&arguments.model, &arguments.folder) {
        (None, Some(folder)) => (&arguments.source, folder),
        (Some(model), _) => (model, &arguments.source),
        (None, None) => anyhow::bail!("give the folder to write after the model"),
    };
    let mut checkpoint = checkpoints::open(source, arguments.allow_unmatched)?;
    check_folder(folder, &checkpoint.source, arguments.overwrite)?;
    let changes = Changes {
        image_size: arguments.image_size,
        patch_size: arguments.patch_size,
        classes: arguments.classes.map(|c| c as usize),
        channels: arguments.channels.map(|c| c as usize),
        new_head: false,
        encoder_alone: false,
    };
    checkpoints::change(&mut checkpoint, changes)?;
    let (names, source) = (library(checkpoint.scheme), checkpoint.source.clone());
    let conversion = {
        let _busy = terminal::busy(format!("writing {}, then comparing the outputs", folder.display()));
        vit::convert(checkpoint, folder, layout, dtype)?
    };
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let differences: serde_json::Map<_, _> =
            conversion.differences.iter().map(|(n, d)| (n.clone(), json!(d))).collect();
        let object = json!({
            "source": source.display().to_string(),
            "folder": folder.display().to_string(),
            "report": conversion.report,
            "differences": finite_json(differences),
        });
        writeln!(out, "{object:#}")?;
    } else {
        checkpoints::report_changes(folder, &conversion.report);
        let (source, folder) = (source.display(), folder.display());
        writeln!(out, "{source} ({names}) -> {folder} ({layout_name}, {dtype_name})")?;
        let mut table = Table::new(&[("OUTPUT", Align::Left), ("LARGEST DIFFERENCE", Align::Right)]);
        for (name, largest) in &conversion.differences {
            table.row(vec![name.clone(), difference(*largest)]);
        }
        table.print(&mut out, |_| None)?;
    }
    if conversion.differences.iter().any(|(_, d)| !d.is_finite()) {
        anyhow::bail!("{}: the converted model does not give the same outputs; do not use it", folder.display());
    }
    Ok(Outcome::Fine)
}

fn library(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Timm => "timm",
        Scheme::HuggingFace => "Hugging Face",
        Scheme::Torchvision => "torchvision",
        Scheme::Jax => "JAX",
        Scheme::BigTransfer => "Big Transfer",
        Scheme::Dinov3 { .. } => "DINOv3",
    }
}

/// Refuses to replace weights by accident.
fn check_folder(folder: &Path, source: &Path, overwrite: bool) -> anyhow::Result<()> {
    let place = folder.display();
    anyhow::ensure!(!folder.exists() || folder.is_dir(), "{place}: this is a file; give a folder to write");
    let real = |path: &Path| path.canonicalize().ok();
    let from = real(source).and_then(|file| Some(file.parent()?.to_path_buf()));
    anyhow::ensure!(from.is_none() || from != real(folder), "{place}: the weights come from this folder; give another");
    let taken = folder.join("model.safetensors").exists() || folder.join("config.json").exists();
    anyhow::ensure!(
        overwrite || !taken,
        "{place}: there is a checkpoint in this folder already; give another, or --overwrite"
    );
    Ok(())
}
