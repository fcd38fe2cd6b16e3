//! `vit convert`: weights from one form into another.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::json;
use vit::models::weights::safetensors::Dtype;
use vit::models::{Changes, Checkpoint, Layout, OpenOptions};

use crate::Outcome;
use crate::pictures::parse_size;
use crate::table::{Align, Table};
use crate::terminal;

/// Convert weights into a checkpoint folder, and compare the outputs of both
#[derive(Args)]
#[command(
    after_help = "Examples:\n  vit convert ViT-B_16.npz vit_base/\n  vit convert pytorch_model.bin vit_base_hf/ --layout hugging-face\n  vit convert vit_base/ vit_base_384/ --image-size 384 --dtype f16\n\nReads safetensors, PyTorch's .pt, .pth and .bin (tensors only, nothing is executed) and Google's .npz, in the names of timm, Hugging Face, torchvision and JAX."
)]
pub struct Arguments {
    /// A checkpoint folder or a weights file
    source: PathBuf,
    /// The folder to write
    folder: PathBuf,
    /// Whose layout to write
    #[arg(long, value_enum, default_value_t = LayoutName::Timm)]
    layout: LayoutName,
    /// Element type of the weights
    #[arg(long, value_enum, default_value_t = DtypeName::F32)]
    dtype: DtypeName,
    /// Another image size: one number, or HEIGHTxWIDTH; positions are resampled
    #[arg(long, value_parser = parse_size)]
    image_size: Option<[usize; 2]>,
    /// Another number of classes: a new head that starts from zero
    #[arg(long)]
    classes: Option<usize>,
    /// Another number of input channels: the patch filters are adapted
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    channels: Option<u32>,
    /// Start anew what the weights lack, and drop what they have too much
    #[arg(long)]
    allow_unmatched: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum LayoutName {
    /// timm's hub layout
    Timm,
    /// Hugging Face's ViT and DeiT
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
    let layout = match arguments.layout {
        LayoutName::Timm => Layout::Timm,
        LayoutName::HuggingFace => Layout::HuggingFace,
    };
    let dtype = match arguments.dtype {
        DtypeName::F32 => Dtype::F32,
        DtypeName::F16 => Dtype::F16,
        DtypeName::Bf16 => Dtype::BF16,
    };
    let open = OpenOptions { weights: None, allow_unmatched: arguments.allow_unmatched };
    let mut checkpoint = Checkpoint::open(&arguments.source, open)?;
    checkpoint.change(Changes {
        image_size: arguments.image_size,
        classes: arguments.classes,
        channels: arguments.channels.map(|c| c as usize),
    })?;
    let (scheme, source) = (checkpoint.scheme, checkpoint.source.clone());
    let conversion = vit::convert(checkpoint, &arguments.folder, layout, dtype)?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let differences: serde_json::Map<_, _> =
            conversion.differences.iter().map(|(n, d)| (n.clone(), json!(d))).collect();
        writeln!(
            out,
            "{:#}",
            json!({ "source": source, "folder": arguments.folder, "report": conversion.report, "differences": differences })
        )?;
        return Ok(Outcome::Fine);
    }
    for line in &conversion.report {
        terminal::note(line);
    }
    writeln!(out, "{} ({scheme:?} names) -> {}", source.display(), arguments.folder.display())?;
    let mut table = Table::new(&[("OUTPUT", Align::Left), ("LARGEST DIFFERENCE", Align::Right)]);
    for (name, difference) in conversion.differences {
        table.row(vec![name, format!("{difference:.1e}")]);
    }
    table.print(&mut out, |_| None)?;
    Ok(Outcome::Fine)
}
