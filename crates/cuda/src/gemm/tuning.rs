//! The algorithm of every matrix product: for large ones the fastest, timed once, cached for the process and on disk.
//!
//! Timings vary, and each algorithm sums in another order. So that a training run has the same bits in every process,
//! it saves the choices ([`AlgorithmChoices::record`]) and restores them ([`AlgorithmChoices::restore`]).

use std::collections::BTreeMap;

use cudarc::cublaslt::sys::cublasLtMatmulAlgo_t as Algorithm;
use vit_graph::GraphError;
use vit_graph::device::Algorithms;

use crate::compile::cache;
use crate::driver::info::DeviceInfo;
use crate::driver::{Event, Gpu, Stream};
use crate::gemm::{CublasMatmul, MatrixProduct};
use crate::plan::storage::Storage;

/// Suggestions of cuBLASLt that are timed.
const CANDIDATES: usize = 8;

/// Timed runs of each suggestion, after one warm-up; the fastest counts.
const RUNS: usize = 5;

/// Products of fewer FLOPs take cuBLASLt's first suggestion: they last about as long as a launch.
const MIN_TIMED_FLOPS: f64 = 1e8;

/// The algorithms chosen so far, by [`MatrixProduct::key`].
pub(crate) struct AlgorithmChoices {
    /// The name of the cache file.
    file: String,
    /// Timed in this process or an earlier one.
    timed: BTreeMap<String, Algorithm>,
    /// Used in this process, including those that were not timed.
    used: BTreeMap<String, Algorithm>,
    /// Restored from a training run.
    restored: BTreeMap<String, Algorithm>,
}

impl AlgorithmChoices {
    /// The choices of earlier processes on the same GPU with the same libraries.
    pub fn cached(info: &DeviceInfo) -> Self {
        let versions = format!("{} {} {}", info.name, info.driver, info.cublas);
        let file = format!("products-{}.txt", vit_system::hash::fingerprint(&[versions.as_bytes()]));
        let text = cache::read(&file).and_then(|content| String::from_utf8(content).ok()).unwrap_or_default();
        let timed = text.lines().filter_map(|line| line.rsplit_once('='));
        let timed = timed.filter_map(|(key, words)| Some((key.to_string(), parse(words)?))).collect();
        AlgorithmChoices { file, timed, used: BTreeMap::new(), restored: BTreeMap::new() }
    }

    /// Earlier choices for a product, the preferred first: of the restored run, of this process, of earlier processes.
    fn find(&self, key: &str) -> impl Iterator<Item = &Algorithm> {
        [&self.restored, &self.used, &self.timed].into_iter().filter_map(move |choices| choices.get(key))
    }

    fn remember(&mut self, key: String, algorithm: Algorithm) {
        self.timed.insert(key, algorithm);
        let lines = self.timed.iter().map(|(key, algorithm)| format!("{key}={}\n", notation(algorithm)));
        cache::write(&self.file, lines.collect::<String>().as_bytes());
    }

    /// Everything that decides in which order products sum: libraries, the choices of this process, and restored
    /// choices that it has not used.
    pub fn record(&self, info: &DeviceInfo) -> Algorithms {
        let environment = [("GPU", &info.name), ("cuBLASLt", &info.cublas), ("NVRTC", &info.nvrtc)];
        let environment = environment.map(|(what, version)| (what.to_string(), version.clone()));
        let chosen = self.restored.iter().chain(&self.used).map(|(key, algorithm)| (key.clone(), notation(algorithm)));
        Algorithms { environment: environment.into(), chosen: chosen.collect() }
    }

    /// Prefers the choices that another process recorded.
    pub fn restore(&mut self, algorithms: &Algorithms) {
        let parsed = algorithms.chosen.iter().filter_map(|(key, words)| Some((key.clone(), parse(words)?)));
        self.restored = parsed.collect();
    }
}

/// `word,word,…` in hexadecimal.
fn notation(algorithm: &Algorithm) -> String {
    algorithm.data.map(|word| format!("{word:x}")).join(",")
}

fn parse(notation: &str) -> Option<Algorithm> {
    let words: Option<Vec<u64>> = notation.split(',').map(|word| u64::from_str_radix(word, 16).ok()).collect();
    Some(Algorithm { data: words?.try_into().ok()? })
}

/// Sets the algorithm of `matmul`, which describes `product`; `None` where cuBLASLt has none. Timing overwrites the
/// product's result.
///
/// # Safety
///
/// As for [`CublasMatmul::enqueue`].
pub(crate) unsafe fn choose(
    gpu: &Gpu,
    stream: &Stream,
    product: &MatrixProduct,
    mut matmul: CublasMatmul,
) -> Result<Option<CublasMatmul>, GraphError> {
    let key = product.key();
    let mut algorithms = gpu.gemm_algorithms();
    let chosen = algorithms.find(&key).find(|algorithm| matmul.accepts(gpu, algorithm)).copied();
    if let Some(algorithm) = chosen {
        algorithms.used.insert(key, algorithm);
        matmul.algorithm = algorithm;
        return Ok(Some(matmul));
    }
    let flops = 2.0 * product.m as f64 * product.n as f64 * product.k as f64 * product.batch as f64;
    let candidates = matmul.candidates(gpu, if flops < MIN_TIMED_FLOPS { 1 } else { CANDIDATES })?;
    // For fp8 and for GELU, cuBLASLt's heuristic ignores the alignment of addresses: a suggestion may fail to run.
    let sure_to_run = product.operand != Storage::E4m3 && !product.gelu;
    let mut best: Option<(f32, Algorithm)> = None;
    for candidate in &candidates {
        matmul.algorithm = *candidate;
        let time = if candidates.len() == 1 && sure_to_run {
            0.0
        } else {
            // SAFETY: as for this function.
            unsafe { time(gpu, stream, &matmul)? }
        };
        if time.is_finite() && best.is_none_or(|(fastest, _)| time < fastest) {
            best = Some((time, *candidate));
        }
    }
    let Some((_, algorithm)) = best else { return Ok(None) };
    if candidates.len() > 1 {
        algorithms.remember(key.clone(), algorithm);
    }
    algorithms.used.insert(key, algorithm);
    matmul.algorithm = algorithm;
    Ok(Some(matmul))
}

/// Milliseconds of the fastest of a few runs; infinite for an algorithm that does not run.
///
/// # Safety
///
/// As for [`CublasMatmul::enqueue`].
unsafe fn time(gpu: &Gpu, stream: &Stream, matmul: &CublasMatmul) -> Result<f32, GraphError> {
    let (start, end) = (Event::new()?, Event::new()?);
    let mut fastest = f32::INFINITY;
    for run in 0..=RUNS {
        start.record(stream)?;
        // SAFETY: as for this function.
        if unsafe { matmul.enqueue(gpu, stream) }.is_err() {
            return Ok(f32::INFINITY);
        }
        end.record(stream)?;
        end.synchronize()?;
        if run > 0 {
            fastest = fastest.min(end.milliseconds_since(&start)?);
        }
    }
    Ok(fastest)
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
