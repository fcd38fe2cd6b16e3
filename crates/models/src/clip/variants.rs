//! OpenCLIP's models by name.

use vit_graph::ops::Activation;

use super::{Clip, Pairing, TextPooling, TextTower};
use crate::variant::Variant;
use crate::vit::{Embedding, FinalNorm, Pooling, Vit};
use vit_preprocess::{CropMode, Preprocess};

/// How OpenAI's and OpenCLIP's weights take images.
pub(super) fn preprocess() -> Preprocess {
    Preprocess { crop_pct: 1.0, ..Preprocess::clip() }
}

/// Width, depth, heads, MLP.
type Size = [usize; 4];

const BASE: Size = [768, 12, 12, 3072];
const LARGE: Size = [1024, 24, 16, 4096];

/// Of OpenCLIP: patch and image size, the image tower, the text tower, the width of the embedding.
const CLIP: [(&str, usize, usize, Size, Size, usize); 6] = [
    ("ViT-B-32", 32, 224, BASE, [512, 12, 8, 2048], 512),
    ("ViT-B-16", 16, 224, BASE, [512, 12, 8, 2048], 512),
    ("ViT-L-14", 14, 224, LARGE, [768, 12, 12, 3072], 768),
    ("ViT-L-14-336", 14, 336, LARGE, [768, 12, 12, 3072], 768),
    ("ViT-H-14", 14, 224, [1280, 32, 16, 5120], [1024, 24, 16, 4096], 1024),
    ("ViT-bigG-14", 14, 224, [1664, 48, 16, 8192], [1280, 32, 20, 5120], 1280),
];

/// The same of SigLIP, whose towers are of one size.
const SIGLIP: [(&str, usize, usize, Size); 4] = [
    ("ViT-B-16-SigLIP", 16, 224, BASE),
    ("ViT-B-16-SigLIP-256", 16, 256, BASE),
    ("ViT-L-16-SigLIP-256", 16, 256, LARGE),
    ("ViT-SO400M-14-SigLIP-384", 14, 384, [1152, 27, 16, 4304]),
];

/// The model of a name; with `-quickgelu` after it, the one of OpenAI's weights.
pub(super) fn variant(name: &str) -> Option<Variant> {
    let (base, quick) = name.strip_suffix("-quickgelu").map_or((name, false), |base| (base, true));
    let clip = CLIP.iter().find(|row| row.0 == base).map(|&(_, patch, image, towers, text, embed_dim)| {
        let clip = clip(patch, image, towers, text, embed_dim);
        (if quick { with_activation(clip, Activation::QuickGelu) } else { clip }, preprocess())
    });
    let siglip = SIGLIP.iter().find(|row| row.0 == name).map(|&(_, patch, image, size)| {
        let squashed = Preprocess { crop_pct: 1.0, crop_mode: CropMode::Squash, ..Preprocess::inception() };
        (siglip(patch, image, size), squashed)
    });
    let (clip, preprocessing) = clip.or(siglip)?;
    let preprocessing = Preprocess { image_size: clip.image.image_size, ..preprocessing };
    Some(Variant { name: name.into(), paper_name: None, family: "CLIP", architecture: clip.into(), preprocessing })
}

/// ViT-B-32, whose choices are OpenCLIP's usual ones.
pub(super) fn base_32() -> Clip {
    let (_, patch, image, towers, text, embed_dim) = CLIP[0];
    clip(patch, image, towers, text, embed_dim)
}

fn clip(patch: usize, image: usize, [dim, depth, heads, mlp_dim]: Size, text: Size, embed_dim: usize) -> Clip {
    let vit = Vit {
        image_size: [image; 2],
        patch_size: [patch; 2],
        classes: 0,
        dim,
        depth,
        heads,
        mlp_dim,
        pre_norm: true,
        final_norm: FinalNorm::AfterPooling,
        embedding: Some(Embedding::Projected(embed_dim)),
        norm_epsilon: 1e-5,
        ..Vit::default()
    };
    let [dim, depth, heads, mlp_dim] = text;
    let text = TextTower {
        vocabulary: 49408,
        context: 77,
        dim,
        depth,
        heads,
        mlp_dim,
        activation: Activation::Gelu,
        norm_epsilon: 1e-5,
        layer_scale: None,
        causal: true,
        pooling: TextPooling::HighestId,
        embed_dim,
        projection_bias: false,
    };
    Clip { image: vit, text, pairing: Pairing::Softmax }
}

fn siglip(patch: usize, image: usize, size: Size) -> Clip {
    let clip = with_activation(clip(patch, image, size, size, size[0]), Activation::GeluTanh);
    Clip {
        image: Vit {
            class_token: false,
            pooling: Pooling::Map,
            pre_norm: false,
            final_norm: FinalNorm::BeforePooling,
            embedding: Some(Embedding::Pooled),
            norm_epsilon: 1e-6,
            ..clip.image
        },
        text: TextTower {
            vocabulary: 32000,
            context: 64,
            norm_epsilon: 1e-6,
            causal: false,
            pooling: TextPooling::Last,
            projection_bias: true,
            ..clip.text
        },
        pairing: Pairing::Sigmoid,
    }
}

fn with_activation(clip: Clip, activation: Activation) -> Clip {
    let Clip { image, text, pairing } = clip;
    Clip { image: Vit { activation, ..image }, text: TextTower { activation, ..text }, pairing }
}
