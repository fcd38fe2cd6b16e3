//! Datasets of the caller: any [`Samples`], divided into splits.

use super::listing::{ImagePlace, LabelText, Listing};
use super::{DatasetError, DatasetFormat, DatasetOptions, Splits, divide};
use crate::samples::Samples;
use std::path::PathBuf;
use std::sync::Arc;

/// Divides the caller's samples for training: a fraction of each class is held out for validation, as
/// [`open`](super::open) does for a dataset without splits.
pub fn from_samples(samples: Arc<dyn Samples>, options: &DatasetOptions) -> Result<Splits, DatasetError> {
    let mut listing = Listing::new(DatasetFormat::Custom, PathBuf::new(), PathBuf::new(), LabelText::Name);
    listing.class_names = Some(samples.classes().to_vec());
    for index in 0..samples.len() {
        let class = |label: &u32| samples.classes().get(*label as usize).cloned().unwrap_or_default();
        let place = ImagePlace::Custom { index: index as u32, name: samples.name(index).into() };
        match samples.shares(index) {
            Some((labels, shares)) => {
                let shares: Vec<(String, f32)> = labels.iter().map(class).zip(shares.iter().copied()).collect();
                listing.push_shares(place, None, &shares);
            }
            None => {
                let labels = samples.labels(index);
                listing.multi_label |= labels.len() != 1;
                listing.push(place, None, labels.iter().map(class));
            }
        }
    }
    listing.images.custom = Some(samples);
    divide(listing, options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Image, ImageError};

    /// Ten images of each of two classes, of one grey each.
    struct Greys([String; 2]);

    impl Samples for Greys {
        fn len(&self) -> usize {
            20
        }

        fn classes(&self) -> &[String] {
            &self.0
        }

        fn labels(&self, index: usize) -> &[u32] {
            if index < 10 { &[0] } else { &[1] }
        }

        fn name(&self, index: usize) -> String {
            format!("grey {index}")
        }

        fn image(&self, index: usize) -> Result<Image, ImageError> {
            Ok(Image::from_parts(2, 2, vec![index as u8; 12]))
        }
    }

    #[test]
    fn samples_of_a_program_are_divided_like_those_on_disk() {
        let samples = Arc::new(Greys(["dark".into(), "light".into()]));
        let options = DatasetOptions { validation_fraction: 0.2, ..DatasetOptions::default() };
        let splits = from_samples(samples, &options).unwrap();
        let validation = splits.validation.unwrap();
        assert_eq!((splits.train.class_counts(), validation.class_counts()), (vec![8, 8], vec![2, 2]));
        assert_eq!(splits.train.classes(), ["dark", "light"]);
        for index in 0..validation.len() {
            let grey = validation.image(index).unwrap().pixels()[0];
            assert_eq!(validation.name(index), format!("grey {grey}"));
            assert_eq!(validation.labels(index), [u32::from(grey >= 10)]);
        }
    }
}
