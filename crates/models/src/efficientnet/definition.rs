//! Stages in the notation of the mobile networks' papers and of timm: `ir_r2_k3_s2_e6_c24_se0.25` is two inverted
//! residual blocks with 3x3 filters, stride 2, expansion 6, 24 channels and squeeze-excitation of a quarter.

use vit_graph::ops::Activation;

use super::{MobileBlock, MobileBlockKind};
use crate::layers::round_width;

/// Compound scaling: factors of all widths and depths.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct Scaling {
    pub width: f64,
    pub depth: f64,
}

impl Scaling {
    /// No scaling.
    pub const NONE: Scaling = Scaling { width: 1.0, depth: 1.0 };

    /// A width after scaling.
    pub fn width(&self, width: usize) -> usize {
        round_width(width as f64 * self.width)
    }
}

/// The blocks of every stage, or what is wrong with a definition.
pub fn parse_stages(stages: &[Vec<String>], scaling: Scaling) -> Result<Vec<Vec<MobileBlock>>, String> {
    stages.iter().map(|definitions| stage(definitions, scaling)).collect()
}

fn stage(definitions: &[String], scaling: Scaling) -> Result<Vec<MobileBlock>, String> {
    let parsed: Vec<(MobileBlock, usize)> = definitions.iter().map(|d| block(d, scaling)).collect::<Result<_, _>>()?;
    let mut left: usize = parsed.iter().map(|(_, repeats)| repeats).sum();
    let mut scaled = (left as f64 * scaling.depth).ceil() as usize;
    // As in timm, the stage is scaled as a whole and definitions get their share from the last to the first.
    let mut blocks: Vec<Vec<MobileBlock>> = Vec::new();
    for (block, repeats) in parsed.iter().rev() {
        let share = (*repeats as f64 / left as f64 * scaled as f64).round_ties_even().max(1.0) as usize;
        if share > 1 << 10 {
            return Err(format!("{share} blocks in one stage are too many"));
        }
        blocks.push(vec![*block; share]);
        left -= repeats;
        scaled = scaled.saturating_sub(share);
    }
    Ok(blocks.into_iter().rev().flatten().collect())
}

fn block(definition: &str, scaling: Scaling) -> Result<(MobileBlock, usize), String> {
    let wrong = |what: &str| format!("the block `{definition}`: {what}");
    let mut parts = definition.split('_');
    let name = parts.next().unwrap_or_default();
    let (kind, own_skip) = match name {
        "ds" => (MobileBlockKind::Separable { active: false }, true),
        "dsa" => (MobileBlockKind::Separable { active: true }, false),
        "ir" => (MobileBlockKind::Inverted, true),
        "er" => (MobileBlockKind::Fused, true),
        "cn" => (MobileBlockKind::Plain, false),
        other => return Err(wrong(&format!("`{other}` is none of ds, dsa, ir, er and cn"))),
    };
    let mut block = MobileBlock {
        kind,
        kernel: 0,
        expand_kernel: 1,
        project_kernel: 1,
        stride: 0,
        expansion: 1.0,
        width: 0,
        expand_from: None,
        squeeze: 0.0,
        group_size: if matches!(kind, MobileBlockKind::Separable { .. } | MobileBlockKind::Inverted) { 1 } else { 0 },
        skip: own_skip,
        activation: None,
    };
    let mut repeats = 0;
    for part in parts {
        let split = part.find(|c: char| c.is_ascii_digit()).unwrap_or(part.len());
        let (key, value) = part.split_at(split);
        let count = || value.parse::<usize>().map_err(|_| wrong(&format!("`{part}` has no whole number")));
        let number = || value.parse::<f64>().map_err(|_| wrong(&format!("`{part}` has no number")));
        match (key, part) {
            (_, "noskip") => block.skip = false,
            (_, "skip") => block.skip = !matches!(kind, MobileBlockKind::Separable { active: true }),
            (_, "nre") => block.activation = Some(Activation::Relu),
            (_, "nsw") => block.activation = Some(Activation::Silu),
            (_, "nr6" | "nhs" | "nmi") => return Err(wrong("its activation cannot be used here yet")),
            ("r", _) => repeats = count()?,
            ("k", _) => block.kernel = count()?,
            ("s", _) => block.stride = count()?,
            ("e", _) => block.expansion = number()?,
            ("c", _) => block.width = scaling.width(count()?),
            ("se", _) => block.squeeze = number()?,
            ("a", _) => block.expand_kernel = count()?,
            ("p", _) => block.project_kernel = count()?,
            ("fc", _) => block.expand_from = Some(count()?).filter(|&n| n > 0).map(|n| scaling.width(n)),
            ("gs", _) => block.group_size = count()?,
            _ => return Err(wrong(&format!("`{part}` cannot be used here yet"))),
        }
    }
    if repeats == 0 || block.kernel == 0 || block.stride == 0 || block.width == 0 {
        return Err(wrong("it needs repeats (r), kernel (k), stride (s) and channels (c)"));
    }
    if repeats > 1 << 10 {
        return Err(wrong("more than 1024 repeats are too many"));
    }
    if let MobileBlockKind::Separable { .. } | MobileBlockKind::Plain = kind {
        block.expansion = 1.0;
    }
    if kind == MobileBlockKind::Plain {
        block.squeeze = 0.0;
    }
    Ok((block, repeats))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_scaled_as_a_whole() {
        let stages = [vec!["ir_r2_k3_s2_e6_c24_se0.25".to_string()], vec!["er_r1_k3_s1_e4_c48_noskip".to_string()]];
        let plain = parse_stages(&stages, Scaling::NONE).unwrap();
        assert_eq!((plain[0].len(), plain[0][0].width, plain[0][0].squeeze), (2, 24, 0.25));
        assert_eq!((plain[1][0].kind, plain[1][0].skip, plain[1][0].group_size), (MobileBlockKind::Fused, false, 0));
        // B7 of the paper: 3.1 times deeper, twice as wide.
        let scaled = parse_stages(&stages, Scaling { width: 2.0, depth: 3.1 }).unwrap();
        assert_eq!((scaled[0].len(), scaled[0][0].width, scaled[1].len()), (7, 48, 4));
    }

    #[test]
    fn unknown_parts_of_a_definition_are_named() {
        let error = |text: &str| parse_stages(&[vec![text.to_string()]], Scaling::NONE).unwrap_err();
        assert!(error("mha_r1_k3_s1_c16").contains("`mha`"));
        assert!(error("ir_r1_k3_s1_e1_c16_cc4").contains("`cc4`"));
        assert!(error("ir_r1_s1_e1_c16").contains("kernel"));
        assert!(error("ir_r1_kx_s1_e1_c16").contains("`kx`"));
    }
}
