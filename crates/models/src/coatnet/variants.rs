//! The named CoAtNets: the paper's sizes, and timm's ("rw"), which predate Google's code.

use vit_graph::ops::Activation;

use super::{BlockKind, CoAtNet, Convolutions, Downsample, RelativePositions, StrideOn, Transformers, stages};
use crate::layers::Norm;
use crate::variant::Variant;
use vit_preprocess::{CropMode, Preprocess};

/// Widths of the stages and of the stem.
struct CoAtNetSize {
    widths: [usize; 4],
    stem: [usize; 2],
}

const NANO: CoAtNetSize = CoAtNetSize { widths: [64, 128, 256, 512], stem: [32, 64] };
const ZERO: CoAtNetSize = CoAtNetSize { widths: [96, 192, 384, 768], stem: [32, 64] };
const TWO: CoAtNetSize = CoAtNetSize { widths: [128, 256, 512, 1024], stem: [64, 128] };
const THREE: CoAtNetSize = CoAtNetSize { widths: [192, 384, 768, 1536], stem: [96, 192] };

/// The published variants.
pub(super) fn variants() -> Vec<Variant> {
    let mut all = paper();
    all.extend(own());
    all
}

/// Table 3 of the paper.
fn paper() -> Vec<Variant> {
    let sizes: [([usize; 4], [usize; 4], usize); 6] = [
        ([96, 192, 384, 768], [2, 3, 5, 2], 64),
        ([96, 192, 384, 768], [2, 6, 14, 2], 64),
        ([128, 256, 512, 1024], [2, 6, 14, 2], 128),
        ([192, 384, 768, 1536], [2, 6, 14, 2], 192),
        ([192, 384, 768, 1536], [2, 12, 28, 2], 192),
        ([256, 512, 1280, 2048], [2, 12, 28, 2], 192),
    ];
    let model = |(i, (widths, depths, stem)): (usize, ([usize; 4], [usize; 4], usize))| {
        let net = CoAtNet {
            widths: widths.to_vec(),
            stages: stages(&depths, "CCTT"),
            stem_widths: [stem; 2],
            head_hidden: Some(widths[3]),
            ..CoAtNet::default()
        };
        variant(&format!("coatnet_{i}_224"), Some(format!("CoAtNet-{i}")), net, 0.95, Preprocess::inception())
    };
    sizes.into_iter().enumerate().map(model).collect()
}

/// timm's first inverted bottlenecks: expanded from their input, with SiLU, without biases.
fn own_convolutions(stride_on: StrideOn) -> Convolutions {
    Convolutions {
        expand_output: false,
        output_bias: false,
        stride_on,
        pre_norm_activation: true,
        squeeze_activation: Activation::Relu,
        activation: Activation::Silu,
        ..Convolutions::default()
    }
}

/// timm's inverted bottlenecks since MaxViT.
fn later_convolutions(stride_on: StrideOn) -> Convolutions {
    Convolutions { expand_output: false, stride_on, activation: Activation::Silu, ..Convolutions::default() }
}

const POOL: StrideOn = StrideOn::Pooling(Downsample::Mean2);

fn own() -> Vec<Variant> {
    let early = |c: Convolutions| Convolutions { squeeze_early: true, ..c };
    let silu = |c: Convolutions| Convolutions { squeeze_activation: Activation::Silu, ..c };
    let attention = Transformers { expand_first: false, ..Transformers::default() };
    let unbiased = Transformers { shortcut_bias: false, ..attention };
    let network = |hidden| Transformers { positions: RelativePositions::Network(hidden), ..attention };
    let scaled = |t: Transformers| Transformers { layer_scale: Some(1e-6), ..t };
    let dw = || own_convolutions(StrideOn::Depthwise);
    let deep = [2, 6, 14, 2];
    let model =
        |size: &CoAtNetSize, depths: [usize; 4], convolutions: Convolutions, transformers: Transformers| CoAtNet {
            widths: size.widths.to_vec(),
            stages: stages(&depths, "CCTT"),
            stem_widths: size.stem,
            convolutions,
            transformers,
            head_hidden: None,
            ..CoAtNet::default()
        };
    let maxima = Convolutions { shortcut: Downsample::Max, ..early(own_convolutions(POOL)) };
    let half = Preprocess::inception;
    let named = |name: &str, net: CoAtNet| variant(name, None, net, 0.95, half());
    let nano = [3, 4, 6, 3];
    let mut all = vec![
        named("coatnet_pico_rw_224", model(&NANO, [2, 3, 5, 2], later_convolutions(StrideOn::Depthwise), attention)),
        variant("coatnet_nano_rw_224", None, model(&NANO, nano, later_convolutions(POOL), attention), 0.9, half()),
        named("coatnet_0_rw_224", model(&ZERO, [2, 3, 7, 2], early(own_convolutions(POOL)), unbiased)),
        named("coatnet_1_rw_224", model(&ZERO, deep, early(dw()), unbiased)),
        named("coatnet_2_rw_224", model(&TWO, deep, silu(dw()), attention)),
        named("coatnet_3_rw_224", model(&THREE, deep, silu(dw()), scaled(attention))),
        variant(
            "coatnet_bn_0_rw_224",
            None,
            model(
                &ZERO,
                [2, 3, 7, 2],
                early(dw()),
                Transformers { norm: Norm::Batch { epsilon: 1e-6, momentum: 0.1 }, ..unbiased },
            ),
            0.95,
            Preprocess::imagenet(),
        ),
        variant(
            "coatnet_rmlp_nano_rw_224",
            None,
            model(&NANO, nano, later_convolutions(StrideOn::Depthwise), network(384)),
            0.9,
            half(),
        ),
        named("coatnet_rmlp_0_rw_224", model(&ZERO, [2, 3, 7, 2], dw(), network(512))),
        named(
            "coatnet_rmlp_1_rw_224",
            model(&ZERO, deep, maxima, Transformers { shortcut_bias: false, pooling: Downsample::Max, ..network(384) }),
        ),
        named("coatnet_rmlp_1_rw2_224", model(&ZERO, deep, dw(), network(512))),
        named("coatnet_rmlp_2_rw_224", model(&TWO, deep, silu(dw()), scaled(network(512)))),
        named("coatnet_rmlp_3_rw_224", model(&THREE, deep, silu(dw()), scaled(network(512)))),
    ];
    let large = CoAtNet { image_size: [384; 2], ..model(&TWO, deep, silu(dw()), scaled(network(512))) };
    let squashed = Preprocess { crop_mode: CropMode::Squash, ..half() };
    all.push(variant("coatnet_rmlp_2_rw_384", None, large, 1.0, squashed));
    // The last two stages start with a convolution.
    let led = |depth: usize| [vec![BlockKind::Convolution], vec![BlockKind::Transformer; depth - 1]].concat();
    let mixed = CoAtNet {
        stages: vec![vec![BlockKind::Convolution; 3], vec![BlockKind::Convolution; 4], led(6), led(3)],
        ..model(&NANO, nano, own_convolutions(POOL), attention)
    };
    all.push(named("coatnet_nano_cc_224", mixed));
    all
}

fn variant(name: &str, paper_name: Option<String>, net: CoAtNet, crop_pct: f64, usual: Preprocess) -> Variant {
    let preprocessing = Preprocess { image_size: net.image_size, crop_pct, ..usual };
    Variant { name: name.into(), paper_name, family: "CoAtNet", architecture: net.into(), preprocessing }
}
