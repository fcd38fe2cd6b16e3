//! Labelled images by formula, for pre-training without photographs: fractals from iterated function systems (Kataoka et al.,
//! "Pre-training without Natural Images", 2020) and radial contours (Kataoka et al., "Replacing Labeled Real-image Datasets
//! with Auto-generated Contours", 2022). An image is a function of its class, its instance and its size alone, with the same
//! bits on every machine: arithmetic is IEEE addition, multiplication, division and square root, and functions are `libm`'s.

mod canvas;
mod contours;
mod fractals;

use crate::augment::SampleRandom;
use crate::image::Image;
use fractals::FractalClass;
use std::path::Path;
use std::sync::OnceLock;

/// Instances of a class if their number is not given.
const USUAL_INSTANCES: u32 = 1000;

/// Validation images of a dataset, at least one for each class.
const VALIDATION_IMAGES: u32 = 10_000;

/// The first instance for validation: datasets of different sizes have the same.
const FIRST_VALIDATION: u32 = 1 << 31;

/// The side of an image if no size is asked for.
pub(crate) const USUAL_SIDE: usize = 256;

/// What a class is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FormulaKind {
    /// Iterated function systems.
    Fractals,
    /// Radial contours.
    Contours,
}

impl FormulaKind {
    fn name(self) -> &'static str {
        match self {
            FormulaKind::Fractals => "fractals",
            FormulaKind::Contours => "contours",
        }
    }

    /// The random stream of a class (`instance` none) or of an instance; `attempt` counts those before that did not suit.
    fn random(self, class: u32, instance: Option<u32>, attempt: u32) -> SampleRandom {
        let seed = match self {
            FormulaKind::Fractals => 0x6672_6163,
            FormulaKind::Contours => 0x636f_6e74,
        };
        SampleRandom::new(seed, class.into(), instance.map_or(u64::MAX, u64::from), attempt)
    }
}

/// A dataset by formula: `fractals:1000`, or `contours:1000x200` for 200 instances of each class.
pub(crate) struct Formula {
    kind: FormulaKind,
    classes: u32,
    instances: u32,
    /// Fractals' classes, found by a search when they are first drawn.
    fractals: Vec<OnceLock<FractalClass>>,
}

/// A sample of a dataset by formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FormulaSample {
    pub(crate) class: u32,
    instance: u32,
}

impl FormulaSample {
    /// Whether it is for validation.
    pub(crate) fn is_validation(self) -> bool {
        self.instance >= FIRST_VALIDATION
    }
}

impl Formula {
    /// The dataset of this name; `None` if the path is none, and what is wrong if it only begins like one.
    pub(crate) fn named(path: &Path) -> Option<Result<Self, String>> {
        let (name, size) = path.to_str()?.split_once(':')?;
        let kind = [FormulaKind::Fractals, FormulaKind::Contours].into_iter().find(|kind| kind.name() == name)?;
        let (classes, instances) = size.split_once('x').map_or((size, None), |(classes, rest)| (classes, Some(rest)));
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0);
        let found = number(classes).zip(instances.map_or(Some(USUAL_INSTANCES), number));
        let found = found.filter(|(classes, instances)| *classes <= 1 << 20 && *instances < FIRST_VALIDATION);
        Some(match found {
            Some((classes, instances)) => Ok(Self::new(kind, classes, instances)),
            None => Err(format!(
                "should be {name}:CLASSES or {name}:CLASSESxINSTANCES, with at most {} classes, as {name}:1000x200",
                1 << 20
            )),
        })
    }

    fn new(kind: FormulaKind, classes: u32, instances: u32) -> Self {
        let searched = if kind == FormulaKind::Fractals { classes } else { 0 };
        Self { kind, classes, instances, fractals: (0..searched).map(|_| OnceLock::new()).collect() }
    }

    pub(crate) fn kind(&self) -> FormulaKind {
        self.kind
    }

    /// The names of the classes.
    pub(crate) fn class_names(&self) -> impl Iterator<Item = String> + use<> {
        let (name, digits) = (self.kind.name().trim_end_matches('s'), (self.classes - 1).to_string().len());
        (0..self.classes).map(move |class| format!("{name}-{class:0digits$}"))
    }

    /// Validation images of each class.
    fn validation(&self) -> u32 {
        (VALIDATION_IMAGES / self.classes).clamp(1, self.instances.div_ceil(10))
    }

    /// The number of samples, for training and validation.
    pub(crate) fn len(&self) -> u64 {
        u64::from(self.classes) * (u64::from(self.instances) + u64::from(self.validation()))
    }

    /// A sample by index: class by class, those for validation last.
    pub(crate) fn sample(&self, index: usize) -> FormulaSample {
        let each = (self.instances + self.validation()) as usize;
        let (class, instance) = ((index / each) as u32, (index % each) as u32);
        let validation = instance.checked_sub(self.instances).map(|instance| FIRST_VALIDATION + instance);
        FormulaSample { class, instance: validation.unwrap_or(instance) }
    }

    /// The name of a sample inside the dataset.
    pub(crate) fn key(&self, FormulaSample { class, instance }: FormulaSample) -> String {
        match instance.checked_sub(FIRST_VALIDATION) {
            Some(instance) => format!("{class}/validation-{instance}"),
            None => format!("{class}/{instance}"),
        }
    }

    /// Draws a sample with `side` x `side` pixels.
    pub(crate) fn draw(&self, FormulaSample { class, instance }: FormulaSample, side: usize) -> Image {
        match self.kind {
            FormulaKind::Fractals => match self.fractals.get(class as usize) {
                Some(found) => found.get_or_init(|| FractalClass::search(class)).draw(class, instance, side),
                None => FractalClass::search(class).draw(class, instance, side),
            },
            FormulaKind::Contours => contours::draw(class, instance, side),
        }
    }
}

/// A fast generator for the many small choices of an image (xorshift64*), seeded by Philox.
struct FastRandom(u64);

impl FastRandom {
    fn new(random: &mut SampleRandom) -> Self {
        Self(u64::from(random.word()) << 32 | u64::from(random.word()) | 1)
    }

    /// 32 random bits.
    #[inline]
    fn word(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32
    }

    /// Uniform in -1..1.
    #[inline]
    fn signed(&mut self) -> f64 {
        f64::from(self.word() as i32) * (1.0 / (1u64 << 31) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vit_system::hash::Xxh3;

    fn formula(name: &str) -> Formula {
        Formula::named(Path::new(name)).unwrap().unwrap()
    }

    #[test]
    fn names_give_classes_and_instances() {
        let both = |name: &str| (formula(name).classes, formula(name).instances);
        assert_eq!((both("fractals:30"), both("contours:5x7")), ((30, 1000), (5, 7)));
        for wrong in ["fractals:", "fractals:x5", "fractals:0", "contours:3x0", "contours:3x", "fractals:2000000"] {
            assert!(Formula::named(Path::new(wrong)).unwrap().is_err(), "{wrong}");
        }
        assert!(
            ["photos", "fractals", "s3://fractals:3", "flowers:10"]
                .iter()
                .all(|p| Formula::named(Path::new(p)).is_none())
        );
    }

    #[test]
    fn validation_images_are_others_and_the_same_for_every_size() {
        let (few, many) = (formula("contours:10x20"), formula("contours:10x300"));
        let validation = |formula: &Formula| {
            let all = (0..formula.len() as usize).map(|index| formula.sample(index));
            all.filter(|sample| sample.is_validation()).map(|sample| formula.key(sample)).collect::<Vec<_>>()
        };
        assert_eq!((few.len(), many.len()), (10 * 22, 10 * 330));
        assert!(validation(&few).iter().all(|key| validation(&many).contains(key)));
        assert_eq!(few.key(few.sample(21)), "0/validation-1");
        assert_ne!(few.draw(few.sample(0), 32), few.draw(few.sample(20), 32));
    }

    /// Recorded once; the same on every machine, today and later: runs pre-trained on them are resumed and compared.
    #[test]
    fn images_have_the_recorded_bits() {
        for (name, recorded) in [
            ("fractals:40x50", "303d59be9e98053f6e79839ba67be79f"),
            ("contours:40x50", "a358af858f6c5cc995afcbed5bcd06bc"),
        ] {
            let formula = formula(name);
            let mut hash = Xxh3::new();
            for index in (0..formula.len() as usize).step_by(97) {
                for side in [32, 64, 224] {
                    hash.update(formula.draw(formula.sample(index), side).pixels());
                }
            }
            assert_eq!(format!("{:032x}", hash.digest128()), recorded, "{name}");
        }
    }

    #[test]
    fn instances_differ_and_none_is_empty() {
        for name in ["fractals:12x8", "contours:12x8"] {
            let formula = formula(name);
            for index in 0..formula.len() as usize {
                let image = formula.draw(formula.sample(index), 48);
                let background = image.pixels()[..3].to_vec();
                let drawn = image.pixels().chunks(3).filter(|pixel| *pixel != background).count();
                assert!(drawn >= 4, "{name} {index}: {drawn} pixels");
                assert_ne!(image, formula.draw(formula.sample((index + 1) % formula.len() as usize), 48));
            }
        }
    }

    #[test]
    fn any_size_can_be_drawn() {
        for name in ["fractals:2x2", "contours:2x2"] {
            for side in [1, 2, 7, 128, 129, 500] {
                let image = formula(name).draw(formula(name).sample(1), side);
                assert_eq!((image.width(), image.height()), (side, side));
            }
        }
    }
}
