//! Parameter groups, decided by names and shapes: which parameters are frozen, which have weight decay, and the factor of
//! each one's learning rate.

use serde::{Deserialize, Serialize};
use vit_graph::Shape;

/// The parameters with weight decay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecayOn {
    /// Matrices and filters; not norms, biases, tokens, positions and layer scale.
    #[default]
    Weights,
    /// Every parameter with two axes or more, so tokens and positions too.
    Matrices,
    /// Every parameter, as in the ViT paper.
    Everything,
}

/// Last components of the names of tokens, of layer scale, and of the factors of cosine attention.
const TOKENS: [&str; 6] = ["cls_token", "dist_token", "reg_token", "latent", "gamma", "logit_scale"];

impl DecayOn {
    /// Whether the parameter of this name and shape has weight decay.
    pub fn includes(self, name: &str, shape: &Shape) -> bool {
        let last = name.rsplit('.').next().unwrap_or(name);
        let relative = last == "relative_position_bias_table" || name.contains(".cpb_mlp.");
        let token = TOKENS.contains(&last) || last.starts_with("pos_embed") || relative;
        match self {
            DecayOn::Weights => shape.len() >= 2 && !token,
            DecayOn::Matrices => shape.len() >= 2,
            DecayOn::Everything => true,
        }
    }
}

/// The depth of a parameter's layer, in timm's order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    Embedding,
    Block(Vec<usize>),
    Head,
}

/// Names before the first block: tokens and positions, or the stem of a convolutional network.
const EMBEDDING: [&str; 10] = [
    "cls_token",
    "dist_token",
    "reg_token",
    "pos_embed",
    "shared_rel_pos",
    "patch_embed",
    "stem.",
    "conv_stem.",
    "conv1.",
    "bn1.",
];

/// Names after the last block that belong to it, as in timm; CLIP's `norm_pre` does, too.
const LAST: [&str; 3] = ["norm", "conv_head.", "bn2."];

/// LeNet's layers between its first and its last.
const LENET: [&str; 3] = ["conv2.", "fc1.", "fc2."];

/// The numbers of `blocks.3`, `layers.1.blocks.0`, `blocks.2.0` (EfficientNet) or `layer1.0` (ResNet).
fn depth(name: &str) -> Option<Depth> {
    const STACKS: [&str; 3] = ["blocks", "layers", "stages"];
    if EMBEDDING.iter().any(|start| name.starts_with(start)) {
        return Some(Depth::Embedding);
    }
    if let Some(layer) = LENET.iter().position(|start| name.starts_with(start)) {
        return Some(Depth::Block(vec![layer]));
    }
    let parts: Vec<&str> = name.split('.').collect();
    let number = |text: &str| text.parse::<usize>().ok();
    let stage = if parts[0] == "blocks" { parts.get(1).copied() } else { parts[0].strip_prefix("layer") };
    let block = if parts[0] == "blocks" { parts.get(2) } else { parts.get(1) };
    if let (Some(stage), Some(block)) = (stage.and_then(number), block.and_then(|text| number(text))) {
        return Some(Depth::Block(vec![stage, block]));
    }
    let mut numbers: Vec<usize> =
        parts.windows(2).filter(|pair| STACKS.contains(&pair[0])).filter_map(|pair| pair[1].parse().ok()).collect();
    match (numbers.len(), parts.contains(&"blocks")) {
        // The downsampling before a stage belongs to its first block.
        (1, false) => numbers.push(0),
        (0, _) if LAST.iter().any(|start| name.starts_with(start)) => return None,
        (0, _) => return Some(Depth::Head),
        _ => {}
    }
    Some(Depth::Block(numbers))
}

/// The layer of every parameter: 0 for the embedding, then the blocks, and the head last. Norms outside of blocks belong to
/// the last block, as in timm.
pub fn layers(names: &[&str]) -> Vec<usize> {
    let depths: Vec<Option<Depth>> = names.iter().map(|name| depth(name)).collect();
    let mut distinct: Vec<&Depth> = depths.iter().flatten().collect();
    distinct.sort();
    distinct.dedup();
    let last_block = distinct.iter().rposition(|d| **d != Depth::Head).unwrap_or(0);
    let layer = |d: &Option<Depth>| d.as_ref().and_then(|d| distinct.binary_search(&d).ok()).unwrap_or(last_block);
    depths.iter().map(layer).collect()
}

/// The factor of each parameter's learning rate: `decay` to the power of the number of layers above it.
pub fn rate_factors(names: &[&str], decay: f32) -> Vec<f32> {
    let layers = layers(names);
    let top = layers.iter().copied().max().unwrap_or(0);
    layers.iter().map(|&layer| f64::from(decay).powi((top - layer) as i32) as f32).collect()
}

/// Parameters that are not trained: patterns of names in which `*` stands for anything and a leading `!` makes an
/// exception; the last match decides. `backbone` is everything but the head, `first 6 blocks` the blocks nearest to
/// the image and all that comes before them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Freeze(pub Vec<String>);

impl Freeze {
    /// Whether each parameter of a model, with these layers as its heads, is frozen.
    pub fn includes(&self, heads: &[&str], names: &[&str]) -> Vec<bool> {
        let mut frozen = vec![false; names.len()];
        for pattern in &self.0 {
            let (pattern, freezes) = pattern.strip_prefix('!').map_or((pattern.as_str(), true), |rest| (rest, false));
            for (frozen, matches) in frozen.iter_mut().zip(matching(pattern, heads, names)) {
                *frozen = if matches { freezes } else { *frozen };
            }
        }
        frozen
    }

    /// The patterns that match no parameter of a model, with the reason.
    pub fn unmatched(&self, heads: &[&str], names: &[&str]) -> Vec<(&str, String)> {
        let blocks = blocks(names).len();
        let reason = |given: &String| {
            let pattern = given.strip_prefix('!').unwrap_or(given);
            match first_blocks(pattern) {
                Some(count) => (count > blocks).then(|| format!("it has {blocks} blocks")),
                None if matching(pattern, heads, names).contains(&true) => None,
                None => Some("none of its parameters has such a name".to_string()),
            }
        };
        self.0.iter().filter_map(|given| Some((given.as_str(), reason(given)?))).collect()
    }
}

/// The number in `first 6 blocks`.
fn first_blocks(pattern: &str) -> Option<usize> {
    let rest = pattern.strip_prefix("first ")?;
    rest.strip_suffix(" blocks").or(rest.strip_suffix(" block"))?.parse().ok()
}

/// The blocks of a model in order.
fn blocks(names: &[&str]) -> Vec<Depth> {
    let mut blocks: Vec<Depth> =
        names.iter().filter_map(|name| depth(name)).filter(|depth| matches!(depth, Depth::Block(_))).collect();
    blocks.sort();
    blocks.dedup();
    blocks
}

/// Whether each parameter matches a pattern.
fn matching(pattern: &str, heads: &[&str], names: &[&str]) -> Vec<bool> {
    if pattern == "backbone" {
        let layer = |name: &str| name.rsplit_once('.').map_or("", |(layer, _)| layer).to_string();
        return names.iter().map(|name| !name.starts_with("head") && !heads.contains(&layer(name).as_str())).collect();
    }
    if let Some(count) = first_blocks(pattern) {
        let first = blocks(names).into_iter().take(count).next_back();
        let before = |name: &str| match depth(name) {
            Some(Depth::Head) => false,
            Some(depth) => depth == Depth::Embedding || Some(&depth) <= first.as_ref(),
            None => name.starts_with("norm_pre."),
        };
        return names.iter().map(|name| before(name)).collect();
    }
    names.iter().map(|name| matches_glob(pattern, name)).collect()
}

fn matches_glob(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            (0..=name.len()).any(|at| name.is_char_boundary(at) && matches_glob(rest, &name[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_timms() {
        let names = [
            "cls_token",
            "reg_token",
            "pos_embed",
            "patch_embed.proj.weight",
            "norm_pre.weight",
            "blocks.0.norm1.weight",
            "blocks.1.attn.qkv.weight",
            "blocks.10.mlp.fc1.bias",
            "norm.weight",
            "fc_norm.weight",
            "attn_pool.latent",
            "head.weight",
            "head_dist.bias",
        ];
        assert_eq!(layers(&names), [0, 0, 0, 0, 3, 1, 2, 3, 3, 4, 4, 4, 4]);
        let swin = [
            "patch_embed.proj.weight",
            "layers.0.blocks.0.norm1.weight",
            "layers.0.blocks.1.norm1.weight",
            "layers.1.downsample.norm.weight",
            "layers.1.blocks.0.norm1.weight",
            "norm.weight",
            "head.fc.weight",
        ];
        assert_eq!(layers(&swin), [0, 1, 2, 3, 3, 3, 4]);
        assert_eq!(rate_factors(&swin, 0.5), [0.0625, 0.125, 0.25, 0.5, 0.5, 0.5, 1.0]);
    }

    #[test]
    fn weight_decay_follows_the_policy() {
        let decays = |policy: DecayOn| {
            [
                ("blocks.0.attn.qkv.weight", Shape::from([3, 1])),
                ("blocks.0.attn.qkv.bias", Shape::from([3])),
                ("blocks.0.ls1.gamma", Shape::from([3])),
                ("cls_token", Shape::from([1, 1, 3])),
                ("pos_embed_row", Shape::from([1, 2, 1, 3])),
                ("blocks.0.attn.relative_position_bias_table", Shape::from([9, 2])),
                // As in Swin V2's own code.
                ("layers.0.blocks.0.attn.cpb_mlp.0.weight", Shape::from([5, 2])),
                ("layers.0.blocks.0.attn.logit_scale", Shape::from([2, 1, 1])),
                ("patch_embed.proj.weight", Shape::from([3, 3, 2, 2])),
            ]
            .map(|(name, shape)| policy.includes(name, &shape))
        };
        assert_eq!(decays(DecayOn::Weights), [true, false, false, false, false, false, false, false, true]);
        assert_eq!(decays(DecayOn::Matrices), [true, false, false, true, true, true, true, true, true]);
        assert_eq!(decays(DecayOn::Everything), [true; 9]);
    }

    #[test]
    fn layers_of_convolutional_networks_are_timms() {
        let resnet = [
            "conv1.weight",
            "bn1.bias",
            "layer1.0.conv1.weight",
            "layer1.1.bn2.weight",
            "layer2.0.downsample.0.weight",
        ];
        assert_eq!(layers(&[&resnet[..], &["fc.weight"]].concat()), [0, 0, 1, 2, 3, 4]);
        let efficientnet = ["conv_stem.weight", "bn1.bias", "blocks.0.0.conv_dw.weight", "blocks.1.0.bn1.weight"];
        let top = ["blocks.1.1.se.conv_reduce.bias", "conv_head.weight", "bn2.weight", "classifier.weight"];
        assert_eq!(layers(&[&efficientnet[..], &top].concat()), [0, 0, 1, 2, 3, 3, 3, 4]);
        let coatnet = ["stem.conv1.weight", "stages.0.blocks.0.conv1_1x1.weight", "stages.1.blocks.0.norm1.weight"];
        assert_eq!(layers(&[&coatnet[..], &["head.norm.weight", "head.fc.weight"]].concat()), [0, 1, 2, 3, 3]);
        assert_eq!(layers(&["conv1.weight", "conv2.weight", "fc1.bias", "fc2.bias", "fc3.bias"]), [0, 1, 2, 3, 4]);
    }

    const VIT: [&str; 8] = [
        "cls_token",
        "pos_embed",
        "patch_embed.proj.weight",
        "blocks.1.attn.qkv.weight",
        "blocks.3.norm1.weight",
        "blocks.3.norm2.weight",
        "norm.weight",
        "head.weight",
    ];

    fn frozen(patterns: &[&str]) -> Vec<&'static str> {
        let freeze = Freeze(patterns.iter().map(|p| p.to_string()).collect());
        VIT.into_iter().zip(freeze.includes(&["head"], &VIT)).filter(|(_, frozen)| *frozen).map(|(n, _)| n).collect()
    }

    #[test]
    fn the_last_matching_pattern_decides() {
        assert!(frozen(&[]).is_empty());
        assert_eq!(frozen(&["backbone"]), VIT[..7]);
        assert_eq!(frozen(&["blocks.*", "!blocks.*.norm?.*", "!blocks.*.norm1.*"]), [VIT[3], VIT[5]]);
        assert!(frozen(&["blocks.1"]).is_empty());
        assert_eq!(frozen(&["first 1 block"]), VIT[..4]);
        assert_eq!(frozen(&["first 2 blocks", "!cls_token"]), VIT[1..6]);
        let resnet = ["conv1.weight", "layer1.0.conv1.weight", "fc.weight"];
        let freeze = |pattern: &str| Freeze(vec![pattern.into()]).includes(&["fc"], &resnet);
        assert_eq!(freeze("backbone"), [true, true, false]);
        assert_eq!(freeze("first 1 blocks"), [true, true, false]);
    }

    #[test]
    fn patterns_without_a_match_and_missing_blocks_are_found() {
        let reason =
            |pattern: &str| Freeze(vec![pattern.into()]).unmatched(&["head"], &VIT).pop().map(|(_, what)| what);
        for matching in ["backbone", "first 2 blocks", "*.norm1.*", "!head.*"] {
            assert_eq!(reason(matching), None, "{matching}");
        }
        assert!(reason("first 99 blocks").unwrap().contains("2 blocks"));
        assert!(reason("block.0.*").is_some());
    }
}
