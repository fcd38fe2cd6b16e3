//! The time of one run for every compiled batch size, measured when a model is opened.

use std::time::{Duration, Instant};

use vit::{Error, Model};

use super::batching::BatchTimes;

/// Runs before measuring: a GPU loads kernels in the first and captures the second as a CUDA graph.
const WARM_UP: usize = 2;

/// A size is measured for so long, with at least [`RUNS`] runs.
const ENOUGH: Duration = Duration::from_millis(150);
const RUNS: usize = 2;

/// The median of a few runs on blank images, for each size. The shortest would favour small sizes, which have more runs.
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
        let mut last = run()?;
        for _ in 1..WARM_UP {
            if last < ENOUGH {
                last = run()?;
            }
        }
        let (start, mut runs) = (Instant::now(), Vec::new());
        while runs.len() < RUNS || start.elapsed() < ENOUGH {
            runs.push(run()?);
        }
        runs.sort_unstable();
        times.push((size, runs[(runs.len() - 1) / 2]));
    }
    Ok(times)
}
