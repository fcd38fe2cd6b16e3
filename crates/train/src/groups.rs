//! Which parameters are trained, which of them decay, and how fast each moves: all read off their names and shapes.

use serde::{Deserialize, Serialize};
use vit_graph::Shape;

/// Which parameters weight decay pulls towards zero.
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

/// Parameters that stand for tokens or positions, whatever their shape.
const TOKENS: [&str; 5] = ["cls_token", "dist_token", "reg_token", "latent", "gamma"];

impl DecayOn {
    /// Whether the parameter of this name and shape decays.
    pub fn includes(self, name: &str, shape: &Shape) -> bool {
        let last = name.rsplit('.').next().unwrap_or(name);
        let token = TOKENS.contains(&last) || last.starts_with("pos_embed") || last == "relative_position_bias_table";
        match self {
            DecayOn::Weights => shape.len() >= 2 && !token,
            DecayOn::Matrices => shape.len() >= 2,
            DecayOn::Everything => true,
        }
    }
}

/// Where a parameter stands between picture and answer, in timm's order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    Embedding,
    Block(Vec<usize>),
    Head,
}

/// The numbers of `blocks.3` or `layers.1.blocks.0`.
fn depth(name: &str) -> Option<Depth> {
    const STACKS: [&str; 3] = ["blocks", "layers", "stages"];
    if ["cls_token", "dist_token", "reg_token", "pos_embed", "patch_embed"].iter().any(|p| name.starts_with(p)) {
        return Some(Depth::Embedding);
    }
    let parts: Vec<&str> = name.split('.').collect();
    let mut numbers: Vec<usize> =
        parts.windows(2).filter(|pair| STACKS.contains(&pair[0])).filter_map(|pair| pair[1].parse().ok()).collect();
    match (numbers.len(), parts.contains(&"blocks")) {
        // What leads into a stage belongs to its first block.
        (1, false) => numbers.push(0),
        (0, _) if name.starts_with("norm") => return None,
        (0, _) => return Some(Depth::Head),
        _ => {}
    }
    Some(Depth::Block(numbers))
}

/// The layer of every parameter: 0 for patches, tokens and positions, then the blocks, and the head last. Norms outside
/// blocks belong to the last block, as in timm.
pub fn layers(names: &[&str]) -> Vec<usize> {
    let depths: Vec<Option<Depth>> = names.iter().map(|name| depth(name)).collect();
    let mut distinct: Vec<&Depth> = depths.iter().flatten().collect();
    distinct.sort();
    distinct.dedup();
    let last_block = distinct.iter().rposition(|d| **d != Depth::Head).unwrap_or(0);
    let layer = |d: &Option<Depth>| d.as_ref().and_then(|d| distinct.binary_search(&d).ok()).unwrap_or(last_block);
    depths.iter().map(layer).collect()
}

/// What each parameter's learning rate is multiplied by: `decay` once for every layer above it.
pub fn rate_factors(names: &[&str], decay: f32) -> Vec<f32> {
    let layers = layers(names);
    let top = layers.iter().copied().max().unwrap_or(0);
    layers.iter().map(|&layer| f64::from(decay).powi((top - layer) as i32) as f32).collect()
}

/// Parameters that are not trained: patterns of names in which `*` stands for anything and a leading `!` makes an
/// exception; the last that fits decides. `backbone` is everything but the head.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Freeze(pub Vec<String>);

impl Freeze {
    /// Whether a parameter is left as it is.
    pub fn includes(&self, name: &str) -> bool {
        self.0.iter().fold(false, |frozen, pattern| match pattern.strip_prefix('!') {
            Some(pattern) if fits(pattern, name) => false,
            None if pattern == "backbone" => !name.starts_with("head"),
            None if fits(pattern, name) => true,
            _ => frozen,
        })
    }
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name
            .strip_prefix(start)
            .is_some_and(|name| (0..=name.len()).any(|at| name.is_char_boundary(at) && fits(rest, &name[at..]))),
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
    fn decay_spares_what_the_policy_says() {
        let decays = |policy: DecayOn| {
            [
                ("blocks.0.attn.qkv.weight", Shape::from([3, 1])),
                ("blocks.0.attn.qkv.bias", Shape::from([3])),
                ("blocks.0.ls1.gamma", Shape::from([3])),
                ("cls_token", Shape::from([1, 1, 3])),
                ("pos_embed_row", Shape::from([1, 2, 1, 3])),
                ("blocks.0.attn.relative_position_bias_table", Shape::from([9, 2])),
                ("patch_embed.proj.weight", Shape::from([3, 3, 2, 2])),
            ]
            .map(|(name, shape)| policy.includes(name, &shape))
        };
        assert_eq!(decays(DecayOn::Weights), [true, false, false, false, false, false, true]);
        assert_eq!(decays(DecayOn::Matrices), [true, false, false, true, true, true, true]);
        assert_eq!(decays(DecayOn::Everything), [true; 7]);
    }

    #[test]
    fn the_last_pattern_that_fits_decides() {
        let freeze = |patterns: &[&str]| Freeze(patterns.iter().map(|p| p.to_string()).collect());
        assert!(!Freeze::default().includes("head.weight"));
        assert!(freeze(&["backbone"]).includes("blocks.0.attn.qkv.weight"));
        assert!(!freeze(&["backbone"]).includes("head.weight"));
        let exception = freeze(&["blocks.*", "!blocks.*.norm?.*", "!blocks.*.norm1.*"]);
        assert!(exception.includes("blocks.3.attn.qkv.weight"));
        assert!(!exception.includes("blocks.3.norm1.weight"));
        assert!(exception.includes("blocks.3.norm2.weight"));
        assert!(!exception.includes("pos_embed"));
        assert!(!freeze(&["blocks.1"]).includes("blocks.1.norm1.weight"));
    }
}
