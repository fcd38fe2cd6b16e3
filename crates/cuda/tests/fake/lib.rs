//! A fake of the NVIDIA driver, NVRTC and cuBLASLt, for tests of their failures: it accepts every call, computes
//! nothing, and fails as the environment variable `FAKE_CUDA` selects.
//!
//! - `old`: the driver is for CUDA 11.8
//! - `mismatch`: the driver's library and kernel module have different versions
//! - `none`: there is no GPU
//! - `small`: the GPU has a megabyte of memory
//! - `uncompiled`: no kernel can be compiled
//! - `fast:N`: of the three algorithms for a product, the Nth is the fastest
//! - `lost:N`: from the Nth run on, every call fails as after an illegal address

// Every function has the signature and the requirements of the real one.
#![allow(clippy::missing_safety_doc, clippy::not_unsafe_ptr_arg_deref, missing_docs)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const OUT_OF_MEMORY: c_int = 2;
const NO_DEVICE: c_int = 100;
const ILLEGAL_ADDRESS: c_int = 700;
const MISMATCH: c_int = 803;
const COMPILATION: c_int = 6;
const EXECUTION_FAILED: c_int = 13;

static RUNS: AtomicUsize = AtomicUsize::new(0);
static MULTIPLIED_BY: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicBool = AtomicBool::new(false);
static BLOCKS: Mutex<Option<HashMap<u64, usize>>> = Mutex::new(None);

fn behaviour() -> String {
    std::env::var("FAKE_CUDA").unwrap_or_default()
}

fn alive() -> c_int {
    if LOST.load(Ordering::Relaxed) { ILLEGAL_ADDRESS } else { 0 }
}

/// Counts a run; with `lost:N`, fails from the Nth on.
fn run() -> c_int {
    let count = RUNS.fetch_add(1, Ordering::Relaxed) + 1;
    if behaviour().strip_prefix("lost:").and_then(|n| n.parse().ok()).is_some_and(|n: usize| count >= n) {
        LOST.store(true, Ordering::Relaxed);
    }
    alive()
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
pub struct Suggestion {
    algorithm: [u64; 8],
    rest: [u64; 4],
}

/// Suggests up to three algorithms, 1, 2 and 3.
fn suggest(results: *mut Suggestion, most: c_int) -> c_int {
    let count = most.min(3);
    for number in 0..count as usize {
        // SAFETY: the caller has room for `most` results.
        unsafe { (*results.add(number)).algorithm = [number as u64 + 1; 8] };
    }
    count
}

/// Stores the algorithm of the last product.
fn multiply(algorithm: *const [u64; 8]) -> c_int {
    // SAFETY: the caller passes one of the suggested algorithms.
    MULTIPLIED_BY.store(unsafe { (*algorithm)[0] } as usize, Ordering::Relaxed);
    0
}

/// Milliseconds of the last product: fewer with the algorithm N of `fast:N`.
fn duration() -> f32 {
    let fast = behaviour().strip_prefix("fast:").and_then(|number| number.parse().ok());
    if fast == Some(MULTIPLIED_BY.load(Ordering::Relaxed)) { 0.5 } else { 1.0 }
}

fn put<T>(to: *mut T, value: T) -> c_int {
    // SAFETY: the caller passes a valid pointer for the result, as to the real function.
    unsafe { to.write(value) };
    0
}

fn memory() -> usize {
    if behaviour() == "small" { 1 << 20 } else { 4 << 30 }
}

fn used() -> usize {
    BLOCKS.lock().unwrap().iter().flat_map(|blocks| blocks.values()).sum()
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.max(1), 256).unwrap()
}

fn take(bytes: usize) -> u64 {
    // SAFETY: the layout is not empty.
    let address = unsafe { alloc_zeroed(layout(bytes)) } as u64;
    BLOCKS.lock().unwrap().get_or_insert_default().insert(address, bytes);
    address
}

fn give_back(address: u64) {
    if let Some(bytes) = BLOCKS.lock().unwrap().get_or_insert_default().remove(&address) {
        // SAFETY: the block was allocated by `take` with this layout.
        unsafe { dealloc(address as *mut u8, layout(bytes)) };
    }
}

fn copy(to: u64, from: u64, bytes: usize) -> c_int {
    if alive() == 0 {
        // SAFETY: the caller passes valid ranges, as to the real function.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
    }
    alive()
}

fn text(to: *mut *const c_char, text: &str) -> c_int {
    put(to, CString::new(text).unwrap().into_raw().cast_const())
}

/// Defines C functions.
macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) $body:expr;)*) => {
        $(#[unsafe(no_mangle)] #[allow(non_snake_case)]
        pub extern "C" fn $name($($argument: $type),*) -> c_int { $body })*
    };
}

type Pointer = *mut c_void;

functions! {
    cuInit(_flags: c_uint) match behaviour().as_str() { "mismatch" => MISMATCH, "none" => NO_DEVICE, _ => 0 };
    cuDriverGetVersion(to: *mut c_int) put(to, if behaviour() == "old" { 11080 } else { 13000 });
    cuDeviceGetCount(to: *mut c_int) put(to, 1);
    cuDeviceGet(to: *mut c_int, _n: c_int) put(to, 0);
    cuDeviceGetName(to: *mut c_char, _length: c_int, _device: c_int) put(to, 0);
    cuDeviceTotalMem_v2(to: *mut usize, _device: c_int) put(to, memory());
    // 75 and 76 are the compute capability, 16 the multiprocessors.
    cuDeviceGetAttribute(to: *mut c_int, which: c_int, _device: c_int) put(to, match which { 75 => 8, 76 => 9, _ => 16 });
    cuDevicePrimaryCtxRetain(to: *mut Pointer, _device: c_int) put(to, to.cast());
    cuDevicePrimaryCtxRelease_v2(_device: c_int) 0;
    cuCtxSetCurrent(_context: Pointer) alive();
    cuGetErrorString(error: c_int, to: *mut *const c_char) text(to, &format!("error number {error}"));
    cuGetErrorName(error: c_int, to: *mut *const c_char) text(to, &format!("CUDA_ERROR_{error}"));
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) put(free, memory() - used()) + put(total, memory());
    cuMemAlloc_v2(to: *mut u64, bytes: usize) if used() + bytes > memory() { OUT_OF_MEMORY } else { put(to, take(bytes)) };
    cuMemFree_v2(address: u64) { give_back(address); alive() };
    cuMemHostAlloc(to: *mut u64, bytes: usize, _flags: c_uint) put(to, take(bytes));
    cuMemFreeHost(address: u64) { give_back(address); alive() };
    cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) copy(to, from, bytes);
    cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) copy(to, from, bytes);
    cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, _stream: Pointer) copy(to, from, bytes);
    cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, _stream: Pointer) copy(to, from, bytes);
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, _stream: Pointer) copy(to, from, bytes);
    cuMemsetD8Async(_to: u64, _value: u8, _bytes: usize, _stream: Pointer) alive();
    cuStreamCreate(to: *mut Pointer, _flags: c_uint) put(to, to.cast());
    cuStreamDestroy_v2(_stream: Pointer) alive();
    cuStreamSynchronize(_stream: Pointer) alive();
    cuStreamWaitEvent(_stream: Pointer, _event: Pointer, _flags: c_uint) alive();
    cuStreamBeginCapture_v2(_stream: Pointer, _mode: c_int) alive();
    cuStreamEndCapture(_stream: Pointer, to: *mut Pointer) put(to, to.cast());
    cuGraphInstantiateWithFlags(to: *mut Pointer, _graph: Pointer, _flags: u64) put(to, to.cast());
    cuGraphDestroy(_graph: Pointer) 0;
    cuGraphExecDestroy(_graph: Pointer) 0;
    cuGraphLaunch(_graph: Pointer, _stream: Pointer) run();
    cuEventCreate(to: *mut Pointer, _flags: c_uint) put(to, to.cast());
    cuEventDestroy_v2(_event: Pointer) alive();
    cuEventRecord(_event: Pointer, _stream: Pointer) alive();
    cuEventSynchronize(_event: Pointer) alive();
    cuEventElapsedTime_v2(to: *mut f32, _start: Pointer, _end: Pointer) put(to, duration());
    cuModuleLoadData(to: *mut Pointer, _image: Pointer) put(to, to.cast());
    cuModuleUnload(_module: Pointer) 0;
    cuModuleGetFunction(to: *mut Pointer, _module: Pointer, _name: *const c_char) put(to, to.cast());
    cuFuncSetAttribute(_function: Pointer, _attribute: c_int, _value: c_int) alive();
    cuLaunchKernel(
        _function: Pointer, _x: c_uint, _y: c_uint, _z: c_uint, _a: c_uint, _b: c_uint, _c: c_uint, _shared: c_uint,
        _stream: Pointer, _arguments: Pointer, _more: Pointer
    ) alive();

    nvrtcVersion(major: *mut c_int, minor: *mut c_int) put(major, 13) + put(minor, 0);
    nvrtcGetNumSupportedArchs(to: *mut c_int) put(to, 1);
    nvrtcGetSupportedArchs(to: *mut c_int) put(to, 89);
    nvrtcCreateProgram(
        to: *mut Pointer, _text: Pointer, _name: Pointer, _headers: c_int, _a: Pointer, _b: Pointer
    ) put(to, to.cast());
    nvrtcDestroyProgram(_program: *mut Pointer) 0;
    nvrtcCompileProgram(_program: Pointer, _count: c_int, _options: Pointer) {
        if behaviour() == "uncompiled" { COMPILATION } else { 0 }
    };
    nvrtcGetProgramLogSize(_program: Pointer, to: *mut usize) put(to, 1);
    nvrtcGetProgramLog(_program: Pointer, to: *mut u8) put(to, 0);
    nvrtcGetCUBINSize(_program: Pointer, to: *mut usize) put(to, 1);
    nvrtcGetCUBIN(_program: Pointer, to: *mut u8) put(to, 0);

    cublasLtCreate(to: *mut Pointer) put(to, to.cast());
    cublasLtDestroy(_handle: Pointer) 0;
    cublasLtMatmulDescCreate(to: *mut Pointer, _compute: c_int, _scale: c_int) put(to, to.cast());
    cublasLtMatmulDescDestroy(_description: Pointer) 0;
    cublasLtMatmulDescSetAttribute(_description: Pointer, _which: c_int, _value: Pointer, _bytes: usize) 0;
    cublasLtMatrixLayoutCreate(to: *mut Pointer, _type: c_int, _rows: u64, _columns: u64, _step: i64) put(to, to.cast());
    cublasLtMatrixLayoutDestroy(_layout: Pointer) 0;
    cublasLtMatrixLayoutSetAttribute(_layout: Pointer, _which: c_int, _value: Pointer, _bytes: usize) 0;
    cublasLtMatmulPreferenceCreate(to: *mut Pointer) put(to, to.cast());
    cublasLtMatmulPreferenceDestroy(_preference: Pointer) 0;
    cublasLtMatmulPreferenceSetAttribute(_preference: Pointer, _which: c_int, _value: Pointer, _bytes: usize) 0;
    cublasLtMatmulAlgoGetHeuristic(
        _handle: Pointer, _description: Pointer, _a: Pointer, _b: Pointer, _c: Pointer, _d: Pointer, _preference: Pointer,
        most: c_int, results: *mut Suggestion, found: *mut c_int
    ) put(found, suggest(results, most));
    cublasLtMatmulAlgoCheck(
        _handle: Pointer, _description: Pointer, _a: Pointer, _b: Pointer, _c: Pointer, _d: Pointer, _algorithm: Pointer,
        _result: Pointer
    ) 0;
    cublasLtMatmul(
        _handle: Pointer, _description: Pointer, _alpha: Pointer, _a: Pointer, _layout_a: Pointer, _b: Pointer,
        _layout_b: Pointer, _beta: Pointer, _c: Pointer, _layout_c: Pointer, _d: Pointer, _layout_d: Pointer,
        algorithm: *const [u64; 8], _workspace: Pointer, _bytes: usize, _stream: Pointer
    ) if alive() == 0 { multiply(algorithm) } else { EXECUTION_FAILED };
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    130_000
}
