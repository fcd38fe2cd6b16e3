//! Image processors: `preprocessor_config.json` in and out. Resizing is Pillow's, as published weights were evaluated; it is
//! torchvision's where the file names a class of that backend (`…Fast`, DINOv3's) or says `use_fast`.

use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::config::timm::short;
use crate::vit::Vit;
use vit_preprocess::{CropMode, CropRule, Filter, Preprocess, Resizer};

/// The key of a crop's rule that is not transformers', which ignores it.
const OWN: &str = "vit";

/// The usual scale of bytes.
const TO_UNIT: f64 = 1.0 / 255.0;

/// CLIP's normalisation.
const CLIP: ([f32; 3], [f32; 3]) =
    ([0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_6, 0.275_777_1]);

/// How ViT's published weights take images: without regard to the aspect ratio.
pub(super) fn vit() -> Preprocess {
    Preprocess {
        crop_pct: 1.0,
        crop_mode: CropMode::Squash,
        crop_rule: CropRule::Transformers,
        interpolation: Filter::Bilinear,
        ..Preprocess::inception()
    }
}

pub(super) fn vit_imagenet() -> Preprocess {
    let Preprocess { mean, std, .. } = Preprocess::imagenet();
    Preprocess { mean, std, interpolation: Filter::Bicubic, ..vit() }
}

pub(super) fn dinov3() -> Preprocess {
    Preprocess { interpolation: Filter::Bilinear, resizer: Resizer::TorchvisionFloats, ..vit_imagenet() }
}

pub(super) fn deit() -> Preprocess {
    Preprocess { crop_pct: 0.875, ..vit_imagenet() }
}

pub(super) fn siglip() -> Preprocess {
    Preprocess { interpolation: Filter::Bicubic, ..vit() }
}

pub(super) fn clip() -> Preprocess {
    Preprocess { mean: CLIP.0.to_vec(), std: CLIP.1.to_vec(), ..bit() }
}

pub(super) fn bit() -> Preprocess {
    Preprocess { crop_mode: CropMode::Center, ..vit_imagenet() }
}

pub(super) fn convnext() -> Preprocess {
    Preprocess { crop_pct: 0.875, ..bit() }
}

pub(super) fn efficientnet() -> Preprocess {
    vit_imagenet()
}

/// The classes of image processors, by the beginning of their names: what they do where the file is silent.
struct ProcessorClass {
    name: &'static str,
    /// `size` as one number is the shorter side; otherwise both.
    by_shorter_side: bool,
    crops: bool,
    /// `size` is the result's, and `crop_pct` gives the size before the crop.
    crop_pct: bool,
    resample: u64,
    /// Images are normalised by the standard deviation twice.
    twice: bool,
}

const fn class(name: &'static str, by_shorter_side: bool, crops: bool, resample: u64) -> ProcessorClass {
    ProcessorClass { name, by_shorter_side, crops, crop_pct: false, resample, twice: false }
}

const CLASSES: [ProcessorClass; 9] = [
    class("ViT", false, false, 2),
    class("DeiT", false, true, 3),
    class("Beit", false, false, 3),
    class("CLIP", true, true, 3),
    class("Bit", true, true, 3),
    class("Siglip", true, false, 3),
    class("DINOv3ViT", false, false, 2),
    ProcessorClass { crop_pct: true, ..class("ConvNext", true, false, 3) },
    ProcessorClass { twice: true, ..class("EfficientNet", false, false, 3) },
];

/// Where a size comes from.
#[derive(Clone, Copy)]
enum Size {
    Both([usize; 2]),
    ShorterSide(usize),
}

/// Reads `size` or `crop_size`.
fn size(map: &Map<String, Value>, name: &str, by_shorter_side: bool) -> Result<Option<Size>, String> {
    let Some(value) = map.get(name).filter(|value| !value.is_null()) else { return Ok(None) };
    let wrong = || {
        format!(
            "the image processor's `{name}` should have height and width, or shortest_edge, or be a number, not {value}"
        )
    };
    let side = |value: Option<&Value>| value.and_then(Value::as_u64).filter(|&n| n > 0).map(|n| n as usize);
    let edges = (side(value.get("height")), side(value.get("width")), side(value.get("shortest_edge")));
    let pair = value.as_array().and_then(|pair| match &pair[..] {
        [height, width] => side(Some(height)).zip(side(Some(width))),
        _ => None,
    });
    Ok(Some(match (edges, side(Some(value)), pair) {
        ((Some(height), Some(width), _), ..) | (_, _, Some((height, width))) => Size::Both([height, width]),
        ((_, _, Some(shortest)), ..) if value.get("longest_edge").is_none_or(Value::is_null) => {
            Size::ShorterSide(shortest)
        }
        (_, Some(one), _) if by_shorter_side => Size::ShorterSide(one),
        (_, Some(one), _) => Size::Both([one; 2]),
        _ => return Err(wrong()),
    }))
}

/// The preprocessing of a `preprocessor_config.json`. Unless the model takes `any_size`, its image size is kept, and only
/// the share of a crop is the file's.
pub(super) fn parse(map: &Map<String, Value>, usual: &Preprocess, any_size: bool) -> Result<Preprocess, String> {
    let named = ["image_processor_type", "feature_extractor_type"].iter().find_map(|key| map.get(*key)?.as_str());
    let begins = |name: &str| named.is_some_and(|named| named.to_lowercase().starts_with(&name.to_lowercase()));
    let kind = CLASSES.iter().find(|class| begins(class.name));
    let use_fast = map.get("use_fast").and_then(Value::as_bool) == Some(true);
    let fast = use_fast || named.is_some_and(|named| named.ends_with("Fast"));
    let flag = |name: &str| map.get(name).and_then(Value::as_bool);
    let by_shorter_side = kind.map_or(usual.crop_mode == CropMode::Center, |kind| kind.by_shorter_side);
    let resized = size(map, "size", by_shorter_side)?;
    let crop = match size(map, "crop_size", false)? {
        Some(Size::Both(crop)) => Some(crop),
        Some(Size::ShorterSide(side)) => Some([side; 2]),
        None => None,
    };
    let crops = flag("do_center_crop").unwrap_or(kind.map_or(crop.is_some(), |kind| kind.crops));
    let crop = crop.or(crops.then_some(usual.image_size)).filter(|_| crops);
    let by_fraction = kind.is_some_and(|kind| kind.crop_pct) || (kind.is_none() && map.contains_key("crop_pct"));

    let resizer = match kind {
        // It rescales before it resizes.
        Some(ProcessorClass { name: "DINOv3ViT", .. }) => Resizer::TorchvisionFloats,
        _ if fast => Resizer::Torchvision,
        _ => Resizer::Pillow,
    };
    let rule = map.get(OWN).and_then(|own| own.get("crop_rule")?.as_str()?.parse().ok());
    let crop_rule = rule.unwrap_or(CropRule::Transformers);
    let mut found = Preprocess { crop_rule, resizer, ..usual.clone() };
    if flag("do_resize") == Some(false) {
        found.crop_mode = if crops { CropMode::Unscaled } else { CropMode::Squash };
        found.crop_pct = 1.0;
        set_size(&mut found, crop, any_size);
    } else {
        match (resized, crop) {
            (None, None) => {}
            (None, Some(crop)) => set_size(&mut found, Some(crop), any_size),
            (Some(Size::ShorterSide(side)), _) if by_fraction => {
                let fraction = map.get("crop_pct").and_then(Value::as_f64).unwrap_or(224.0 / 256.0);
                // ConvNeXt's rule: larger images are not cropped.
                (found.crop_mode, found.crop_pct) =
                    if side < 384 { (CropMode::Center, fraction) } else { (CropMode::Squash, 1.0) };
                set_size(&mut found, Some([side; 2]), any_size);
            }
            (Some(Size::ShorterSide(side)), crop) => {
                found.crop_mode = CropMode::Center;
                set_size(&mut found, crop, any_size);
                let target = crop.unwrap_or(found.image_size);
                found.crop_pct = share(target[0].min(target[1]) as f64, side as f64);
            }
            (Some(Size::Both(size)), None) => {
                (found.crop_mode, found.crop_pct) = (CropMode::Squash, 1.0);
                set_size(&mut found, Some(size), any_size);
            }
            (Some(Size::Both(size)), Some(crop)) => {
                (found.crop_mode, found.crop_pct) = (CropMode::Squash, share(crop[0] as f64, size[0] as f64));
                if (crop[1] as f64 / found.crop_pct).floor() as usize != size[1] {
                    return Err(format!(
                        "the image processor resizes to {}x{} and crops {}x{}; only one share for both sides is possible here",
                        size[0], size[1], crop[0], crop[1]
                    ));
                }
                set_size(&mut found, Some(crop), any_size);
            }
        }
    }
    found.interpolation = match map.get("resample").and_then(Value::as_u64).or(kind.map(|kind| kind.resample)) {
        Some(0) => Filter::Nearest,
        Some(1) => Filter::Lanczos,
        Some(2) => Filter::Bilinear,
        Some(3) => Filter::Bicubic,
        Some(4) => Filter::Box,
        Some(5) => Filter::Hamming,
        Some(other) => return Err(format!("the image processor's `resample` should be 0 to 5, not {other}")),
        None => usual.interpolation,
    };
    (found.mean, found.std) = normalisation(map, usual, kind)?;
    Ok(found)
}

/// Sets the result's size, if the model takes any.
fn set_size(preprocess: &mut Preprocess, size: Option<[usize; 2]>, any_size: bool) {
    if let Some(size) = size.filter(|_| any_size) {
        preprocess.image_size = size;
    }
}

/// Mean and standard deviation of values in 0..1 that express `do_rescale`, `do_normalize` and the like.
fn normalisation(
    map: &Map<String, Value>,
    usual: &Preprocess,
    kind: Option<&ProcessorClass>,
) -> Result<(Vec<f32>, Vec<f32>), String> {
    let flag = |name: &str| map.get(name).and_then(Value::as_bool);
    let floats = |name: &str, usual: &[f32]| -> Result<Vec<f64>, String> {
        match map.get(name) {
            None | Some(Value::Null) => Ok(usual.iter().map(|&v| short(v)).collect()),
            Some(Value::Number(one)) => Ok(vec![one.as_f64().unwrap_or_default(); usual.len()]),
            Some(value) => value
                .as_array()
                .and_then(|all| all.iter().map(Value::as_f64).collect())
                .ok_or_else(|| format!("the image processor's `{name}` should be numbers, not {value}")),
        }
    };
    let usual = match kind.map(|kind| kind.name) {
        Some("CLIP" | "Bit") => (CLIP.0.to_vec(), CLIP.1.to_vec()),
        Some("DINOv3ViT") => (Preprocess::imagenet().mean, Preprocess::imagenet().std),
        Some(_) => (vec![0.5; 3], vec![0.5; 3]),
        None => (usual.mean.clone(), usual.std.clone()),
    };
    let (mut mean, mut std) = (floats("image_mean", &usual.0)?, floats("image_std", &usual.1)?);
    let twice = kind.is_some_and(|kind| kind.twice) && flag("include_top") != Some(false);
    let second = if twice { std.clone() } else { vec![1.0; std.len()] };
    if flag("do_normalize") == Some(false) {
        (mean, std) = (vec![0.0; mean.len()], vec![1.0; std.len()]);
    }
    let rescaled = flag("do_rescale") != Some(false);
    let factor = map.get("rescale_factor").and_then(Value::as_f64).filter(|_| rescaled);
    let factor = factor.unwrap_or(if rescaled { TO_UNIT } else { 1.0 });
    // 1/255 is also written with fewer digits.
    let factor = if (factor / TO_UNIT - 1.0).abs() < 1e-6 { 1.0 } else { factor / TO_UNIT };
    let offset = if flag("rescale_offset") == Some(true) && rescaled { 1.0 } else { 0.0 };
    mean.iter_mut().for_each(|mean| *mean = (*mean + offset) / factor);
    std.iter_mut().zip(second).for_each(|(std, second)| *std = *std * second / factor);
    Ok((mean.iter().map(|&v| v as f32).collect(), std.iter().map(|&v| v as f32).collect()))
}

/// `crop / size`, rounded so that `floor(crop / share)` is `size` again: 224 / (224 / 354) is a little less than 354.
fn share(crop: f64, size: f64) -> f64 {
    let share = crop / size;
    if (crop / share).floor() < size { share.next_down() } else { share }
}

/// How transformers will prepare images differently when it opens [`hugging_face_preprocessor`], one line each.
pub fn hugging_face_differences(config: &Config) -> Vec<String> {
    let p = &config.preprocessing;
    if p.resizer == Resizer::TorchvisionFloats && !writes_dinov3(p) {
        return vec!["transformers cannot crop images as this model does; prepare them yourself".into()];
    }
    let ours = p.crop_rule == CropRule::Transformers;
    let [height, width] = p.image_size;
    match p.crop_mode {
        CropMode::Squash if ours || p.crop_pct >= 1.0 => Vec::new(),
        CropMode::Unscaled => Vec::new(),
        CropMode::Center if ours => Vec::new(),
        CropMode::Center if height != width => vec![
            "transformers cannot resize images for an input that is not square as this model does; prepare them yourself"
                .into(),
        ],
        CropMode::Border => vec!["transformers cannot pad images as this model does; prepare them yourself".into()],
        _ => vec![
            "transformers cuts the middle out of an image one pixel further up or left where the margin is odd; its \
             answers differ a little"
                .into(),
        ],
    }
}

/// Hugging Face's `preprocessor_config.json` for a model's preprocessing.
pub fn hugging_face_preprocessor(config: &Config) -> Value {
    let distilled = config.architecture.downcast_ref().is_some_and(|vit: &Vit| vit.distillation_token);
    let p = &config.preprocessing;
    let resample = match p.interpolation {
        Filter::Nearest => 0,
        Filter::Lanczos => 1,
        Filter::Bilinear => 2,
        Filter::Bicubic => 3,
        Filter::Box => 4,
        Filter::Hamming => 5,
    };
    let [height, width] = p.image_size;
    let resized = |side: usize| (side as f64 / p.crop_pct).floor() as usize;
    let (squashed, crops) = (p.crop_mode == CropMode::Squash, p.crop_pct != 1.0);
    let size = if squashed {
        json!({ "height": resized(height), "width": resized(width) })
    } else {
        json!({ "shortest_edge": resized(height.min(width)) })
    };
    // Not every class keeps the aspect ratio, or crops; all of them read the same fields.
    let class = match (squashed, crops) {
        _ if writes_dinov3(p) => "DINOv3ViTImageProcessor",
        (true, false) if !distilled => "ViTImageProcessor",
        (true, _) => "DeiTImageProcessor",
        (false, _) => "CLIPImageProcessor",
    };
    let backend = if p.resizer == Resizer::Torchvision { "Fast" } else { "" };
    let mut written = json!({
        "image_processor_type": format!("{class}{backend}"),
        "do_resize": p.crop_mode != CropMode::Unscaled,
        "size": size,
        "resample": resample,
        "do_center_crop": crops || !squashed,
        "crop_size": { "height": height, "width": width },
        "do_rescale": true,
        "rescale_factor": TO_UNIT,
        "do_normalize": true,
        "image_mean": p.mean.iter().map(|&v| short(v)).collect::<Vec<_>>(),
        "image_std": p.std.iter().map(|&v| short(v)).collect::<Vec<_>>(),
    });
    if p.crop_rule != CropRule::Transformers {
        written[OWN] = json!({ "crop_rule": p.crop_rule.name() });
    }
    written
}

/// Whether this is the preprocessing of DINOv3's class.
fn writes_dinov3(p: &Preprocess) -> bool {
    p.resizer == Resizer::TorchvisionFloats && p.crop_mode == CropMode::Squash && p.crop_pct == 1.0
}
