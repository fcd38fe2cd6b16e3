//! The fastest algorithm for every matrix product: timed once, remembered for the process and on disk.
//!
//! Which one is fastest depends on the minute, and each sums in an order of its own. So that a training run has the same
//! bits in every process, it keeps what was chosen ([`AlgorithmChoices::record`]) and gives it back ([`AlgorithmChoices::restore`]).

use std::collections::BTreeMap;

use cudarc::cublaslt::sys::cublasLtMatmulAlgo_t as Algorithm;
use cudarc::driver::sys::{self as cu, CUstream};
use vit_graph::GraphError;
use vit_graph::device::Algorithms;

use crate::compile::cache;
use crate::driver::info::DeviceInfo;
use crate::driver::{Gpu, check};
use crate::gemm::{CublasMatmul, MatrixProduct};
use crate::plan::storage::Storage;

/// How many algorithms are timed.
const CANDIDATES: usize = 8;

/// Timed runs of each, after one that is not; the fastest counts.
const RUNS: usize = 5;

/// Products with fewer operations take cuBLASLt's first suggestion: they last no longer than a launch.
const WORTH_TIMING: f64 = 1e8;

/// The algorithms chosen so far, by product.
pub(crate) struct AlgorithmChoices {
    /// The name of the file that remembers timings for other processes.
    file: String,
    /// Timed in this process or an earlier one.
    timed: BTreeMap<String, Algorithm>,
    /// In use in this process, also those that were not worth timing.
    used: BTreeMap<String, Algorithm>,
    /// Those that a training run was begun with.
    restored: BTreeMap<String, Algorithm>,
}

impl AlgorithmChoices {
    /// What an earlier run on the same GPU with the same libraries has found.
    pub fn remembered(info: &DeviceInfo) -> Self {
        let versions = format!("{} {} {}", info.name, info.driver, info.cublas);
        let file = format!("products-{}.txt", vit_system::hash::fingerprint(&[versions.as_bytes()]));
        let text = cache::read(&file).and_then(|content| String::from_utf8(content).ok()).unwrap_or_default();
        let timed = text.lines().filter_map(|line| line.rsplit_once('='));
        let timed = timed.filter_map(|(key, words)| Some((key.to_string(), parse(words)?))).collect();
        AlgorithmChoices { file, timed, used: BTreeMap::new(), restored: BTreeMap::new() }
    }

    /// What a product was given before: by the run that goes on, in this process, or in an earlier one.
    fn find(&self, key: &str) -> impl Iterator<Item = &Algorithm> {
        [&self.restored, &self.used, &self.timed].into_iter().filter_map(move |choices| choices.get(key))
    }

    fn remember(&mut self, key: String, algorithm: Algorithm) {
        self.timed.insert(key, algorithm);
        let lines = self.timed.iter().map(|(key, algorithm)| format!("{key}={}\n", notation(algorithm)));
        cache::write(&self.file, lines.collect::<String>().as_bytes());
    }

    /// Everything that the bits of this process's products depend on.
    pub fn record(&self, info: &DeviceInfo) -> Algorithms {
        let environment = [("GPU", &info.name), ("cuBLASLt", &info.cublas), ("NVRTC", &info.nvrtc)];
        let environment = environment.map(|(what, version)| (what.to_string(), version.clone()));
        let chosen = self.used.iter().chain(&self.restored).map(|(key, algorithm)| (key.clone(), notation(algorithm)));
        Algorithms { environment: environment.into(), chosen: chosen.collect() }
    }

    /// Prefers what another process recorded.
    pub fn restore(&mut self, algorithms: &Algorithms) {
        let parsed = algorithms.chosen.iter().filter_map(|(key, words)| Some((key.clone(), parse(words)?)));
        self.restored = parsed.collect();
    }
}

/// `word,word,…`, in hexadecimal.
fn notation(algorithm: &Algorithm) -> String {
    algorithm.data.map(|word| format!("{word:x}")).join(",")
}

fn parse(notation: &str) -> Option<Algorithm> {
    let words: Option<Vec<u64>> = notation.split(',').map(|word| u64::from_str_radix(word, 16).ok()).collect();
    Some(Algorithm { data: words?.try_into().ok()? })
}

/// Gives a product its algorithm; `None` where cuBLASLt has none for it.
pub(crate) fn choose(
    gpu: &Gpu,
    stream: CUstream,
    product: &MatrixProduct,
    mut gemm: CublasMatmul,
) -> Result<Option<CublasMatmul>, GraphError> {
    let key = product.key();
    let mut choices = gpu.choices();
    let chosen = choices.find(&key).find(|algorithm| gemm.accepts(gpu, algorithm)).copied();
    if let Some(algorithm) = chosen {
        choices.used.insert(key, algorithm);
        gemm.algorithm = algorithm;
        return Ok(Some(gemm));
    }
    let operations = 2.0 * product.m as f64 * product.n as f64 * product.k as f64 * product.batch as f64;
    let candidates = gemm.candidates(gpu, if operations < WORTH_TIMING { 1 } else { CANDIDATES })?;
    // For eight bits and for GELU cuBLASLt suggests algorithms without looking at addresses, and may refuse to run them.
    let certain = product.operand != Storage::E4m3 && !product.gelu;
    let mut best: Option<(f32, Algorithm)> = None;
    for candidate in &candidates {
        gemm.algorithm = *candidate;
        let time = if candidates.len() == 1 && certain { 0.0 } else { time(gpu, stream, &gemm)? };
        if time.is_finite() && best.is_none_or(|(fastest, _)| time < fastest) {
            best = Some((time, *candidate));
        }
    }
    let Some((_, algorithm)) = best else { return Ok(None) };
    if candidates.len() > 1 {
        choices.remember(key.clone(), algorithm);
    }
    choices.used.insert(key, algorithm);
    gemm.algorithm = algorithm;
    Ok(Some(gemm))
}

/// Milliseconds of the fastest of a few runs; an algorithm that does not run is infinitely slow.
fn time(gpu: &Gpu, stream: CUstream, gemm: &CublasMatmul) -> Result<f32, GraphError> {
    let (start, end) = (Event::new()?, Event::new()?);
    let mut fastest = f32::INFINITY;
    for run in 0..=RUNS {
        start.record(stream)?;
        if gemm.enqueue(gpu, stream).is_err() {
            return Ok(f32::INFINITY);
        }
        end.record(stream)?;
        end.wait()?;
        if run > 0 {
            fastest = fastest.min(end.milliseconds_since(&start)?);
        }
    }
    Ok(fastest)
}

/// A point in a stream, whose time can be read.
pub(crate) struct Event(cu::CUevent);

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// A new event in the current context.
    pub fn new() -> Result<Self, GraphError> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the pointer is to a live variable.
        check(unsafe { cu::cuEventCreate(&mut event, 0) }, "creating an event")?;
        Ok(Event(event))
    }

    pub fn record(&self, stream: CUstream) -> Result<(), GraphError> {
        // SAFETY: both are live.
        check(unsafe { cu::cuEventRecord(self.0, stream) }, "recording an event")
    }

    /// Lets what follows in another stream wait for the point recorded last.
    pub fn hold(&self, stream: CUstream) -> Result<(), GraphError> {
        // SAFETY: both are live.
        check(unsafe { cu::cuStreamWaitEvent(stream, self.0, 0) }, "waiting for an event")
    }

    /// Waits until the stream has come past the point recorded last.
    pub fn wait(&self) -> Result<(), GraphError> {
        // SAFETY: the event is live.
        check(unsafe { cu::cuEventSynchronize(self.0) }, "running")
    }

    pub fn milliseconds_since(&self, start: &Event) -> Result<f32, GraphError> {
        let mut milliseconds = 0.0;
        // SAFETY: both are live, the pointer is to a live number.
        check(unsafe { cu::cuEventElapsedTime_v2(&mut milliseconds, start.0, self.0) }, "reading the time")?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event was created and is not used any more.
        unsafe { cu::cuEventDestroy_v2(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_as_they_were_written() {
        let algorithm = Algorithm { data: [1, 2, 3, 4, 5, 6, 7, 255] };
        assert_eq!(parse(&notation(&algorithm)).unwrap().data, algorithm.data);
        for wrong in ["", "word", "1,2", "1,2,3,4,5,6,7,x", "1,2,3,4,5,6,7,8,9"] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }
}
