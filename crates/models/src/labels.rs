//! Class names that published weights leave out.

/// The 1,000 classes of ImageNet (ILSVRC 2012) in the order in which all published models have them: the WordNet
/// lemmas of its synsets.
const IMAGENET_1K: &str = include_str!("labels/imagenet1k.txt");

/// Class names of published models with this many classes.
pub fn usual(classes: usize) -> Option<Vec<String>> {
    (classes == 1000).then(|| IMAGENET_1K.lines().map(str::to_string).collect())
}

#[cfg(test)]
mod tests {
    use super::usual;

    #[test]
    fn imagenet_has_a_name_for_every_class() {
        let names = usual(1000).unwrap();
        assert_eq!(names.len(), 1000);
        assert_eq!(names[0], "tench, Tinca tinca");
        assert!(names[207].starts_with("golden retriever"));
        assert!(names[999].starts_with("toilet tissue"));
        assert_eq!(usual(10), None);
    }
}
