//! The form of the tables of published models.

use crate::variant::Variant;
use crate::vit::Vit;
use vit_preprocess::{CropMode, Preprocess};

/// One published model.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub name: &'static str,
    pub size: Size,
    pub patch: usize,
    pub image: usize,
    /// Classes or, of CLIP, the width of its embedding; 0 where the published weights have no head.
    pub classes: usize,
    pub crop: Crop,
}

/// Width, depth, heads and width of the MLP.
#[derive(Clone, Copy)]
pub(super) struct Size(pub usize, pub usize, pub usize, pub usize);

/// How an image is cropped: a part of it, or the part of the squashed image.
#[derive(Clone, Copy)]
pub(super) enum Crop {
    Center(f64),
    Squash(f64),
}

pub(super) const TINY: Size = Size(192, 12, 3, 768);
pub(super) const SMALL: Size = Size(384, 12, 6, 1536);
pub(super) const MEDIUM: Size = Size(512, 12, 8, 2048);
pub(super) const BETWIXT: Size = Size(640, 12, 10, 2560);
pub(super) const BASE: Size = Size(768, 12, 12, 3072);
pub(super) const BASE_PLUS: Size = Size(896, 12, 14, 3584);
pub(super) const LARGE: Size = Size(1024, 24, 16, 4096);
/// "Shape-optimised", with 400 million parameters (Alabdulmohsin et al., 2023).
pub(super) const SO400M: Size = Size(1152, 27, 16, 4304);
pub(super) const HUGE: Size = Size(1280, 32, 16, 5120);
pub(super) const GIANT: Size = Size(1408, 40, 16, 6144);
pub(super) const GIGANTIC: Size = Size(1664, 48, 16, 8192);

pub(super) const fn row(name: &'static str, size: Size, patch: usize, image: usize, classes: usize, crop: Crop) -> Row {
    Row { name, size, patch, image, classes, crop }
}

/// The central part of the image.
pub(super) const fn center(crop_pct: f64) -> Crop {
    Crop::Center(crop_pct)
}

/// The central part of the squashed image.
pub(super) const fn squash(crop_pct: f64) -> Crop {
    Crop::Squash(crop_pct)
}

impl Row {
    /// The model, which `change` makes from the paper's one of this size.
    pub fn variant(self, family: &'static str, usual: Preprocess, change: impl Fn(Vit) -> Vit) -> Variant {
        let Size(dim, depth, heads, mlp_dim) = self.size;
        let vit = Vit {
            image_size: [self.image; 2],
            patch_size: [self.patch; 2],
            classes: self.classes,
            dim,
            depth,
            heads,
            mlp_dim,
            ..Vit::default()
        };
        let (crop_mode, crop_pct) = match self.crop {
            Crop::Center(crop_pct) => (CropMode::Center, crop_pct),
            Crop::Squash(crop_pct) => (CropMode::Squash, crop_pct),
        };
        Variant {
            name: self.name.into(),
            paper_name: None,
            family,
            architecture: change(vit).into(),
            preprocessing: Preprocess { image_size: [self.image; 2], crop_pct, crop_mode, ..usual },
        }
    }
}

/// The models of a table.
pub(super) fn published(
    rows: &[Row],
    family: &'static str,
    usual: Preprocess,
    change: impl Fn(Vit) -> Vit,
) -> Vec<Variant> {
    rows.iter().map(|row| row.variant(family, usual.clone(), &change)).collect()
}
