//! Reads a Vision Transformer off its weights: widths and depths are in the shapes, the rest is what the library that
//! wrote them does.

use vit_graph::ops::Activation;

use super::{
    BiasSharing, FinalNorm, Lineage, PAPER_SIZES, Pooling, Positions, PositionsOn, Qkv, QkvBias, RelativeBias,
    RelativeBiasKind, RotaryPositions, Vit, variants,
};
use crate::config::{Config, google_stages};
use crate::layers::{ContinuousBias, ContinuousForm, Mode, Stem};
use crate::problem_type::ProblemType;
use crate::resnetv2::ResNetV2;
use crate::weights::{Scheme, Weights};
use vit_preprocess::Preprocess;

pub(super) fn guess(weights: &Weights, scheme: Scheme) -> Option<Config> {
    let shape = |name: &str| weights.tensors.get(name).map(|t| t.shape.as_slice());
    // Swin has a patch embedding, too, but none of the others.
    ["cls_token", "pos_embed", "blocks.0.norm1.weight"].into_iter().find_map(shape)?;
    let &[dim, channels, ph, pw] = shape("patch_embed.proj.weight")? else { return None };
    if let Some(found) = eva(weights, scheme) {
        return Some(found);
    }
    let backbone = backbone(weights, scheme);
    let channels = backbone.as_ref().map_or(channels, |b| b.channels);
    let depth = (0..).take_while(|i| shape(&format!("blocks.{i}.norm1.weight")).is_some()).count();
    let first = |name: &str| shape(&format!("blocks.0.{name}"));
    let mlp_dim = first("mlp.fc1.weight").and_then(|s| s.first().copied()).unwrap_or(4 * dim);
    let head_dim = first("attn.q_norm.weight").and_then(|s| s.first().copied()).filter(|&d| d > 0);
    let class_token = shape("cls_token").is_some();
    let distillation_token = shape("dist_token").is_some();
    let registers = shape("reg_token").and_then(|s| s.get(1).copied()).unwrap_or(0);
    let pooling = match () {
        () if shape("attn_pool.latent").is_some() => Pooling::Map,
        () if class_token && shape("fc_norm.weight").is_none() => Pooling::Token,
        () => Pooling::Mean,
    };
    let qkv_bias = match () {
        () if first("attn.qkv.bias").is_some() => QkvBias::All,
        () if first("attn.q_bias").is_some() => QkvBias::QueryValue,
        () => QkvBias::None,
    };
    let mut vit = Vit {
        patch_size: [ph, pw],
        backbone: backbone.map(Box::new),
        channels,
        classes: shape("head.weight").and_then(|s| s.first().copied()).unwrap_or(0),
        dim,
        depth,
        heads: head_dim.map_or_else(|| usual_heads(dim, depth), |head_dim| dim / head_dim),
        mlp_dim,
        class_token,
        distillation_token,
        distillation_head: shape("head_dist.weight").is_some(),
        registers,
        pooling,
        pre_norm: shape("norm_pre.weight").is_some(),
        final_norm: if shape("fc_norm.weight").is_some() { FinalNorm::AfterPooling } else { FinalNorm::BeforePooling },
        pre_logits: shape("pre_logits.fc.weight").and_then(|s| s.first().copied()),
        qkv: Qkv::packed(qkv_bias),
        relative_bias: relative_bias(weights),
        lineage: if qkv_bias == QkvBias::QueryValue { Lineage::Beit } else { Lineage::VisionTransformer },
        qk_norm: head_dim.is_some(),
        layer_scale: first("ls1.gamma").is_some().then_some(1e-5),
        activation: if scheme == Scheme::Jax { Activation::GeluTanh } else { Activation::Gelu },
        norm_epsilon: if scheme == Scheme::HuggingFace { 1e-12 } else { 1e-6 },
        ..Vit::default()
    };
    place_positions(&mut vit, shape("pos_embed"));
    if let Some((side, heads)) = relative_table(weights) {
        vit.heads = heads;
        if vit.positions == Positions::None {
            vit.image_size = [side * ph, side * pw];
        }
    }
    let preprocessing = preprocessing(&vit, scheme);
    let name = variants::variants().into_iter().find(|v| v.architecture == vit.clone().into()).map(|v| v.name);
    Some(Config {
        name,
        architecture: vit.into(),
        preprocessing,
        labels: Vec::new(),
        problem_type: ProblemType::default(),
    })
}

/// Names of the relative position biases of one block and of all blocks.
const BIASES: [&str; 2] = ["blocks.0.attn.rel_pos", "shared_rel_pos"];

/// Relative position biases, in tables or by an MLP.
fn relative_bias(weights: &Weights) -> Option<RelativeBias> {
    let shape = |name: &str| weights.tensors.get(name).map(|t| t.shape.as_slice());
    let kinds = BIASES.map(|name| match shape(&format!("{name}.mlp.fc1.weight")) {
        Some(&[hidden, 2]) => {
            let biased = shape(&format!("{name}.mlp.fc2.bias")).is_some();
            let form = if biased { ContinuousForm::Natural } else { ContinuousForm::Swin { pretrained: None } };
            Some(RelativeBiasKind::Continuous(ContinuousBias { hidden, form }))
        }
        _ => shape(&format!("{name}.relative_position_bias_table")).map(|_| RelativeBiasKind::Table),
    });
    let sharing = match kinds {
        [None, None] => return None,
        [Some(_), None] => BiasSharing::PerBlock,
        [None, Some(_)] => BiasSharing::Shared,
        [Some(_), Some(_)] => BiasSharing::Both,
    };
    Some(RelativeBias { kind: kinds.into_iter().flatten().next()?, sharing })
}

/// Rows of patches and heads of a table of biases, if the grid is square: `(2 rows - 1)²` offsets, and three more rows with a
/// class token.
fn relative_table(weights: &Weights) -> Option<(usize, usize)> {
    let table = BIASES.iter().find_map(|name| weights.tensors.get(&format!("{name}.relative_position_bias_table")))?;
    let &[rows, heads] = table.shape.as_slice() else { return None };
    let others = if weights.tensors.contains_key("cls_token") { 3 } else { 0 };
    let side = rows.checked_sub(others)?.isqrt();
    (side * side + others == rows && side % 2 == 1).then_some((side.div_ceil(2), heads))
}

/// Tensors that only models of timm's class `Eva` have.
const OF_EVA: [&str; 3] = ["rope.freqs", "blocks.0.attn.q_proj.weight", "blocks.0.attn.q_bias"];

/// A named model of timm's class `Eva` with exactly these parameters: fixed rotary positions leave no trace in a file, but
/// those without them have position embeddings.
fn eva(weights: &Weights, scheme: Scheme) -> Option<Config> {
    let shape = |name: &str| weights.tensors.get(name).map(|t| t.shape.as_slice());
    if shape("pos_embed").is_some() && OF_EVA.iter().all(|name| shape(name).is_none()) {
        return None;
    }
    let filters = shape("patch_embed.proj.weight")?;
    let classes = shape("head.weight").and_then(|s| s.first().copied()).unwrap_or(0);
    variants::eva().into_iter().find_map(|mut found| {
        let vit: &mut Vit = found.architecture.downcast_mut()?;
        let [rows, columns] = vit.patch_size;
        let &[dim, channels, ..] = filters else { return None };
        if (dim, &filters[2..]) != (vit.dim, &[rows, columns]) {
            return None;
        }
        (vit.channels, vit.classes) = (channels, classes);
        let graph = found.architecture.build(1, Mode::Inference).ok()?;
        let all = || graph.parameters().map(|(_, parameter)| parameter);
        let fits = all().count() == weights.tensors.len() && all().all(|p| shape(&p.name) == Some(&p.shape[..]));
        if !fits {
            return None;
        }
        // Facebook pools by the class token, timm by the mean.
        if let (Scheme::Dinov3 { bf16_periods }, Some(vit)) = (scheme, found.architecture.downcast_mut::<Vit>()) {
            vit.pooling = Pooling::Token;
            vit.rotary.iter_mut().filter(|_| bf16_periods).for_each(RotaryPositions::round_periods);
        }
        Some(Config {
            name: Some(found.name),
            architecture: found.architecture,
            preprocessing: found.preprocessing,
            labels: Vec::new(),
            problem_type: ProblemType::default(),
        })
    })
}

/// The image size follows from the number of positions, if the grid is square.
fn place_positions(vit: &mut Vit, pos_embed: Option<&[usize]>) {
    let Some(&[_, tokens, _]) = pos_embed else {
        vit.positions = Positions::None;
        return;
    };
    let square = |patches: usize| Some(patches.isqrt()).filter(|side| side * side == patches && *side > 0);
    let prefix = vit.prefix_tokens();
    let side = match tokens.checked_sub(prefix).and_then(square) {
        Some(side) => Some(side),
        None => {
            vit.positions_on = PositionsOn::Patches;
            square(tokens)
        }
    };
    if let Some(side) = side {
        // Every stage of convolutions after the first halves what the stem has quartered or left as it was.
        let coarser = vit.backbone.as_ref().map_or(1, |b| b.stem.stride() << b.depths.len().saturating_sub(1));
        vit.image_size = [side * vit.patch_size[0] * coarser, side * vit.patch_size[1] * coarser];
    }
}

/// The convolutional stages before a hybrid's encoder, with the epsilons of the library that wrote them.
fn backbone(weights: &Weights, scheme: Scheme) -> Option<ResNetV2> {
    let shape = |name: &str| weights.tensors.get(&format!("patch_embed.backbone.{name}")).map(|t| t.shape.as_slice());
    let stem = shape("stem.conv.weight").or_else(|| shape("conv.weight"))?;
    let &[stem_width, channels, kernel, _] = stem else { return None };
    let block = |stage: usize, block: usize| shape(&format!("stages.{stage}.blocks.{block}.conv3.weight"));
    let stages = (0..8).take_while(|&stage| block(stage, 0).is_some());
    let (mut depths, mut widths) = (Vec::new(), Vec::new());
    for stage in stages {
        depths.push((0..).take_while(|&b| block(stage, b).is_some()).count());
        widths.extend(block(stage, 0).and_then(|s| s.first().copied()));
    }
    let google = google_stages(&[], stem_width);
    let base = if scheme == Scheme::Jax { google } else { ResNetV2::before_tokens(&[]) };
    let stem = if kernel == 3 { Stem::Small } else { base.stem };
    Some(ResNetV2 { channels, depths, widths, stem_width, stem, ..base })
}

/// The paper's number of heads for its sizes, 64 channels to a head for all others.
fn usual_heads(dim: usize, depth: usize) -> usize {
    let known = PAPER_SIZES.iter().find(|s| s.dim == dim && s.depth == depth);
    known.map_or((dim / 64).max(1), |s| s.heads)
}

fn preprocessing(vit: &Vit, scheme: Scheme) -> Preprocess {
    let imagenet = scheme == Scheme::Torchvision || vit.distillation_token;
    let usual = if imagenet { Preprocess::imagenet() } else { Preprocess::inception() };
    let whole = vit.image_size[0] > 224 || scheme == Scheme::Jax;
    Preprocess { image_size: vit.image_size, crop_pct: if whole { 1.0 } else { usual.crop_pct }, ..usual }
}
