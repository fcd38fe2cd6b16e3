//! The loader gives the same bits for any number of threads, any cache and any start position, and never hangs.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use vit_data::augment::{ColourJitter, Erasing};
use vit_data::loader::{BatchParts, LabelCount, UnreadableLimit};
use vit_data::{
    ApplyPreprocess, Augmentation, Batch, BatchPosition, Crop, Image, ImageError, LastBatch, Loader, LoaderError,
    LoaderSettings, Mix, Mixing, Preprocess, Samples, TrainTransform,
};

/// Small images derived from their index, some of which are broken.
struct GeneratedImages {
    count: usize,
    classes: Vec<String>,
    labels: Vec<Vec<u32>>,
    broken: fn(usize) -> bool,
    delay: Duration,
    panics_at: Option<usize>,
    reads: AtomicUsize,
}

impl GeneratedImages {
    fn new(count: usize) -> Self {
        Self {
            count,
            classes: (0..5).map(|i| format!("class {i}")).collect(),
            labels: (0..count).map(|i| vec![i as u32 % 5]).collect(),
            broken: |_| false,
            delay: Duration::ZERO,
            panics_at: None,
            reads: AtomicUsize::new(0),
        }
    }
}

impl Samples for GeneratedImages {
    fn len(&self) -> usize {
        self.count
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn labels(&self, index: usize) -> &[u32] {
        &self.labels[index]
    }

    fn name(&self, index: usize) -> String {
        format!("sample {index}")
    }

    fn image(&self, index: usize) -> Result<Image, ImageError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        // Some are faster, so that threads finish in another order than they start.
        std::thread::sleep(self.delay / (index as u32 % 3 + 1));
        assert_ne!(Some(index), self.panics_at, "the decoder broke down");
        if (self.broken)(index) {
            return Err(ImageError::Io(io::Error::other("bad sector")));
        }
        let (width, height) = (8 + index % 3, 8 + index % 2);
        let pixels = (0..width * height * 3).map(|i| (i * 7 + index * 31) as u8).collect();
        Ok(Image::from_rgb(width, height, pixels).unwrap())
    }
}

fn transform(augmentation: &Augmentation) -> TrainTransform {
    let preprocess = Preprocess { image_size: [8, 8], ..Preprocess::default() };
    TrainTransform::new(&preprocess, augmentation).unwrap()
}

/// All augmentations and mixing.
fn busy() -> LoaderSettings {
    let augmentation = Augmentation {
        crop: Crop::usual(),
        flip: 0.5,
        vertical_flip: 0.1,
        auto_augment: Some("rand-m9-mstd0.5-inc1".to_owned()),
        three_augment: true,
        colour_jitter: ColourJitter { hue: 0.1, ..ColourJitter::uniform(0.4) },
        colour_jitter_probability: 0.8,
        grey: 0.2,
        blur: 0.3,
        solarize: 0.2,
        erasing: Erasing { probability: 0.25, ..Erasing::default() },
        repeated: 1,
    };
    let mix = Mix { mixup: 0.8, cutmix: 1.0, smoothing: 0.1, ..Mix::default() };
    LoaderSettings { mix, threads: 2, prefetch: 3, ..LoaderSettings::training(transform(&augmentation), 4, 42) }
}

/// The content of a batch.
#[derive(Clone, Debug, PartialEq)]
struct BatchContent {
    images: Vec<u32>,
    targets: Vec<u32>,
    samples: Vec<usize>,
    replaced: Vec<usize>,
    mixing: Mixing,
    position: BatchPosition,
}

impl From<Batch> for BatchContent {
    fn from(batch: Batch) -> Self {
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect();
        BatchContent {
            images: bits(&batch.images),
            targets: bits(&batch.targets),
            samples: batch.samples.clone(),
            replaced: batch.replaced.clone(),
            mixing: batch.mixing,
            position: batch.position,
        }
    }
}

fn run(samples: GeneratedImages, settings: LoaderSettings, start: BatchPosition, batches: usize) -> Vec<BatchContent> {
    let mut loader = Loader::new(Arc::new(samples), settings, start).unwrap();
    (0..batches).map(|_| loader.next().unwrap().into()).collect()
}

#[test]
fn processes_load_the_parts_of_one_batch() {
    let load = |parts: BatchParts, count: usize| {
        let settings = LoaderSettings { batch: 8, parts, threads: count, ..busy() };
        let samples = GeneratedImages { broken: |index| index == 5, ..GeneratedImages::new(40) };
        run(
            samples,
            LoaderSettings { unreadable: UnreadableLimit { share: 1.0, after: 0 }, ..settings },
            BatchPosition::default(),
            9,
        )
    };
    let whole = load(BatchParts::all(4), 2);
    for processes in [2, 3, 4] {
        let shares: Vec<_> =
            (0..processes).map(|rank| load(BatchParts::of_process(4, rank, processes), rank + 1)).collect();
        for (step, expected) in whole.iter().enumerate() {
            let own = || shares.iter().map(|share| &share[step]);
            assert_eq!(own().flat_map(|batch| batch.images.clone()).collect::<Vec<_>>(), expected.images);
            assert_eq!(own().flat_map(|batch| batch.targets.clone()).collect::<Vec<_>>(), expected.targets);
            assert_eq!(own().flat_map(|batch| batch.samples.clone()).collect::<Vec<_>>(), expected.samples);
            assert!(own().all(|batch| batch.mixing == expected.mixing && batch.position == expected.position));
        }
    }
    // Partners are in one part.
    assert_ne!(whole, load(BatchParts::all(1), 2));
    let uneven = LoaderSettings { parts: BatchParts::all(3), ..busy() };
    let error = Loader::new(Arc::new(GeneratedImages::new(40)), uneven, BatchPosition::default()).err().unwrap();
    assert_eq!(error, LoaderError::Parts { batch: 4, parts: 3 });
}

#[test]
fn threads_prefetch_and_cache_change_nothing() {
    let expected = run(
        GeneratedImages::new(23),
        LoaderSettings { threads: 1, prefetch: 1, ..busy() },
        BatchPosition::default(),
        12,
    );
    for (threads, prefetch, cache_bytes) in [(2, 1, 0), (3, 4, 1 << 20), (8, 2, 1000), (5, 0, 0)] {
        let samples = GeneratedImages { delay: Duration::from_micros(200), ..GeneratedImages::new(23) };
        let settings = LoaderSettings { threads, prefetch, cache_bytes, ..busy() };
        assert_eq!(run(samples, settings, BatchPosition::default(), 12), expected, "{threads} threads");
    }
    let other = run(GeneratedImages::new(23), LoaderSettings { seed: 43, ..busy() }, BatchPosition::default(), 12);
    assert_ne!(other, expected);
}

#[test]
fn every_position_can_be_resumed() {
    for last in [LastBatch::Drop, LastBatch::Short, LastBatch::Padded] {
        let settings = LoaderSettings { last, ..busy() };
        let whole = run(
            GeneratedImages { broken: |i| i == 7, ..GeneratedImages::new(23) },
            settings.clone(),
            BatchPosition::default(),
            14,
        );
        for (done, batch) in whole.iter().enumerate() {
            let samples = GeneratedImages { broken: |i| i == 7, ..GeneratedImages::new(23) };
            let resumed = run(samples, settings.clone(), batch.position, whole.len() - done);
            assert_eq!(resumed, whole[done..], "{last:?} from {:?}", batch.position);
        }
    }
}

#[test]
fn a_position_behind_an_epoch_is_in_the_next() {
    let from = |epoch, batch| run(GeneratedImages::new(20), busy(), BatchPosition { epoch, batch }, 3);
    assert_eq!(from(0, 5), from(1, 0));
    assert_eq!(from(0, 12), from(2, 2));
}

#[test]
fn an_epoch_shows_every_sample_once_and_the_next_in_another_order() {
    let settings = LoaderSettings { last: LastBatch::Short, ..busy() };
    let seen = run(GeneratedImages::new(23), settings, BatchPosition::default(), 12);
    let order = |epoch: &[BatchContent]| epoch.iter().flat_map(|batch| batch.samples.clone()).collect::<Vec<_>>();
    let (first, second) = (order(&seen[..6]), order(&seen[6..]));
    let sorted = |mut order: Vec<usize>| {
        order.sort_unstable();
        order
    };
    assert_ne!(first, second);
    assert_ne!(first, sorted(first.clone()));
    assert_eq!(sorted(first), (0..23).collect::<Vec<_>>());
    assert_eq!(sorted(second), (0..23).collect::<Vec<_>>());
    assert_eq!(seen[5].position, BatchPosition { epoch: 0, batch: 5 });
    assert_eq!(seen[6].position, BatchPosition { epoch: 1, batch: 0 });
    assert_eq!(seen[5].images.len(), 3 * 3 * 64);
}

#[test]
fn repeated_augmentation_shows_versions_of_fewer_samples() {
    let augmentation = Augmentation { crop: Crop::usual(), repeated: 3, ..Augmentation::default() };
    let settings = LoaderSettings::training(transform(&augmentation), 6, 1);
    let seen = run(GeneratedImages::new(24), settings, BatchPosition::default(), 4);
    let samples: Vec<usize> = seen.iter().flat_map(|batch| batch.samples.clone()).collect();
    for three in samples.chunks(3) {
        assert!(three.iter().all(|sample| *sample == three[0]));
    }
    let distinct: std::collections::HashSet<_> = samples.iter().collect();
    assert_eq!(distinct.len(), 8);
    let version = |i: usize| &seen[0].images[i * 192..(i + 1) * 192];
    assert!(version(0) != version(1) && version(1) != version(2) && version(0) != version(2));
}

#[test]
fn evaluation_is_in_order_and_padded() {
    let preprocess = Preprocess { image_size: [8, 8], ..Preprocess::default() };
    let settings = LoaderSettings { threads: 2, ..LoaderSettings::evaluation(&preprocess, 4).unwrap() };
    let samples = Arc::new(GeneratedImages::new(10));
    let mut loader = Loader::new(samples.clone(), settings, BatchPosition::default()).unwrap();
    assert_eq!(loader.batches_per_epoch(), 3);
    for number in 0..3 {
        let batch = loader.next().unwrap();
        let expected: Vec<usize> = (number * 4..10.min(number * 4 + 4)).collect();
        assert_eq!(batch.samples, expected);
        for (place, sample) in expected.iter().enumerate() {
            let image = preprocess.apply(&samples.image(*sample).unwrap()).unwrap();
            assert_eq!(batch.images[place * 192..(place + 1) * 192], image);
            let target: Vec<f32> = (0..5).map(|class| if class == sample % 5 { 1.0 } else { 0.0 }).collect();
            assert_eq!(batch.targets[place * 5..place * 5 + 5], target);
        }
        assert_eq!((batch.images.len(), batch.targets.len()), (4 * 192, 4 * 5));
        assert!(batch.images[expected.len() * 192..].iter().all(|v| *v == 0.0));
        assert!(batch.targets[expected.len() * 5..].iter().all(|v| *v == 0.0));
    }
    assert_eq!(loader.next().unwrap_err(), LoaderError::Finished(1));
    assert_eq!(loader.next().unwrap_err(), LoaderError::Finished(1));
}

#[test]
fn an_unreadable_sample_is_replaced_by_the_next_and_listed_once() {
    let broken = |index: usize| index == 3 || index == 11;
    let settings = LoaderSettings { last: LastBatch::Short, shuffle: false, ..busy() };
    let settings = LoaderSettings { unreadable: UnreadableLimit { share: 0.2, after: 10 }, ..settings };
    let mut loader = Loader::new(
        Arc::new(GeneratedImages { broken, ..GeneratedImages::new(12) }),
        settings.clone(),
        BatchPosition::default(),
    )
    .unwrap();
    let seen: Vec<BatchContent> = (0..6).map(|_| loader.next().unwrap().into()).collect();
    assert_eq!(seen[0].samples, [0, 1, 2, 4]);
    assert_eq!(seen[0].replaced, [3]);
    assert_eq!(seen[1].samples, [4, 5, 6, 7]);
    assert_eq!(seen[2].samples, [8, 9, 10, 0]);
    let listed: Vec<_> = loader.unreadable().map(|one| (one.sample, one.name.clone(), one.reason.clone())).collect();
    let reason = "cannot be read: bad sector".to_owned();
    assert_eq!(listed, [(3, "sample 3".to_owned(), reason.clone()), (11, "sample 11".to_owned(), reason)]);
    for threads in [1, 4] {
        let samples = GeneratedImages { broken, delay: Duration::from_micros(300), ..GeneratedImages::new(12) };
        assert_eq!(run(samples, LoaderSettings { threads, ..settings.clone() }, BatchPosition::default(), 6), seen);
    }
}

#[test]
fn too_many_unreadable_samples_stop_the_run() {
    let broken = |index: usize| index % 10 == 4;
    let settings = LoaderSettings { unreadable: UnreadableLimit { share: 0.05, after: 40 }, ..busy() };
    let outcomes: Vec<(usize, LoaderError)> = [1, 4]
        .map(|threads| {
            let samples = GeneratedImages { broken, ..GeneratedImages::new(200) };
            let settings = LoaderSettings { threads, ..settings.clone() };
            let mut loader = Loader::new(Arc::new(samples), settings, BatchPosition::default()).unwrap();
            let mut delivered = 0;
            loop {
                match loader.next() {
                    Ok(_) => delivered += 1,
                    Err(error) => break (delivered, error),
                }
            }
        })
        .to_vec();
    assert_eq!(outcomes[0], outcomes[1]);
    assert!(outcomes[0].0 >= 9, "{outcomes:?}");
    let message = outcomes[0].1.to_string();
    assert!(message.contains("5.0%") && message.contains("(cannot be read: bad sector)"), "{message}");
}

#[test]
fn a_data_set_without_a_readable_sample_is_an_error() {
    let samples = GeneratedImages { broken: |_| true, ..GeneratedImages::new(10) };
    let mut loader = Loader::new(Arc::new(samples), busy(), BatchPosition::default()).unwrap();
    let message = loader.next().unwrap_err().to_string();
    assert!(message.contains("none of 10 samples") && message.contains("bad sector"), "{message}");
}

#[test]
fn a_panic_is_an_error_that_names_the_sample() {
    for threads in [1, 3] {
        let samples = GeneratedImages { panics_at: Some(6), ..GeneratedImages::new(12) };
        let settings = LoaderSettings { threads, shuffle: false, ..busy() };
        let mut loader = Loader::new(Arc::new(samples), settings, BatchPosition::default()).unwrap();
        loader.next().unwrap();
        let error = loader.next().unwrap_err();
        let message = error.to_string();
        assert!(message.contains("sample 6") && message.contains("the decoder broke down"), "{message}");
        assert_eq!(loader.next().unwrap_err(), error);
    }
}

/// Has labels at first, but none when the batch is completed.
struct Forgetful(GeneratedImages, AtomicUsize);

impl Samples for Forgetful {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn classes(&self) -> &[String] {
        self.0.classes()
    }

    fn labels(&self, index: usize) -> &[u32] {
        assert!(self.1.fetch_add(1, Ordering::Relaxed) < self.0.count, "the labels are gone");
        self.0.labels(index)
    }

    fn name(&self, index: usize) -> String {
        self.0.name(index)
    }

    fn image(&self, index: usize) -> Result<Image, ImageError> {
        self.0.image(index)
    }
}

#[test]
fn a_panic_outside_of_any_sample_is_an_error_too() {
    let samples = Forgetful(GeneratedImages::new(12), AtomicUsize::new(0));
    let mut loader = Loader::new(Arc::new(samples), busy(), BatchPosition::default()).unwrap();
    let message = loader.next().unwrap_err().to_string();
    assert!(message.contains("the labels are gone"), "{message}");
}

#[test]
fn what_cannot_work_is_refused_at_once() {
    let error = |samples: GeneratedImages, settings: LoaderSettings| {
        Loader::new(Arc::new(samples), settings, BatchPosition::default()).err().unwrap().to_string()
    };
    assert!(error(GeneratedImages::new(0), busy()).contains("0 samples"));
    assert!(error(GeneratedImages { classes: vec![], ..GeneratedImages::new(3) }, busy()).contains("0 classes"));
    assert!(error(GeneratedImages::new(3), busy()).contains("3 training samples, fewer than one batch of 4"));
    assert!(error(GeneratedImages::new(3), LoaderSettings { batch: 0, ..busy() }).contains("batch size is 0"));
    let none = GeneratedImages { labels: vec![vec![0], vec![], vec![1], vec![2]], ..GeneratedImages::new(4) };
    assert!(error(none, busy()).contains("sample 1 has 0 labels"));
    let wrong = GeneratedImages { labels: vec![vec![0], vec![5], vec![1], vec![2]], ..GeneratedImages::new(4) };
    assert!(error(wrong, busy()).contains("sample 1 has label 5, but there are only 5 classes"));
    let mix = Mix { mixup: -1.0, ..Mix::default() };
    assert!(error(GeneratedImages::new(8), LoaderSettings { mix, ..busy() }).contains("mix.mixup"));
}

#[test]
fn a_set_smaller_than_a_batch_makes_one() {
    for (last, rows) in [(LastBatch::Short, 3), (LastBatch::Padded, 4)] {
        let seen = run(GeneratedImages::new(3), LoaderSettings { last, ..busy() }, BatchPosition::default(), 2);
        assert_eq!((seen[0].samples.len(), seen[0].images.len()), (3, rows * 192));
        assert_eq!(seen[1].position, BatchPosition { epoch: 1, batch: 0 });
    }
}

#[test]
fn multiple_labels_make_multi_hot_targets() {
    let labels: Vec<Vec<u32>> = (0..8).map(|i| (0..i as u32 % 4).collect()).collect();
    let settings = LoaderSettings { labels: LabelCount::Multiple, mix: Mix::default(), ..busy() };
    let samples = GeneratedImages { labels: labels.clone(), ..GeneratedImages::new(8) };
    for batch in run(samples, settings, BatchPosition::default(), 2) {
        for (sample, row) in batch.samples.iter().zip(batch.targets.chunks(5)) {
            let expected: Vec<u32> =
                (0..5).map(|class| if labels[*sample].contains(&class) { 1f32.to_bits() } else { 0 }).collect();
            assert_eq!(row, expected);
        }
    }
}

#[test]
fn the_cache_reads_every_sample_once_and_keeps_its_limit() {
    let reads = |cache_bytes: u64| {
        let samples = Arc::new(GeneratedImages::new(12));
        let settings = LoaderSettings { cache_bytes, epochs: Some(5), threads: 1, ..busy() };
        let mut loader = Loader::new(samples.clone(), settings, BatchPosition::default()).unwrap();
        for _ in 0..15 {
            loader.next().unwrap();
        }
        samples.reads.load(Ordering::Relaxed)
    };
    assert_eq!(reads(0), 60);
    assert_eq!(reads(1 << 20), 12);
    // One image of 8 x 8 to 10 x 9 fits, but not two.
    assert_eq!(reads(300), 12 + 4 * 11);
}

#[test]
fn memory_of_batches_is_used_again() {
    let mut loader = Loader::new(Arc::new(GeneratedImages::new(40)), busy(), BatchPosition::default()).unwrap();
    let mut addresses = std::collections::HashSet::new();
    for _ in 0..50 {
        addresses.insert(loader.next().unwrap().images.as_ptr() as usize);
    }
    // Three are being prepared and one is in use.
    assert!(addresses.len() <= 4, "{}", addresses.len());
}

#[test]
fn waiting_is_measured() {
    let slow = GeneratedImages { delay: Duration::from_millis(40), ..GeneratedImages::new(8) };
    let settings = LoaderSettings { threads: 1, ..busy() };
    let mut loader = Loader::new(Arc::new(slow), settings, BatchPosition::default()).unwrap();
    let start = Instant::now();
    loader.next().unwrap();
    let first = loader.waited_since();
    assert!(first > Duration::from_millis(1) && first <= start.elapsed(), "{first:?}");
    loader.next().unwrap();
    let second = loader.waited_since();
    assert_eq!(loader.waited(), first + second);
    assert_eq!(loader.waited_since(), Duration::ZERO);
}

#[test]
fn dropping_does_not_wait_for_the_window() {
    let slow = GeneratedImages { delay: Duration::from_millis(60), ..GeneratedImages::new(400) };
    let settings = LoaderSettings { batch: 100, threads: 4, prefetch: 3, ..busy() };
    let loader = Loader::new(Arc::new(slow), settings, BatchPosition::default()).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let start = Instant::now();
    drop(loader);
    // The queue holds 300 samples of at least 20 ms; only the current ones are finished.
    assert!(start.elapsed() < Duration::from_millis(1000), "{:?}", start.elapsed());
}
