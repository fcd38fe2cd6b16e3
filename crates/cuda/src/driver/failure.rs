//! Failures of the driver and of cuBLASLt as errors with hints.

use cudarc::cublaslt::sys::cublasStatus_t as Status;
use cudarc::driver::sys::CUresult;
use vit_graph::device::Memory;
use vit_graph::{GraphError, Hint};

use crate::driver::{NAME, error, error_with_hints};

/// The error of a driver call that failed while `doing` something; `text` is the driver's message.
pub(crate) fn of_driver(result: CUresult, doing: &str, text: &str) -> GraphError {
    if is_lost(result) {
        return lost(doing, text);
    }
    match result {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => error_with_hints(
            format!("the GPU ran out of memory while {doing}"),
            &[Hint::SmallerBatch, Hint::FreeDeviceMemory],
        ),
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
        | CUresult::CUDA_ERROR_INVALID_PTX
        | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        | CUresult::CUDA_ERROR_INVALID_IMAGE => error(format!(
            "{doing} failed: {text}; the driver is older than the CUDA toolkit that compiles kernels: update the driver"
        )),
        _ => error(format!("{doing} failed: {text}")),
    }
}

/// Whether the context is lost: every later call of this process fails as well.
fn is_lost(result: CUresult) -> bool {
    matches!(
        result,
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_DEINITIALIZED
            | CUresult::CUDA_ERROR_SYSTEM_NOT_READY
            | CUresult::CUDA_ERROR_EXTERNAL_DEVICE
            | CUresult::CUDA_ERROR_MPS_RPC_FAILURE
            | CUresult::CUDA_ERROR_UNKNOWN
    )
}

fn lost(doing: &str, text: &str) -> GraphError {
    error(format!(
        "the GPU was lost while {doing}: {text}; start the program again, and if it happens again look at `nvidia-smi` \
         and the system's log"
    ))
}

/// The error of a call of cuBLASLt.
pub(crate) fn of_cublas(status: Status, doing: &str) -> GraphError {
    match status {
        // In a lost context cuBLASLt returns one of these, which do not say more.
        Status::CUBLAS_STATUS_EXECUTION_FAILED | Status::CUBLAS_STATUS_INTERNAL_ERROR => {
            lost(doing, &format!("cuBLASLt says {status:?}"))
        }
        Status::CUBLAS_STATUS_ALLOC_FAILED => {
            error_with_hints(format!("cuBLASLt ran out of memory while {doing}"), &[Hint::SmallerBatch])
        }
        _ => error(format!("cuBLASLt failed while {doing} ({status:?})")),
    }
}

/// A graph that needs more memory than is free.
pub(crate) fn too_large(wanted: Memory, (free, total): (usize, usize), training: Option<Training>) -> GraphError {
    let gb = |bytes: usize| bytes as f64 / 1e9;
    let (what, stored) = match training {
        None => ("this model", "weights"),
        Some(_) => ("a training step", "weights and optimiser"),
    };
    let mut hints = vec![Hint::SmallerBatch];
    if let Some(Training { recomputes }) = training {
        hints.push(Hint::MicroBatches);
        hints.extend((!recomputes).then_some(Hint::RecomputeActivations));
    }
    hints.push(Hint::FreeDeviceMemory);
    GraphError::Memory {
        device: NAME,
        what: format!(
            "{what} needs {:.2} GB of GPU memory ({:.2} for {stored}, {:.2} for activations), and {:.2} of {:.2} GB are \
             free",
            gb(wanted.stored_bytes + wanted.arena_bytes),
            gb(wanted.stored_bytes),
            gb(wanted.arena_bytes),
            gb(free),
            gb(total)
        ),
        hints,
    }
}

/// A training step that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Training {
    /// Whether it recomputes activations already.
    pub recomputes: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_gpu_differs_from_a_failed_call() {
        let text = |result| of_driver(result, "running", "it says so").to_string();
        for result in [
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
            CUresult::CUDA_ERROR_UNKNOWN,
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
        ] {
            assert!(
                is_lost(result) && text(result).contains("the GPU was lost while running: it says so"),
                "{result:?}"
            );
        }
        assert_eq!(text(CUresult::CUDA_ERROR_INVALID_VALUE), "cuda: running failed: it says so");
        assert!(text(CUresult::CUDA_ERROR_OUT_OF_MEMORY).contains("smaller batch"));
        assert!(text(CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION).contains("update the driver"));
    }

    #[test]
    fn too_little_memory_is_an_error_with_sizes_and_hints() {
        let wanted = Memory { stored_bytes: 1_500_000_000, arena_bytes: 59_730_000_000 };
        let free = (44_100_000_000, 80_000_000_000);
        assert_eq!(
            too_large(wanted, free, Some(Training { recomputes: false })).to_string(),
            "cuda: a training step needs 61.23 GB of GPU memory (1.50 for weights and optimiser, 59.73 for activations), \
             and 44.10 of 80.00 GB are free; take a smaller batch, split the batch into micro-batches, recompute \
             activations in the backward pass, or close other programs that use the GPU"
        );
        let recomputing = too_large(wanted, free, Some(Training { recomputes: true }));
        assert_eq!(recomputing.hints(), [Hint::SmallerBatch, Hint::MicroBatches, Hint::FreeDeviceMemory]);
        assert!(too_large(wanted, free, None).to_string().contains("1.50 for weights, 59.73"));
    }
}
