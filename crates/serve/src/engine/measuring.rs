//! The time of one run for every compiled batch size, measured when a model is opened.

use std::time::{Duration, Instant};

use vit::{Error, Model};

use super::batching::BatchTimes;

/// Runs before measuring: a GPU loads kernels in the first and captures the second as a CUDA graph.
const WARM_UP: usize = 2;

/// Runs that are measured, while they take less than [`ENOUGH`] together.
const RUNS: usize = 5;
const ENOUGH: Duration = Duration::from_millis(100);

/// The shortest of a few runs on blank images, for each size.
pub(super) fn measure(model: &mut Model, sizes: &[usize]) -> Result<BatchTimes, Error> {
    let blank = vec![0.0; model.preprocess().output_len()];
    let name = model.outputs()[0].0.clone();
    let mut times = BatchTimes::new();
    for &size in sizes {
        let images = vec![blank.as_slice(); size];
        let mut run = || {
            let start = Instant::now();
            model.stage(&images)?;
            model.start()?;
            model.output(&name, 1)?;
            Ok::<Duration, Error>(start.elapsed())
        };
        let mut shortest = run()?;
        for _ in 1..WARM_UP {
            if shortest < ENOUGH {
                shortest = run()?;
            }
        }
        let start = Instant::now();
        for _ in 0..RUNS {
            shortest = shortest.min(run()?);
            if start.elapsed() >= ENOUGH {
                break;
            }
        }
        times.push((size, shortest));
    }
    Ok(times)
}
