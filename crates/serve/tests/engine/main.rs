//! The engine: every image gets its own answer, whatever happens around it.

mod fragile_device;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fragile_device::{FragileDevice, Mode, Switch};
use vit::data::ApplyPreprocess;
use vit::explain::{ExplainOptions, Method};
use vit::models::{Checkpoint, Dtype, Layout};
use vit::{DeviceChoice, DeviceOptions, Embed, Explain, Image, Model, ModelOptions, Pool};
use vit_serve::engine::{
    Answer, Engine, EngineError, EngineOptions, ExplainWork, ModelSource, Readiness, Refused, ServedModel, Ticket,
    Work, WorkError, WorkInput, WorkOutput,
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

/// An engine on a device that fails on demand, with batches of one image.
fn fragile(options: EngineOptions) -> (Arc<Engine>, Arc<Switch>) {
    let (device, switch) = FragileDevice::with_switch();
    (Engine::start_on(vec![device], EngineOptions { max_batch: 1, ..options }).unwrap(), switch)
}

/// A BMP file of 32 x 32 pixels, different for each number.
fn bmp(number: usize) -> Bytes {
    bmp_of(32, number)
}

fn bmp_of(side: usize, number: usize) -> Bytes {
    let mut file = Vec::from(*b"BM");
    let size = (54 + 3 * side * side) as u32;
    for word in [size, 0, 54, 40, side as u32, side as u32, 1 | 24 << 16, 0, 0, 0, 0, 0, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend((0..3 * side * side).map(|i| ((i * (number + 1) * 7919) >> 4) as u8));
    file.into()
}

fn work(image: Bytes, output: WorkOutput) -> Work {
    Work { input: WorkInput::Encoded(image), output, deadline: Instant::now() + Duration::from_secs(60) }
}

fn wait<T>(ticket: Ticket<T>) -> Result<T, WorkError> {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(ticket)
}

fn ask(engine: &Engine, work: Work) -> Result<Answer, WorkError> {
    wait(submit_one(engine, work).unwrap())
}

fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "it does not become true");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn submit_one(engine: &Engine, work: Work) -> Result<Ticket<Answer>, Refused> {
    Ok(engine.model(None).unwrap().submit(vec![work])?.remove(0))
}

#[test]
fn concurrent_images_get_their_own_answers() {
    // A busy machine may take long to decode the images of one request, which still form one batch.
    let engine = start(EngineOptions { max_delay: Some(Duration::from_secs(30)), ..options("cifar10") });
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
            for round in 0..8 {
                let number = (seed + 3 * round) % 10;
                let ticket = submit_one(&engine, work(bmp(number), WorkOutput::Logits)).unwrap();
                found.push((number, wait(ticket).unwrap()));
            }
            found
        })
    };
    let clients: Vec<_> = (0..8).map(client).collect();
    let mut found: Vec<(usize, Answer)> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
    let request = (0..4).map(|number| work(bmp(number), WorkOutput::Logits)).collect();
    let tickets = model.submit(request).unwrap();
    found.extend(tickets.into_iter().map(|ticket| wait(ticket).unwrap()).enumerate());
    assert!(found[64..].iter().all(|(_, answer)| answer.timing.batch == 4));
    for (number, answer) in found {
        let size = sizes.iter().position(|size| *size >= answer.timing.batch).unwrap();
        assert_eq!(answer.logits, expected[size][number], "image {number} in a batch of {}", answer.timing.batch);
    }
    let statistics = model.statistics();
    assert_eq!((statistics.answered, statistics.failed, statistics.waiting), (68, 0, 0));
    assert!(statistics.batches <= 65);
    assert_eq!(engine.pending(), 0);
}

#[test]
fn embeddings_are_those_of_the_facade() {
    let engine = start(options("cifar10"));
    for (pool, normalise) in
        [(Pool::Features, true), (Pool::Features, false), (Pool::Mean, true), (Pool::Patches, false)]
    {
        let mut alone = Embed::open("cifar10", pool, &ModelOptions::new()).unwrap();
        if normalise {
            alone = alone.normalised();
        }
        let expected = alone.embed(&[Image::from_encoded(&bmp(3)).unwrap()]).unwrap().remove(0);
        let found = ask(&engine, work(bmp(3), WorkOutput::Embedding { pool, normalise })).unwrap();
        assert_eq!(found.embedding, expected, "{pool:?}");
        assert_eq!((found.embedding_shape, found.logits), (alone.shape(), vec![]), "{pool:?}");
    }
    let unsuitable = ask(&engine, work(bmp(3), WorkOutput::Embedding { pool: Pool::Class, normalise: false }));
    assert_eq!(unsuitable.unwrap_err(), WorkError::Unsuitable("this model has no class token".into()));
}

#[test]
fn explanations_are_those_of_the_facade() {
    let engine = start(options("cifar10"));
    let model = engine.model(None).unwrap();
    assert_eq!(model.card().heads, [4; 7]);
    assert_eq!(model.card().methods.len(), 4);
    let deadline = Instant::now() + Duration::from_secs(60);
    let cases = [
        (None, 2, vec![]),
        (Some(Method::Gradient), 0, vec![7, 1]),
        (Some(Method::Attention { layer: Some(1), head: Some(2) }), 0, vec![]),
        (None, 1, vec![]),
    ];
    for (method, top, classes) in cases {
        let options = ExplainOptions { method, top, classes: classes.clone(), batch: 1 };
        let expected = Explain::open("cifar10", &options, &ModelOptions::new()).unwrap();
        let expected = { expected }.explain(&Image::from_encoded(&bmp(5)).unwrap()).unwrap();
        let what = ExplainWork { method, top, classes };
        let found = wait(model.explain(vec![bmp(5)], &what, deadline).unwrap().remove(0)).unwrap();
        assert_eq!(found.explanation, expected, "{method:?}");
        assert_eq!(found.image.width(), 32);
    }
    let what = ExplainWork { classes: vec![99], ..ExplainWork::default() };
    let error = wait(model.explain(vec![bmp(5)], &what, deadline).unwrap().remove(0)).err().unwrap();
    assert_eq!(error, WorkError::Unsuitable("there is no class 99; there are 0 to 9".into()));
}

#[test]
fn what_is_wrong_with_one_image_does_not_concern_the_others() {
    let engine = start(options("cifar10"));
    let model = engine.model(None).unwrap();
    let image = Image::from_encoded(&bmp(2)).unwrap();
    let tensor = model.preprocess().apply(&image).unwrap();
    let with = |input| Work { input, ..work(bmp(2), WorkOutput::All) };
    let inputs = vec![
        with(WorkInput::Tensor(tensor)),
        with(WorkInput::Encoded(Bytes::from_static(b"no image"))),
        with(WorkInput::Tensor(vec![0.0; 7])),
        work(bmp(2), WorkOutput::All),
    ];
    let answers: Vec<_> = model.submit(inputs).unwrap().into_iter().map(wait).collect();
    assert!(matches!(&answers[1], Err(WorkError::Image(text)) if text.starts_with("not an image")), "{:?}", answers[1]);
    assert!(matches!(answers[2], Err(WorkError::Length { found: 7, expected: 3072 })), "{:?}", answers[2]);
    let (first, last) = (answers[0].as_ref().unwrap(), answers[3].as_ref().unwrap());
    assert_eq!((&first.logits, first.embedding.len()), (&last.logits, 256));
    assert_eq!(model.predictions(&first.logits, 100).len(), 10);
    assert_eq!(model.statistics().failed, 2);
}

#[test]
fn the_queue_is_bounded_and_admits_a_request_whole_or_not_at_all() {
    let (engine, switch) = fragile(EngineOptions { queue: 4, ..options("cifar10") });
    let model = engine.model(None).unwrap();
    switch.set(Mode::Block);
    let runs = switch.runs();
    let submit = |count: usize| model.submit((0..count).map(|i| work(bmp(i), WorkOutput::Logits)).collect());
    let mut tickets = submit(1).unwrap();
    switch.wait_for_run(runs);
    tickets.extend(submit(3).unwrap());
    assert!(model.has_room(1).is_ok());
    assert!(matches!(submit(2), Err(Refused::Overloaded { .. })));
    tickets.extend(submit(1).unwrap());
    assert!(matches!(model.has_room(1), Err(Refused::Overloaded { .. })));
    assert_eq!(submit(5).err(), Some(Refused::TooMany { images: 5, queue: 4 }));
    assert_eq!((model.statistics().waiting, engine.pending()), (4, 5));
    // A client that goes makes room for another.
    drop(tickets.pop());
    tickets.extend(submit(1).unwrap());
    switch.set(Mode::Work);
    assert_eq!(tickets.into_iter().map(wait).filter(Result::is_ok).count(), 5);
    let statistics = model.statistics();
    assert_eq!((statistics.answered, statistics.failed, statistics.batches), (5, 0, 5));
    assert_eq!((statistics.waiting, engine.pending()), (0, 0));
}

#[test]
fn cancelled_and_late_images_are_neither_decoded_nor_run() {
    let (engine, switch) = fragile(EngineOptions { decoders: 1, ..options("cifar10") });
    let model = engine.model(None).unwrap();
    let runs = switch.runs();
    // The decoder is busy with a large image when the others are cancelled or late. Decoding them would count as failures.
    let garbage = || work(Bytes::from_static(b"no image"), WorkOutput::Logits);
    let late = Work { deadline: Instant::now(), ..garbage() };
    let works = vec![work(bmp_of(3000, 1), WorkOutput::Logits), garbage(), late];
    let mut tickets = model.submit(works).unwrap().into_iter();
    let first = tickets.next().unwrap();
    drop(tickets.next());
    assert_eq!(wait(tickets.next().unwrap()).unwrap_err(), WorkError::Deadline);
    wait(first).unwrap();
    let statistics = model.statistics();
    assert_eq!((statistics.answered, statistics.failed), (1, 1));
    // Decoded images that are cancelled while the device is busy do not run.
    switch.set(Mode::Block);
    let busy = submit_one(&engine, work(bmp(0), WorkOutput::Logits)).unwrap();
    switch.wait_for_run(runs + 1);
    drop(submit_one(&engine, work(bmp(1), WorkOutput::Logits)).unwrap());
    let last = submit_one(&engine, work(bmp(2), WorkOutput::Logits)).unwrap();
    switch.set(Mode::Work);
    wait(busy).unwrap();
    wait(last).unwrap();
    assert_eq!(switch.runs(), runs + 3);
    assert_eq!(model.statistics().batches, 3);
}

#[test]
fn a_failing_device_loses_its_work_and_may_come_back() {
    let (engine, switch) = fragile(options("cifar10"));
    assert_eq!(engine.readiness(), Readiness::Ready);
    switch.set(Mode::Fail);
    let error = ask(&engine, work(bmp(0), WorkOutput::Logits)).unwrap_err();
    assert!(matches!(&error, WorkError::DeviceLost(reason) if reason.contains("fallen off the bus")), "{error:?}");
    assert!(matches!(engine.readiness(), Readiness::Lost { model, .. } if model == "model"));
    let refused = submit_one(&engine, work(bmp(0), WorkOutput::Logits)).err();
    assert!(matches!(refused, Some(Refused::Lost(_))), "{refused:?}");
    switch.set(Mode::Work);
    wait_until(|| engine.readiness() == Readiness::Ready);
    ask(&engine, work(bmp(0), WorkOutput::Logits)).unwrap();
}

#[test]
fn a_device_that_hangs_does_not_hang_its_clients() {
    let (engine, switch) = fragile(options("cifar10"));
    let runs = switch.runs();
    switch.set(Mode::Block);
    let running = submit_one(&engine, work(bmp(0), WorkOutput::Logits)).unwrap();
    switch.wait_for_run(runs);
    let waiting = submit_one(&engine, work(bmp(1), WorkOutput::Logits)).unwrap();
    assert!(matches!(wait(running), Err(WorkError::DeviceLost(_))));
    assert!(matches!(wait(waiting), Err(WorkError::DeviceLost(_))));
    assert!(matches!(engine.readiness(), Readiness::Lost { .. }));
    assert_eq!(engine.pending(), 0);
    switch.set(Mode::Work);
    wait_until(|| engine.readiness() == Readiness::Ready);
    ask(&engine, work(bmp(0), WorkOutput::Logits)).unwrap();
}

#[test]
fn a_panic_fails_one_batch_alone() {
    let (engine, switch) = fragile(options("cifar10"));
    switch.set(Mode::Panic);
    let error = ask(&engine, work(bmp(0), WorkOutput::Logits)).unwrap_err();
    assert!(matches!(error, WorkError::Internal(_)), "{error:?}");
    assert_eq!(engine.readiness(), Readiness::Ready);
    switch.set(Mode::Work);
    ask(&engine, work(bmp(0), WorkOutput::Logits)).unwrap();
}

/// Saves the built-in model with another bias of its head.
fn save(folder: &Path, bias: f32) {
    let mut checkpoint = Checkpoint::open("cifar10".as_ref(), Default::default()).unwrap();
    checkpoint.weights.tensors.get_mut("head.bias").unwrap().data.fill(bias);
    checkpoint.save(folder, Layout::Timm, Dtype::F32).unwrap();
}

#[test]
fn a_reload_under_load_loses_nothing_and_a_broken_model_leaves_the_old() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("model");
    save(&folder, 0.0);
    let engine = start(options(&folder));
    let first = engine.model(None).unwrap().card().version.clone();
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|number| {
            let (engine, stop) = (engine.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut answers = 0;
                while !stop.load(Ordering::Relaxed) {
                    ask(&engine, work(bmp(number), WorkOutput::Logits)).unwrap();
                    answers += 1;
                }
                answers
            })
        })
        .collect();
    let before = ask(&engine, work(bmp(0), WorkOutput::Logits)).unwrap().logits;
    assert_eq!(engine.reload()[0].outcome.as_ref().unwrap(), &first, "nothing has changed");
    save(&folder, 1.0);
    let second = engine.reload().remove(0).outcome.unwrap();
    assert_ne!(first, second);
    let after = ask(&engine, work(bmp(0), WorkOutput::Logits)).unwrap().logits;
    assert!(before.iter().zip(&after).all(|(before, after)| (after - before - 1.0).abs() < 1e-3));
    std::fs::write(folder.join("model.safetensors"), "broken").unwrap();
    assert!(matches!(engine.reload().remove(0).outcome, Err(EngineError::Model { .. })));
    assert_eq!(engine.model(None).unwrap().card().version, second);
    stop.store(true, Ordering::Relaxed);
    let answers: u64 = clients.into_iter().map(|client| client.join().unwrap()).sum();
    let statistics = engine.model(None).unwrap().statistics();
    assert_eq!((statistics.answered, statistics.failed), (answers + 2, 0));
}

#[test]
fn draining_finishes_what_was_admitted() {
    let engine = start(options("cifar10"));
    let tickets =
        engine.model(None).unwrap().submit((0..8).map(|i| work(bmp(i), WorkOutput::Logits)).collect()).unwrap();
    engine.drain();
    assert_eq!(engine.readiness(), Readiness::Draining);
    assert_eq!(submit_one(&engine, work(bmp(0), WorkOutput::Logits)).err(), Some(Refused::Draining));
    assert!(tickets.into_iter().map(wait).all(|answer| answer.is_ok()));
    assert_eq!(engine.pending(), 0);
}

#[test]
fn models_have_names() {
    let named = |names: &[&str]| EngineOptions {
        models: names.iter().map(|name| ModelSource { name: name.to_string(), path: "cifar10".into() }).collect(),
        max_batch: 1,
        ..options("cifar10")
    };
    let engine = start(named(&["one", "two"]));
    let name = |model: Arc<ServedModel>| model.card().name.clone();
    assert_eq!(name(engine.model(None).unwrap()), "one");
    assert_eq!(name(engine.model(Some("two")).unwrap()), "two");
    let unknown = engine.model(Some("three")).err().unwrap().to_string();
    assert_eq!(unknown, "there is no model `three`; there are one, two");
    assert!(matches!(Engine::start(named(&["one", "one"])), Err(EngineError::SameName(_))));
    assert!(matches!(Engine::start(named(&[])), Err(EngineError::NoModels)));
}
