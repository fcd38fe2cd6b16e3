//! The named models of all architectures.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::architecture::Architecture;
use crate::clip::{self, Clip};
use crate::config::Config;
use crate::problem_type::ProblemType;
use crate::registry::registered;
use vit_preprocess::Preprocess;

/// A model by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Variant {
    /// timm's name.
    pub name: String,
    /// The paper's name, where it has one: `B/16`, `L/16@384`.
    pub paper_name: Option<String>,
    /// The group it is listed in.
    pub family: &'static str,
    /// The model.
    pub architecture: Architecture,
    /// The preprocessing of its published weights.
    pub preprocessing: Preprocess,
}

/// Licences of published weights by name, which `bench/timm_reference.py` writes.
static LICENCES: LazyLock<HashMap<&str, &str>> =
    LazyLock::new(|| include_str!("licences.csv").lines().skip(1).filter_map(|line| line.split_once(',')).collect());

impl Variant {
    /// The licence of the published weights, as the hub names it; `None` where there are none. Where several sets of weights
    /// were published, it is that of timm's choice.
    pub fn licence(&self) -> Option<&'static str> {
        LICENCES.get(self.name.as_str()).copied()
    }

    /// The head of the published weights: classes, an embedding that texts are compared with, or none.
    pub fn head(&self) -> String {
        if let Some(clip) = self.architecture.downcast_ref::<Clip>() {
            return format!("embedding of {}", clip.text.embed_dim);
        }
        match self.architecture.classes() {
            0 => "none".into(),
            width if width != 1000 && ["clip", "_mci_", "_pe_"].iter().any(|part| self.name.contains(part)) => {
                format!("embedding of {width}")
            }
            classes => format!("{classes} classes"),
        }
    }
}

impl From<Variant> for Config {
    fn from(Variant { name, architecture, preprocessing, .. }: Variant) -> Config {
        let preprocessing = Preprocess { image_size: architecture.image_size(), ..preprocessing };
        let (labels, problem_type) = (Vec::new(), ProblemType::default());
        Config { name: Some(name), architecture, preprocessing, labels, problem_type }
    }
}

/// All published models of images; those of images and texts are [`clip::variants`].
pub fn variants() -> Vec<Variant> {
    registered().into_iter().flat_map(|architecture| (architecture.variants)()).collect()
}

/// The variant of a name; a tag after a dot, as in `vit_base_patch16_224.augreg_in21k`, says which weights and is
/// ignored here.
pub fn variant(name: &str) -> Option<Variant> {
    let name = ["hf-hub:", "hf_hub:"].iter().find_map(|scheme| name.strip_prefix(scheme)).unwrap_or(name);
    let name = name.rsplit_once("timm/").map_or(name, |(_, name)| name);
    let find = |name: &str| {
        let published = variants().into_iter().find(|v| v.name == name || v.paper_name.as_deref() == Some(name));
        published.or_else(|| registered().into_iter().find_map(|architecture| (architecture.variant)(name)))
    };
    find(name).or_else(|| find(name.split('.').next()?))
}

/// The known names nearest to one that is not known.
pub fn suggestions(name: &str) -> Vec<String> {
    let all = variants().into_iter().chain(clip::variants());
    let mut scored: Vec<(usize, String)> = all.map(|v| (distance(name, &v.name), v.name)).collect();
    scored.sort();
    scored.into_iter().filter(|(d, n)| *d <= n.len() / 2).take(3).map(|(_, name)| name).collect()
}

/// Levenshtein's edit distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_forms_are_found() {
        for name in [
            "vit_base_patch16_224",
            "B/16",
            "ViT-B/16",
            "vit_base_patch16_224.augreg_in21k_ft_in1k",
            "timm/vit_base_patch16_224.x",
        ] {
            assert_eq!(variant(name).map(|v| v.name).as_deref(), Some("vit_base_patch16_224"), "{name}");
        }
        assert_eq!(variant("H/14").unwrap().name, "vit_huge_patch14_224");
        assert_eq!(variant("Ti/4@32").unwrap().name, "vit_tiny_patch4_32");
        assert!(variant("vit_base_patch0_224").is_none());
        // The stem of a "D" form is not the one that small images replace.
        assert!(variant("resnet18_cifar").is_some() && variant("resnet18d_cifar").is_none());
        assert_eq!(suggestions("vit_bse_patch16_224")[0], "vit_base_patch16_224");
    }
}
