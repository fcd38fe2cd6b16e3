//! The engine: every image gets its own answer, whatever happens around it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use vit::{DeviceChoice, DeviceOptions, Image, Model, ModelOptions, Pool};
use vit_serve::engine::{
    Answer, Engine, EngineOptions, ModelSource, Refused, Ticket, Work, WorkError, WorkInput, WorkOutput,
};

fn options(path: impl AsRef<Path>) -> EngineOptions {
    EngineOptions {
        models: vec![ModelSource { name: "model".into(), path: path.as_ref().into() }],
        devices: vec![DeviceOptions::new().device(DeviceChoice::Cpu).threads(2)],
        replicas: 1,
        max_batch: 4,
        max_delay: None,
        queue: 64,
        decoders: 2,
        decode: Default::default(),
    }
}

fn start(options: EngineOptions) -> Arc<Engine> {
    Engine::start(options).unwrap()
}

/// A BMP file, different for each number.
fn bmp(number: usize) -> Bytes {
    const SIDE: usize = 32;
    let mut file = Vec::from(*b"BM");
    let size = (54 + 3 * SIDE * SIDE) as u32;
    for word in [size, 0, 54, 40, SIDE as u32, SIDE as u32, 1 | 24 << 16, 0, 0, 0, 0, 0, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend((0..3 * SIDE * SIDE).map(|i| (i * (number + 1) * 7919 >> 4) as u8));
    file.into()
}

fn work(image: Bytes, output: WorkOutput) -> Work {
    Work { input: WorkInput::Encoded(image), output, deadline: Instant::now() + Duration::from_secs(60) }
}

fn wait<T>(ticket: Ticket<T>) -> Result<T, WorkError> {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(ticket)
}

fn submit_one(engine: &Engine, work: Work) -> Result<Ticket<Answer>, Refused> {
    Ok(engine.model(None).unwrap().submit(vec![work])?.remove(0))
}

#[test]
fn concurrent_images_get_their_own_answers() {
    let engine = start(options("cifar10"));
    let model = engine.model(None).unwrap();
    let sizes: Vec<usize> = model.card().batches.iter().map(|(size, _)| *size).collect();
    assert_eq!(sizes, [1, 2, 4]);
    // By batch size and image, since results depend on the shape of the batch.
    let expected: Vec<Vec<Vec<f32>>> = sizes
        .iter()
        .map(|&batch| {
            let options =
                ModelOptions::new().batch(batch).device(DeviceOptions::new().device(DeviceChoice::Cpu).threads(2));
            let mut alone = Model::open_with("cifar10", &options).unwrap();
            let mut logits = |number: usize| {
                alone.run(&Image::from_encoded(&bmp(number)).unwrap()).unwrap();
                alone.output("logits", 1).unwrap()
            };
            (0..10).map(&mut logits).collect()
        })
        .collect();
    let client = |seed: usize| {
        let engine = engine.clone();
        std::thread::spawn(move || {
            let mut found = Vec::new();
            for round in 0..20 {
                let number = (seed + 3 * round) % 10;
                let ticket = submit_one(&engine, work(bmp(number), WorkOutput::Logits)).unwrap();
                found.push((number, wait(ticket).unwrap()));
            }
            found
        })
    };
    let clients: Vec<_> = (0..8).map(client).collect();
    let mut together = 0;
    for (number, answer) in clients.into_iter().flat_map(|client| client.join().unwrap()) {
        let size = sizes.iter().position(|size| *size >= answer.timing.batch).unwrap();
        assert_eq!(answer.logits, expected[size][number], "image {number} in a batch of {}", answer.timing.batch);
        together += usize::from(answer.timing.batch > 1);
    }
    assert!(together > 0, "no batch had two images");
    let statistics = model.statistics();
    assert_eq!((statistics.answered, statistics.failed, statistics.waiting), (160, 0, 0));
    assert!(statistics.batches < 160);
    assert_eq!(engine.pending(), 0);
}

#[test]
fn embeddings_are_those_of_the_facade() {
    let engine = start(options("cifar10"));
    let mut alone = vit::Embed::open("cifar10", Pool::Features, &ModelOptions::new()).unwrap().normalised();
    let expected = alone.embed(&[Image::from_encoded(&bmp(3)).unwrap()]).unwrap().remove(0);
    let output = WorkOutput::Embedding { pool: Pool::Features, normalise: true };
    let found = wait(submit_one(&engine, work(bmp(3), output)).unwrap()).unwrap();
    assert_eq!((found.embedding, found.embedding_shape, found.logits), (expected, vec![256], vec![]));
}
