//! Reads a Vision Transformer off its weights: widths and depths are in the shapes, the rest is what the library that
//! wrote them does.

use vit_graph::ops::Activation;

use super::{
    Backbone, BiasSharing, BlockKind, ConvStem, FinalNorm, Lineage, MaskedAutoencoder, PAPER_SIZES, Pooling, Positions,
    PositionsOn, Pretraining, Qkv, QkvBias, RelativeBias, RelativeBiasKind, RotaryPositions, Vit, variants,
};
use crate::config::{Config, google_stages};
use crate::layers::{ContinuousBias, ContinuousForm, Gate, Mode, NormKind, Stem};
use crate::problem_type::ProblemType;
use crate::resnet::ResNet;
use crate::resnetv2::ResNetV2;
use crate::weights::{Scheme, Weights};
use vit_preprocess::Preprocess;

pub(super) fn guess(weights: &Weights, scheme: Scheme) -> Option<Config> {
    let shape = |name: &str| weights.tensors.get(name).map(|t| t.shape.as_slice());
    // Swin has a patch embedding, too, but none of the others.
    ["cls_token", "pos_embed", "blocks.0.norm1.weight"].into_iter().find_map(shape)?;
    // MobileCLIP's last convolution is the projection.
    let &[dim, channels, ph, pw] =
        shape("patch_embed.proj.weight").or_else(|| shape("patch_embed.backbone.2.conv.weight"))?
    else {
        return None;
    };
    if let Some(found) = eva(weights, scheme) {
        return Some(found);
    }
    let backbone = backbone(weights, scheme);
    let channels = backbone.as_ref().map_or(channels, |(_, channels)| *channels);
    let has = |name: &str| shape(name).is_some();
    let rows = |name: &str| shape(name).and_then(|s| s.first().copied());
    let first = |name: &str| format!("blocks.0.{name}");
    let has_block = |index: usize| {
        let prefix = format!("blocks.{index}.");
        weights.tensors.range(prefix.clone()..).next().is_some_and(|(name, _)| name.starts_with(&prefix))
    };
    let depth = (0..).take_while(|&index| has_block(index)).count();
    let block = match (0..).take_while(|i| has(&first(&format!("attns.{i}.norm.weight")))).count() {
        0 if has(&first("in_norm.weight")) => BlockKind::Parallel,
        // With biases by an MLP, published models have layer scale or norms in its place.
        0 if has(&first("attn.rel_pos.mlp.fc1.weight")) && !has(&first("ls1.gamma")) => BlockKind::PostNorm,
        0 => BlockKind::PreNorm,
        branches => BlockKind::Branches(branches),
    };
    // The modules with the names of attention, MLP and norm.
    let [attn, mlp, norm, scale] = match block {
        BlockKind::Parallel => ["", "", "in_norm", "ls"],
        BlockKind::Branches(_) => ["attns.0.attn.", "ffns.0.mlp.", "attns.0.norm", "attns.0.ls"],
        _ => ["attn.", "mlp.", "norm1", "ls1"],
    };
    let attn = |name: &str| first(&format!("{attn}{name}"));
    let mlp = |name: &str| first(&format!("{mlp}{name}"));
    let gate = match shape(&mlp("fc2.weight")) {
        _ if has(&mlp("fc1_g.weight")) => Gate::Separate,
        Some(&[_, hidden]) if rows(&mlp("fc1.weight")) == Some(2 * hidden) => Gate::Packed,
        _ => Gate::None,
    };
    let mlp_dim = match block {
        BlockKind::Parallel => rows(&first("in_proj.weight")).and_then(|all| all.checked_sub(3 * dim)),
        _ => shape(&mlp("fc2.weight")).and_then(|s| s.get(1).copied()),
    };
    let differential = has(&attn("lambda_q1"));
    let head_dim = rows(&attn("q_norm.weight")).filter(|&d| d > 0).map(|d| if differential { 2 * d } else { d });
    let class_token = has("cls_token");
    let pooling = match () {
        () if has("attn_pool.latent") => Pooling::Map,
        () if class_token && !has("fc_norm.weight") => Pooling::Token,
        () => Pooling::Mean,
    };
    let qkv_bias = match () {
        () if has(&attn("qkv.bias")) || has(&first("in_proj.bias")) => QkvBias::All,
        () if has(&attn("q_bias")) => QkvBias::QueryValue,
        () => QkvBias::None,
    };
    let [norm, norm_bias] = ["weight", "bias"].map(|part| has(&first(&format!("{norm}.{part}"))));
    let (pre_norm, attention_norm) = (has("norm_pre.weight"), block == BlockKind::PreNorm && has(&attn("norm.weight")));
    let relative_bias = relative_bias(weights);
    let lineage = match qkv_bias {
        QkvBias::QueryValue => Lineage::Beit,
        _ if relative_bias.is_some() && !has("pos_embed") && !has("reg_token") => Lineage::RelPos,
        _ => Lineage::VisionTransformer,
    };
    let pretraining = decoder(weights).map(Pretraining::MaskedAutoencoder);
    let mut vit = Vit {
        pretraining,
        patch_size: if has("patch_embed.proj.weight") { [ph, pw] } else { [1, 1] },
        backbone: backbone.map(|(stages, _)| Box::new(stages)),
        channels,
        classes: rows("head.weight").unwrap_or(0),
        dim,
        depth,
        mlp_dim: mlp_dim.unwrap_or(4 * dim),
        gate,
        mlp_norm: block != BlockKind::Parallel && has(&mlp("norm.weight")),
        block,
        class_token,
        distillation_token: has("dist_token"),
        distillation_head: has("head_dist.weight"),
        registers: shape("reg_token").and_then(|s| s.get(1).copied()).unwrap_or(0),
        pooling,
        patch_norm: has("patch_embed.norm.weight"),
        pre_norm,
        final_norm: match () {
            () if has("fc_norm.weight") => FinalNorm::AfterPooling,
            () if has("norm.weight") => FinalNorm::BeforePooling,
            () => FinalNorm::Absent,
        },
        pre_logits: rows("pre_logits.fc.weight"),
        qkv: Qkv::packed(qkv_bias),
        projection_bias: [attn("proj.bias"), first("attn_out_proj.bias"), first("out_proj.bias")]
            .iter()
            .any(|n| has(n)),
        relative_bias,
        lineage,
        qk_norm: head_dim.is_some(),
        differential,
        attention_norm,
        layer_scale: has(&first(&format!("{scale}.gamma"))).then_some(1e-5),
        activation: match scheme {
            Scheme::Jax => Activation::GeluTanh,
            _ if gate != Gate::None => Activation::Silu,
            _ => Activation::Gelu,
        },
        norm: if norm && !norm_bias { NormKind::Rms } else { NormKind::Layer },
        ..Vit::default()
    };
    // CLIP, AIMv2 and BEiT-3 have another epsilon than the paper's models.
    let larger = (pre_norm && vit.norm == NormKind::Layer) || vit.patch_norm || attention_norm;
    vit.norm_epsilon = match scheme {
        Scheme::HuggingFace => 1e-12,
        _ if larger => 1e-5,
        _ => 1e-6,
    };
    vit.heads = head_dim.map_or_else(|| usual_heads(&vit), |head_dim| dim / head_dim);
    place_positions(&mut vit, shape("pos_embed"));
    if let Some((side, heads)) = relative_table(weights) {
        vit.heads = heads;
        if vit.positions == Positions::None {
            vit.image_size = [side * ph, side * pw];
        }
    }
    let preprocessing = preprocessing(&vit, scheme);
    let name = variants::variants().into_iter().find(|v| v.architecture == vit.clone().into()).map(|v| v.name);
    // BEiT and BEiT v2 differ in their preprocessing alone.
    let name = name.filter(|_| lineage != Lineage::Beit);
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
        let coarser = vit.backbone.as_ref().map_or(1, |backbone| backbone.stride());
        vit.image_size = [side * vit.patch_size[0] * coarser, side * vit.patch_size[1] * coarser];
    }
}

/// The convolutional stages before a hybrid's encoder, with the epsilons of the library that wrote them, and their channels.
fn backbone(weights: &Weights, scheme: Scheme) -> Option<(Backbone, usize)> {
    let shape = |name: &str| weights.tensors.get(&format!("patch_embed.backbone.{name}")).map(|t| t.shape.as_slice());
    if let Some(&[_, channels, ..]) = shape("0.conv.weight") {
        let widths = (0..3).filter_map(|i| shape(&format!("{i}.conv.weight"))?.first().copied()).collect();
        return Some((Backbone::ConvStem(ConvStem { widths }), channels));
    }
    // Blocks of each stage, and the rows of the first one's filters.
    let stages = |filters: &dyn Fn(usize, usize) -> String| {
        let rows = |stage: usize, block: usize| shape(&filters(stage, block)).and_then(|s| s.first().copied());
        let count = |stage: usize| (0..).take_while(|&block| rows(stage, block).is_some()).count();
        let stages: Vec<usize> = (0..8).take_while(|&stage| rows(stage, 0).is_some()).collect();
        let (depths, widths) = stages.into_iter().map(|stage| (count(stage), rows(stage, 0).unwrap_or(0))).unzip();
        (depths, widths)
    };
    if let Some(&[stem_width, channels, ..]) = shape("conv1.0.weight") {
        let (depths, widths): (Vec<usize>, Vec<usize>) = stages(&|s, b| format!("layer{}.{b}.conv1.weight", s + 1));
        let net = ResNet { channels, classes: 0, depths, widths, ..ResNet::default() };
        return Some((Backbone::ResNet(ResNet { stem: Stem::Deep, stem_width, average_down: true, ..net }), channels));
    }
    let stem = shape("stem.conv.weight").or_else(|| shape("conv.weight"))?;
    let &[stem_width, channels, kernel, _] = stem else { return None };
    let (depths, widths): (Vec<usize>, Vec<usize>) = stages(&|s, b| format!("stages.{s}.blocks.{b}.conv3.weight"));
    let google = google_stages(&[], stem_width);
    let base = if scheme == Scheme::Jax { google } else { ResNetV2::before_tokens(&[]) };
    let stem = if kernel == 3 { Stem::Small } else { base.stem };
    Some((ResNetV2 { channels, depths, widths, stem_width, stem, ..base }.into(), channels))
}

/// The number of heads of the paper's sizes and of published models with the same widths and depth; otherwise 64 channels to
/// a head.
fn usual_heads(vit: &Vit) -> usize {
    let paper = PAPER_SIZES.iter().find(|s| s.dim == vit.dim && s.depth == vit.depth).map(|s| s.heads);
    let widths = |vit: &Vit| (vit.dim, vit.depth, vit.mlp_dim, vit.gate);
    let published = || {
        let found = variants::variants().into_iter().find_map(|v| {
            v.architecture.downcast_ref::<Vit>().filter(|found| widths(found) == widths(vit)).map(|found| found.heads)
        });
        found.unwrap_or((vit.dim / 64).max(1))
    };
    // AIMv2 has the widths and the depth of "L", but 128 channels to a head.
    paper.filter(|_| vit.gate == Gate::None).unwrap_or_else(published)
}

fn preprocessing(vit: &Vit, scheme: Scheme) -> Preprocess {
    let imagenet = scheme == Scheme::Torchvision || vit.distillation_token;
    let usual = if imagenet { Preprocess::imagenet() } else { Preprocess::inception() };
    let whole = vit.image_size[0] > 224 || scheme == Scheme::Jax;
    Preprocess { image_size: vit.image_size, crop_pct: if whole { 1.0 } else { usual.crop_pct }, ..usual }
}

/// The decoder of a masked autoencoder. Its heads have 32 channels in the published models.
fn decoder(weights: &Weights) -> Option<MaskedAutoencoder> {
    let shape = |name: &str| weights.tensors.get(name).map(|tensor| tensor.shape.as_slice());
    let dim = *shape("decoder_embed.weight")?.first()?;
    let depth = (0..).take_while(|i| shape(&format!("decoder_blocks.{i}.norm1.weight")).is_some()).count();
    let mlp_dim = shape("decoder_blocks.0.mlp.fc1.weight").and_then(|s| s.first().copied()).unwrap_or(4 * dim);
    Some(MaskedAutoencoder { dim, depth, heads: (dim / 32).max(1), mlp_dim, ..MaskedAutoencoder::default() })
}
