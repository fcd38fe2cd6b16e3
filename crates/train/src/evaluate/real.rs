//! ImageNet-ReaL (Beyer et al., "Are we done with ImageNet?", 2020): all classes that people see in each validation image. A
//! prediction is right if it is among them; images in which they saw none of the classes are left out.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use vit_data::Samples;
use vit_system::regular_file;

use super::Prediction;
use crate::error::TrainError;

/// The acceptable classes of every image, in the order of the images' file names.
#[derive(Debug, Clone, PartialEq)]
pub struct RealLabels {
    path: PathBuf,
    lists: Vec<Vec<u32>>,
}

/// The accuracy by these labels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RealAccuracy {
    /// The share of images whose prediction is acceptable.
    pub accuracy: f64,
    /// Images that count.
    pub images: u64,
    /// Images that were left out, since no class is acceptable.
    pub left_out: u64,
}

impl RealLabels {
    /// Reads `real.json`: a list with a list of class indices for each image.
    pub fn read(path: &Path) -> Result<RealLabels, TrainError> {
        let wrong = |what: String| TrainError::Config { path: path.into(), what };
        let text = regular_file::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let lists = serde_json::from_str(&text);
        let lists = lists.map_err(|error| wrong(format!("should be a list of lists of class indices: {error}")))?;
        Ok(RealLabels { path: path.into(), lists })
    }

    /// The accuracy of predictions on the samples. The samples must be all images that the labels are of.
    pub fn accuracy(
        &self,
        samples: &dyn Samples,
        outputs: usize,
        predictions: &[Prediction],
    ) -> Result<RealAccuracy, TrainError> {
        let wrong = |what: String| TrainError::Config { path: self.path.clone(), what };
        if self.lists.len() != samples.len() {
            return Err(wrong(format!(
                "it has labels of {} images, and there are {}; ImageNet-ReaL is of the whole validation split",
                self.lists.len(),
                samples.len()
            )));
        }
        if let Some(class) = self.lists.iter().flatten().find(|class| **class as usize >= outputs) {
            return Err(wrong(format!("it has the class {class}, and the model has {outputs}, which count from 0")));
        }
        let mut order: Vec<(String, usize)> = (0..samples.len()).map(|at| (file_name(&samples.name(at)), at)).collect();
        order.sort();
        let names: BTreeSet<&str> = order.iter().map(|(name, _)| name.as_str()).collect();
        if names.len() < order.len() {
            return Err(wrong(
                "two images have the same file name, so their order does not tell which labels are whose".into(),
            ));
        }
        let mut acceptable: Vec<&[u32]> = vec![&[]; samples.len()];
        for ((_, sample), list) in order.iter().zip(&self.lists) {
            acceptable[*sample] = list;
        }
        let counted: Vec<&Prediction> = predictions.iter().filter(|p| !acceptable[p.sample].is_empty()).collect();
        let right = counted.iter().filter(|p| acceptable[p.sample].contains(&p.class)).count();
        Ok(RealAccuracy {
            accuracy: right as f64 / counted.len() as f64,
            images: counted.len() as u64,
            left_out: (predictions.len() - counted.len()) as u64,
        })
    }
}

/// The last part of an image's name.
fn file_name(name: &str) -> String {
    name.rsplit(['/', '\\']).next().unwrap_or(name).to_string()
}

#[cfg(test)]
mod tests {
    use vit_data::{Image, ImageError};

    use super::*;

    /// Two class folders, whose order is not that of the file names.
    struct Folders;

    const NAMES: [&str; 4] = ["val/b/4.jpg", "val/b/1.jpg", "val/a/3.jpg", "val/a/2.jpg"];

    impl Samples for Folders {
        fn len(&self) -> usize {
            NAMES.len()
        }

        fn classes(&self) -> &[String] {
            &[]
        }

        fn labels(&self, _: usize) -> &[u32] {
            &[0]
        }

        fn name(&self, index: usize) -> String {
            NAMES[index].into()
        }

        fn image(&self, _: usize) -> Result<Image, ImageError> {
            unreachable!("no image is needed")
        }
    }

    fn labels(text: &str) -> RealLabels {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("real.json");
        std::fs::write(&path, text).unwrap();
        RealLabels::read(&path).unwrap()
    }

    #[test]
    fn predictions_among_the_acceptable_classes_are_right_and_images_without_any_do_not_count() {
        // In the order of file names: 1.jpg, 2.jpg, 3.jpg, 4.jpg.
        let real = labels("[[7], [1, 2], [], [0]]");
        let predictions: Vec<Prediction> =
            [3, 7, 0, 2].iter().enumerate().map(|(sample, class)| Prediction { sample, class: *class }).collect();
        // 4.jpg is 3 and should be 0; 1.jpg is 7; 3.jpg does not count; 2.jpg is 2.
        let found = real.accuracy(&Folders, 8, &predictions).unwrap();
        assert_eq!(found, RealAccuracy { accuracy: 2.0 / 3.0, images: 3, left_out: 1 });
    }

    #[test]
    fn labels_of_other_images_or_classes_are_refused() {
        let refused = |text: &str| labels(text).accuracy(&Folders, 8, &[]).unwrap_err().to_string();
        assert!(refused("[[1]]").contains("labels of 1 images, and there are 4"));
        assert!(refused("[[1], [2], [8], []]").contains("the class 8, and the model has 8"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("real.json");
        std::fs::write(&path, "{\"a\": 1}").unwrap();
        assert!(RealLabels::read(&path).unwrap_err().to_string().contains("list of lists"));
    }
}
