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

/// The towers of one size: its name, the image tower, the text tower, the width of the embedding.
type Towers = (&'static str, Size, Size, usize);

/// S and larger are OpenCLIP's. P, which trains on a CPU, and Ti have the image towers of the models of these names.
const TOWERS: [Towers; 7] = [
    ("P", [64, 6, 2, 128], [64, 3, 2, 128], 64),
    ("Ti", [192, 12, 3, 768], [192, 6, 3, 768], 192),
    ("S", [384, 12, 6, 1536], [384, 12, 6, 1536], 384),
    ("B", BASE, [512, 12, 8, 2048], 512),
    ("L", LARGE, [768, 12, 12, 3072], 768),
    ("H", [1280, 32, 16, 5120], [1024, 24, 16, 4096], 1024),
    ("bigG", [1664, 48, 16, 8192], [1280, 32, 20, 5120], 1280),
];

/// The published CLIPs: size, patch and image size.
const CLIP: [(&str, usize, usize); 8] = [
    ("S", 32, 224),
    ("S", 16, 224),
    ("B", 32, 224),
    ("B", 16, 224),
    ("L", 14, 224),
    ("L", 14, 336),
    ("H", 14, 224),
    ("bigG", 14, 224),
];

/// The same of SigLIP, whose towers are of one size.
const SIGLIP: [(&str, usize, usize, Size); 4] = [
    ("ViT-B-16-SigLIP", 16, 224, BASE),
    ("ViT-B-16-SigLIP-256", 16, 256, BASE),
    ("ViT-L-16-SigLIP-256", 16, 256, LARGE),
    ("ViT-SO400M-14-SigLIP-384", 14, 384, [1152, 27, 16, 4304]),
];

/// The published image-text models; [`crate::variants`] are models of images alone.
pub fn variants() -> Vec<Variant> {
    let clip = CLIP.iter().map(|&(size, patch, image)| match image {
        224 => format!("ViT-{size}-{patch}"),
        _ => format!("ViT-{size}-{patch}-{image}"),
    });
    clip.chain(SIGLIP.iter().map(|row| row.0.to_string())).filter_map(|name| variant(&name)).collect()
}

/// The model of a name: a published one, or a CLIP of any patch and image size as in `ViT-Ti-4-32`. With `-quickgelu` after
/// it, the one of OpenAI's weights.
pub(super) fn variant(name: &str) -> Option<Variant> {
    let (base, quick) = name.strip_suffix("-quickgelu").map_or((name, false), |base| (base, true));
    let clip = of_size(base)
        .map(|clip| (if quick { with_activation(clip, Activation::QuickGelu) } else { clip }, preprocess()));
    let siglip = SIGLIP.iter().find(|row| row.0 == name).map(|&(_, patch, image, size)| {
        let squashed = Preprocess { crop_pct: 1.0, crop_mode: CropMode::Squash, ..Preprocess::inception() };
        (siglip(patch, image, size), squashed)
    });
    let (clip, preprocessing) = clip.or(siglip)?;
    let preprocessing = Preprocess { image_size: clip.image.image_size, ..preprocessing };
    Some(Variant {
        name: name.into(),
        paper_name: None,
        family: "Image and text",
        architecture: clip.into(),
        preprocessing,
    })
}

/// `ViT-SIZE-PATCH` or `ViT-SIZE-PATCH-IMAGE`.
fn of_size(name: &str) -> Option<Clip> {
    let mut parts = name.strip_prefix("ViT-")?.split('-');
    let size = parts.next()?;
    let mut extent = || parts.next().map(|extent| extent.parse().ok().filter(|&extent: &usize| extent > 0));
    let (patch, image) = (extent()??, extent());
    let image = image.map_or(Some(224), |image| image)?;
    let &(_, vision, text, embed_dim) = TOWERS.iter().find(|towers| towers.0 == size)?;
    parts.next().is_none().then(|| clip(patch, image, vision, text, embed_dim))
}

/// ViT-B-32, whose choices are OpenCLIP's usual ones.
pub(super) fn base_32() -> Clip {
    let (_, vision, text, embed_dim) = TOWERS[3];
    clip(32, 224, vision, text, embed_dim)
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
