//! Matrix products by cuBLASLt, or by a plain kernel where it supports no such product.

pub(crate) mod tuning;

use cudarc::cublaslt::sys::{
    self as lt, cublasComputeType_t as Compute, cublasLtEpilogue_t as Epilogue,
    cublasLtMatmulDescAttributes_t as DescAttribute, cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute,
    cublasLtMatrixLayoutAttribute_t as LayoutAttribute, cublasStatus_t as Status, cudaDataType,
};
use vit_graph::GraphError;

use crate::Precision;
use crate::compile::{self, KernelVariant};
use crate::driver::{Gpu, Stream, failure};
use crate::plan::storage::Storage;
use crate::run::arguments::{CStruct, KernelArguments};
use crate::run::launch::{KernelLaunch, ReadyLaunch};

/// Bytes of workspace for cuBLASLt: NVIDIA's recommendation for Hopper.
pub(crate) const WORKSPACE: usize = 32 << 20;

/// A row-major matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Matrix {
    pub address: u64,
    /// The leading dimension: elements from one row to the next.
    pub ld: usize,
    /// Whether the product takes its transpose.
    pub transposed: bool,
    /// Elements from one matrix of a batch to the next.
    pub batch_stride: usize,
}

impl Matrix {
    /// One matrix, not transposed. If it is some columns of a wider one, `ld` is the width of the wider one.
    pub fn with_ld(address: u64, ld: usize) -> Self {
        Matrix { address, ld, transposed: false, batch_stride: 0 }
    }
}

/// The addresses of f32 factors of e4m3 matrices; 0 where there is none. `a` and `b` dequantise the operands (they are
/// the inverses of quantisation scales), `d` quantises the result.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct QuantisationScales {
    pub a: u64,
    pub b: u64,
    pub d: u64,
}

/// `d = op(a) · op(b) + bias + c`, or GELU of that, over a batch. `op(a)` is `[m, k]`, `op(b)` `[k, n]`.
#[derive(Debug, Clone)]
pub(crate) struct MatrixProduct {
    pub batch: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: Matrix,
    pub b: Matrix,
    pub scales: QuantisationScales,
    /// Whether GELU follows, in the form with tanh, the only one in cuBLASLt. Only in [`Request::Fused`], since the
    /// plain kernel has no GELU.
    ///
    /// [`Request::Fused`]: crate::run::launch::Request::Fused
    pub gelu: bool,
    /// Added to every row; stored as [`MatrixProduct::addend_storage`].
    pub bias: Option<u64>,
    /// Added to the result; stored as [`MatrixProduct::addend_storage`]. It may be `d`.
    pub c: Option<Matrix>,
    pub d: Matrix,
    /// The storage type of `a` and `b`.
    pub operand: Storage,
    /// The storage type of `d`.
    pub result: Storage,
    pub precision: Precision,
    /// The address of [`WORKSPACE`] bytes.
    pub workspace: u64,
}

impl MatrixProduct {
    /// The storage type of bias and `c`: that of the result, or bf16 where that is e4m3.
    pub fn addend_storage(&self) -> Storage {
        if self.result == Storage::E4m3 { Storage::Bf16 } else { self.result }
    }

    /// Everything that the choice of an algorithm depends on, as text: the key of the choices, also in files.
    pub fn key(&self) -> String {
        let matrix = |m: &Matrix| format!("{}{}/{}", if m.transposed { "t" } else { "n" }, m.ld, m.batch_stride);
        let c = self.c.as_ref().map_or("-".into(), matrix);
        format!(
            "{:?} {} {} {}x{}x{}x{} {} {} {c} {} {} {}",
            self.precision,
            self.operand.name(),
            self.result.name(),
            self.batch,
            self.m,
            self.n,
            self.k,
            matrix(&self.a),
            matrix(&self.b),
            matrix(&self.d),
            match (self.bias, self.gelu) {
                (None, false) => "-",
                (None, true) => "gelu",
                (Some(_), false) => "bias",
                (Some(_), true) => "bias+gelu",
            },
            self.alignment(),
        )
    }

    /// The alignment in bytes, at most 256, that all matrices have.
    fn alignment(&self) -> u32 {
        let addresses = [Some(self.a.address), Some(self.b.address), Some(self.d.address), self.c.map(|c| c.address)];
        addresses.iter().flatten().map(|a| 1 << a.trailing_zeros().min(8)).min().unwrap_or(256)
    }

    /// Chooses an algorithm, or the plain kernel where cuBLASLt has none. May run the product in the stream, to time
    /// it.
    ///
    /// # Safety
    ///
    /// As for [`CublasMatmul::enqueue`].
    pub unsafe fn resolve(self, gpu: &Gpu, stream: &Stream) -> Result<ReadyLaunch, GraphError> {
        // SAFETY: as for this function.
        match unsafe { self.resolve_with_cublas(gpu, stream) }? {
            Some(matmul) => Ok(ReadyLaunch::Matmul(matmul)),
            None => self.plain().resolve(gpu),
        }
    }

    /// The product with the algorithm that was chosen for it; `None` where cuBLASLt has none.
    ///
    /// # Safety
    ///
    /// As for [`CublasMatmul::enqueue`].
    pub unsafe fn resolve_with_cublas(&self, gpu: &Gpu, stream: &Stream) -> Result<Option<CublasMatmul>, GraphError> {
        match CublasMatmul::new(self)? {
            // SAFETY: as for this function.
            Some(matmul) if self.k > 0 => unsafe { tuning::choose(gpu, stream, self, matmul) },
            _ => Ok(None),
        }
    }

    fn plain(&self) -> KernelLaunch {
        let strides = |m: &Matrix| {
            let (rows, columns) = if m.transposed { (1, m.ld) } else { (m.ld, 1) };
            CStruct::new().u64s(&[rows, columns, m.batch_stride])
        };
        let c = self.c.unwrap_or(Matrix::with_ld(0, 0));
        KernelLaunch {
            variant: KernelVariant::new(&compile::GEMM)
                .with("X", self.operand.name())
                .with("Y", self.result.name())
                .with("B", self.addend_storage().name()),
            name: "product",
            // 32: `TILE` of the kernel.
            grid: [self.n.div_ceil(32), self.m.div_ceil(32), self.batch],
            threads: 256,
            shared: 0,
            maps: Vec::new(),
            arguments: KernelArguments::new()
                .pointers(&[self.a.address, self.b.address, c.address, self.bias.unwrap_or(0), self.d.address])
                .fields(CStruct::new().u64(self.scales.a).u64(self.scales.b).u64(self.scales.d))
                .fields(strides(&self.a))
                .fields(strides(&self.b))
                .fields(strides(&c))
                .fields(strides(&self.d))
                .u32(self.m)
                .u32(self.n)
                .u32(self.k),
        }
    }
}

struct MatrixLayout(lt::cublasLtMatrixLayout_t);

impl Drop for MatrixLayout {
    fn drop(&mut self) {
        // SAFETY: the layout was created and is not used any more.
        unsafe { lt::cublasLtMatrixLayoutDestroy(self.0) };
    }
}

struct MatmulDescriptor(lt::cublasLtMatmulDesc_t);

impl Drop for MatmulDescriptor {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { lt::cublasLtMatmulDescDestroy(self.0) };
    }
}

struct MatmulPreference(lt::cublasLtMatmulPreference_t);

impl Drop for MatmulPreference {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { lt::cublasLtMatmulPreferenceDestroy(self.0) };
    }
}

/// A product as cuBLASLt describes it.
///
/// cuBLASLt is column-major, so it computes the transpose: its first operand is `b`, its second `a`, and its rows are
/// the columns of the result, along which the bias lies.
pub(crate) struct CublasMatmul {
    descriptor: MatmulDescriptor,
    /// Of `b`, `a`, `c` and `d`.
    layouts: [MatrixLayout; 4],
    /// In the same order.
    addresses: [u64; 4],
    beta: f32,
    workspace: u64,
    /// Zeros until [`tuning::choose`] sets it.
    pub algorithm: lt::cublasLtMatmulAlgo_t,
    alignment: u32,
}

// SAFETY: descriptors and layouts are plain memory that only their owner changes.
unsafe impl Send for CublasMatmul {}

fn succeeded(status: Status, what: &str) -> Result<(), GraphError> {
    match status {
        Status::CUBLAS_STATUS_SUCCESS => Ok(()),
        other => Err(failure::of_cublas(other, what)),
    }
}

fn data_type(storage: Storage) -> cudaDataType {
    match storage {
        Storage::F32 => cudaDataType::CUDA_R_32F,
        Storage::Bf16 => cudaDataType::CUDA_R_16BF,
        Storage::F16 => cudaDataType::CUDA_R_16F,
        Storage::E4m3 => cudaDataType::CUDA_R_8F_E4M3,
    }
}

/// Sets an attribute of a descriptor, layout or preference.
macro_rules! attribute {
    ($set:path, $target:expr, $attribute:expr, $value:expr) => {{
        let value = $value;
        // SAFETY: the target was created, and cuBLASLt copies the value, whose size is given, before it returns.
        let status = unsafe { $set($target, $attribute, (&raw const value).cast(), size_of_val(&value)) };
        succeeded(status, "setting an attribute")
    }};
}

impl CublasMatmul {
    /// The product without an algorithm; `None` where an extent does not fit an i32, the type of cuBLASLt's batch
    /// count.
    pub fn new(product: &MatrixProduct) -> Result<Option<CublasMatmul>, GraphError> {
        let p = product;
        if [p.m, p.n, p.k, p.batch].iter().any(|&extent| extent > i32::MAX as usize) {
            return Ok(None);
        }
        let compute = match p.precision {
            Precision::Tf32 if p.operand == Storage::F32 => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => Compute::CUBLAS_COMPUTE_32F,
        };
        let mut descriptor = MatmulDescriptor(std::ptr::null_mut());
        // SAFETY: the pointer is to a live variable.
        let status = unsafe { lt::cublasLtMatmulDescCreate(&mut descriptor.0, compute, cudaDataType::CUDA_R_32F) };
        succeeded(status, "describing a product")?;
        let set = lt::cublasLtMatmulDescSetAttribute;
        // CUBLAS_OP_N is 0, CUBLAS_OP_T is 1.
        attribute!(set, descriptor.0, DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA, i32::from(p.b.transposed))?;
        attribute!(set, descriptor.0, DescAttribute::CUBLASLT_MATMUL_DESC_TRANSB, i32::from(p.a.transposed))?;
        let epilogue = match (p.bias, p.gelu) {
            (None, false) => Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
            (None, true) => Epilogue::CUBLASLT_EPILOGUE_GELU,
            (Some(_), false) => Epilogue::CUBLASLT_EPILOGUE_BIAS,
            (Some(_), true) => Epilogue::CUBLASLT_EPILOGUE_GELU_BIAS,
        };
        attribute!(set, descriptor.0, DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue as u32)?;
        if let Some(bias) = p.bias {
            attribute!(set, descriptor.0, DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)?;
            let stored = data_type(p.addend_storage()) as u32;
            attribute!(set, descriptor.0, DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, stored)?;
        }
        for (attribute, address) in [
            (DescAttribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.scales.b),
            (DescAttribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.scales.a),
            (DescAttribute::CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, p.scales.d),
        ] {
            if address != 0 {
                attribute!(set, descriptor.0, attribute, address)?;
            }
        }
        if p.operand == Storage::E4m3 {
            // Faster, with fewer mantissa bits than f32 in the sums, but many more than the operands have.
            attribute!(set, descriptor.0, DescAttribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, 1i8)?;
        }
        let c = p.c.unwrap_or(p.d);
        // Without an addend, cuBLASLt gets the result as `c` (beta is 0), or null where `c` has another storage type.
        let c_address = if p.c.is_none() && p.addend_storage() != p.result { 0 } else { c.address };
        let (operand, addend, result) = (data_type(p.operand), data_type(p.addend_storage()), data_type(p.result));
        // The memory of a row-major matrix, read as column-major, is its transpose.
        let column_major =
            |m: &Matrix, rows: usize, columns: usize| if m.transposed { (rows, columns) } else { (columns, rows) };
        let layouts = [
            layout(operand, column_major(&p.b, p.k, p.n), &p.b, p.batch)?,
            layout(operand, column_major(&p.a, p.m, p.k), &p.a, p.batch)?,
            layout(addend, (p.n, p.m), &c, p.batch)?,
            layout(result, (p.n, p.m), &p.d, p.batch)?,
        ];
        Ok(Some(CublasMatmul {
            descriptor,
            layouts,
            addresses: [p.b.address, p.a.address, c_address, p.d.address],
            beta: if p.c.is_some() { 1.0 } else { 0.0 },
            workspace: p.workspace,
            algorithm: lt::cublasLtMatmulAlgo_t { data: [0; 8] },
            alignment: p.alignment(),
        }))
    }

    /// At most `most` algorithms that cuBLASLt's heuristic suggests, best first.
    pub fn candidates(&self, gpu: &Gpu, most: usize) -> Result<Vec<lt::cublasLtMatmulAlgo_t>, GraphError> {
        let mut preference = MatmulPreference(std::ptr::null_mut());
        // SAFETY: the pointer is to a live variable.
        succeeded(unsafe { lt::cublasLtMatmulPreferenceCreate(&mut preference.0) }, "preparing a search")?;
        let set = lt::cublasLtMatmulPreferenceSetAttribute;
        attribute!(set, preference.0, PreferenceAttribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, WORKSPACE as u64)?;
        for alignment in [
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            attribute!(set, preference.0, alignment, self.alignment)?;
        }
        let empty = lt::cublasLtMatmulHeuristicResult_t {
            algo: self.algorithm,
            workspaceSize: 0,
            state: Status::CUBLAS_STATUS_SUCCESS,
            wavesCount: 0.0,
            reserved: [0; 4],
        };
        let (mut results, mut found) = (vec![empty; most], 0);
        let [b, a, c, d] = self.layouts.each_ref().map(|l| l.0);
        // SAFETY: all handles are live, and `results` has room for `most` results.
        let status = unsafe {
            lt::cublasLtMatmulAlgoGetHeuristic(
                gpu.lt,
                self.descriptor.0,
                b,
                a,
                c,
                d,
                preference.0,
                most as i32,
                results.as_mut_ptr(),
                &mut found,
            )
        };
        if matches!(status, Status::CUBLAS_STATUS_NOT_SUPPORTED | Status::CUBLAS_STATUS_INVALID_VALUE) {
            return Ok(Vec::new());
        }
        succeeded(status, "looking for an algorithm")?;
        results.truncate(found.max(0) as usize);
        Ok(results.iter().filter(|r| r.state == Status::CUBLAS_STATUS_SUCCESS).map(|r| r.algo).collect())
    }

    /// Whether cuBLASLt accepts an algorithm for this product, in a workspace of [`WORKSPACE`] bytes.
    pub fn accepts(&self, gpu: &Gpu, algorithm: &lt::cublasLtMatmulAlgo_t) -> bool {
        let mut result = lt::cublasLtMatmulHeuristicResult_t {
            algo: *algorithm,
            workspaceSize: 0,
            state: Status::CUBLAS_STATUS_SUCCESS,
            wavesCount: 0.0,
            reserved: [0; 4],
        };
        let [b, a, c, d] = self.layouts.each_ref().map(|l| l.0);
        // SAFETY: all handles are live, the pointer is to a live variable.
        let status =
            unsafe { lt::cublasLtMatmulAlgoCheck(gpu.lt, self.descriptor.0, b, a, c, d, algorithm, &mut result) };
        status == Status::CUBLAS_STATUS_SUCCESS && result.workspaceSize <= WORKSPACE
    }

    /// Enqueues the product.
    ///
    /// # Safety
    ///
    /// The GPU's context must be current. The product's addresses must point to device memory of its extents, and
    /// `workspace` to [`WORKSPACE`] bytes, all of which stay allocated until the stream has run the product. No other
    /// stream may use the workspace until then.
    pub unsafe fn enqueue(&self, gpu: &Gpu, stream: &Stream) -> Result<(), GraphError> {
        let alpha = 1.0f32;
        let [b, a, c, d] = self.layouts.each_ref().map(|l| l.0);
        let [at_b, at_a, at_c, at_d] = self.addresses.map(|address| address as *mut std::ffi::c_void);
        // SAFETY: the caller guarantees the device memory; cuBLASLt copies alpha and beta before it returns.
        let status = unsafe {
            lt::cublasLtMatmul(
                gpu.lt,
                self.descriptor.0,
                (&raw const alpha).cast(),
                at_b,
                b,
                at_a,
                a,
                (&raw const self.beta).cast(),
                at_c,
                c,
                at_d,
                d,
                &self.algorithm,
                self.workspace as *mut std::ffi::c_void,
                WORKSPACE,
                stream.raw().cast(),
            )
        };
        succeeded(status, "running a product")
    }
}

fn layout(
    data: cudaDataType,
    (rows, columns): (usize, usize),
    matrix: &Matrix,
    batch: usize,
) -> Result<MatrixLayout, GraphError> {
    let mut layout = MatrixLayout(std::ptr::null_mut());
    // SAFETY: the pointer is to a live variable.
    let status = unsafe {
        lt::cublasLtMatrixLayoutCreate(&mut layout.0, data, rows as u64, columns as u64, matrix.ld.max(1) as i64)
    };
    succeeded(status, "describing a matrix")?;
    if batch > 1 {
        let set = lt::cublasLtMatrixLayoutSetAttribute;
        attribute!(set, layout.0, LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batch as i32)?;
        let stride = matrix.batch_stride as i64;
        attribute!(set, layout.0, LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride)?;
    }
    Ok(layout)
}
