//! NCCL, found at run time: collectives between the GPUs of several processes, as work in a stream, which CUDA graphs can
//! capture. NCCL has one rank per GPU; processes that share a GPU exchange through the host.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::Library;
use vit_graph::GraphError;

use crate::driver::error;
use crate::driver::libraries::{Unavailable, entries, known_folders};

/// `ncclResult_t`.
type Status = c_int;
/// `ncclComm_t`.
type Handle = *mut c_void;

const SUCCESS: Status = 0;
/// `ncclSum`.
const SUM: c_int = 0;
/// `ncclUint8`.
const BYTES: c_int = 1;
/// `ncclFloat32`.
const F32: c_int = 7;

/// The name of a communicator: made by one process, sent to all others that join.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

/// A vector of f32 in a GPU's memory.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct DeviceVector {
    pub address: u64,
    pub elements: usize,
}

/// Bytes of a GPU's memory that go to or come from another rank.
#[derive(Debug, Clone, Copy)]
pub struct DeviceMessage {
    /// The other rank.
    pub peer: usize,
    /// The address in the memory of this process's GPU.
    pub address: u64,
    /// The length.
    pub bytes: usize,
}

macro_rules! functions {
    ($($field:ident = $symbol:literal ( $($argument:ty),* ) -> $result:ty;)*) => {
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            /// # Safety
            /// The library must be NCCL.
            unsafe fn bind(library: &Library) -> Result<Functions, libloading::Error> {
                // SAFETY: these are the types of NCCL 2, whose interface only grows; NCCL 1 lacks some of the symbols.
                unsafe { Ok(Functions { $($field: *library.get($symbol)?,)* }) }
            }
        }
    };
}

functions! {
    get_version = b"ncclGetVersion\0" (*mut c_int) -> Status;
    get_unique_id = b"ncclGetUniqueId\0" (*mut UniqueId) -> Status;
    comm_init_rank = b"ncclCommInitRank\0" (*mut Handle, c_int, UniqueId, c_int) -> Status;
    comm_destroy = b"ncclCommDestroy\0" (Handle) -> Status;
    comm_abort = b"ncclCommAbort\0" (Handle) -> Status;
    comm_get_async_error = b"ncclCommGetAsyncError\0" (Handle, *mut Status) -> Status;
    get_error_string = b"ncclGetErrorString\0" (Status) -> *const c_char;
    get_last_error = b"ncclGetLastError\0" (Handle) -> *const c_char;
    all_reduce = b"ncclAllReduce\0" (u64, u64, usize, c_int, c_int, Handle, *mut c_void) -> Status;
    send = b"ncclSend\0" (u64, usize, c_int, c_int, Handle, *mut c_void) -> Status;
    recv = b"ncclRecv\0" (u64, usize, c_int, c_int, Handle, *mut c_void) -> Status;
    group_start = b"ncclGroupStart\0" () -> Status;
    group_end = b"ncclGroupEnd\0" () -> Status;
}

impl Functions {
    /// The functions of the library, which is loaded once and never unloaded.
    fn find() -> Result<&'static Functions, Unavailable> {
        static FOUND: OnceLock<Option<Functions>> = OnceLock::new();
        FOUND.get_or_init(load).as_ref().ok_or(Unavailable::NoNccl)
    }

    fn check(&self, status: Status, communicator: Handle, doing: &str) -> Result<(), GraphError> {
        if status == SUCCESS {
            return Ok(());
        }
        let text = |text: *const c_char| match text.is_null() {
            true => String::new(),
            // SAFETY: the two functions below return static or thread-local texts.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned(),
        };
        // SAFETY: both may be called at any time; the communicator may be null.
        let (what, why) = unsafe { (text((self.get_error_string)(status)), text((self.get_last_error)(communicator))) };
        let why = if why.is_empty() { why } else { format!(" ({why})") };
        Err(error(format!("NCCL failed while {doing}: {what}{why}")))
    }
}

fn load() -> Option<Functions> {
    let named = ["libnccl.so.2", "libnccl.so"].map(PathBuf::from);
    let in_folders = known_folders().into_iter().flat_map(|folder| entries(&folder));
    let is_nccl =
        |path: &PathBuf| path.file_name().and_then(OsStr::to_str).is_some_and(|n| n.starts_with("libnccl.so"));
    named.into_iter().chain(in_folders.filter(is_nccl)).find_map(|path| {
        // SAFETY: NVIDIA's own library, whose initialiser does nothing but set itself up.
        unsafe {
            let library = std::mem::ManuallyDrop::new(Library::new(path).ok()?);
            Functions::bind(&library).ok()
        }
    })
}

/// The version of NCCL, as `2.27.3`.
pub fn version() -> Result<String, Unavailable> {
    let mut version = 0;
    // SAFETY: the pointer is to a live variable.
    unsafe { (Functions::find()?.get_version)(&mut version) };
    Ok(format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100))
}

impl UniqueId {
    /// The name of a new communicator.
    pub fn new() -> Result<UniqueId, GraphError> {
        let nccl = Functions::find().map_err(|missing| error(missing.to_string()))?;
        let mut id = UniqueId([0; 128]);
        // SAFETY: the pointer is to a live variable of the right size.
        nccl.check(unsafe { (nccl.get_unique_id)(&mut id) }, std::ptr::null_mut(), "starting")?;
        Ok(id)
    }
}

/// One GPU's end of the connections between the GPUs of a run. All ranks enqueue the same calls in the same order.
pub struct NcclCommunicator {
    nccl: &'static Functions,
    handle: Handle,
    rank: usize,
    size: usize,
}

// SAFETY: a communicator may be used from any thread, one at a time.
unsafe impl Send for NcclCommunicator {}

impl NcclCommunicator {
    /// Joins the communicator as `rank` of `size`; returns when all ranks have.
    ///
    /// # Safety
    /// The context of this process's GPU must be current, and no other rank may use that GPU.
    pub unsafe fn join(id: UniqueId, rank: usize, size: usize) -> Result<NcclCommunicator, GraphError> {
        let nccl = Functions::find().map_err(|missing| error(missing.to_string()))?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a live variable; the caller made the context current.
        let status = unsafe { (nccl.comm_init_rank)(&mut handle, size as c_int, id, rank as c_int) };
        nccl.check(status, std::ptr::null_mut(), "connecting the GPUs")?;
        Ok(NcclCommunicator { nccl, handle, rank, size })
    }

    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Adds vectors of f32 of all ranks in place, in an order of NCCL's choice.
    ///
    /// # Safety
    /// The GPU's context must be current, and the stream one of that context. The vectors must be in the GPU's memory,
    /// and they and `self` must live until the stream is synchronised, or if it is being captured, until the last
    /// launch of the captured graph has ended.
    pub unsafe fn all_reduce(&self, vectors: &[DeviceVector], stream: *mut c_void) -> Result<(), GraphError> {
        let doing = "adding gradients";
        // SAFETY: the caller guarantees memory and stream; a group that was started is ended, also after an error inside.
        unsafe {
            self.check((self.nccl.group_start)(), doing)?;
            let mut status = SUCCESS;
            for &DeviceVector { address, elements } in vectors {
                if status == SUCCESS {
                    status = (self.nccl.all_reduce)(address, address, elements, F32, SUM, self.handle, stream);
                }
            }
            let end = (self.nccl.group_end)();
            self.check(status, doing)?;
            self.check(end, doing)
        }
    }

    /// Sends and receives all messages at the same time; those between two ranks are matched in their order.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce), for the memory of the messages.
    pub unsafe fn send_receive(
        &self,
        outgoing: &[DeviceMessage],
        incoming: &[DeviceMessage],
        stream: *mut c_void,
    ) -> Result<(), GraphError> {
        let doing = "exchanging gradients";
        // SAFETY: the caller guarantees memory and stream; a group that was started is ended, also after an error inside.
        unsafe {
            self.check((self.nccl.group_start)(), doing)?;
            let mut status = SUCCESS;
            for &DeviceMessage { peer, address, bytes } in outgoing {
                if status == SUCCESS {
                    status = (self.nccl.send)(address, bytes, BYTES, peer as c_int, self.handle, stream);
                }
            }
            for &DeviceMessage { peer, address, bytes } in incoming {
                if status == SUCCESS {
                    status = (self.nccl.recv)(address, bytes, BYTES, peer as c_int, self.handle, stream);
                }
            }
            let end = (self.nccl.group_end)();
            self.check(status, doing)?;
            self.check(end, doing)
        }
    }

    /// An error if the connection to another GPU has failed. NCCL's kernels in the stream then never end.
    pub fn failure(&self) -> Result<(), GraphError> {
        let mut failure = SUCCESS;
        // SAFETY: the communicator is live, the pointer is to a live variable.
        let status = unsafe { (self.nccl.comm_get_async_error)(self.handle, &mut failure) };
        self.check(status, "exchanging gradients")?;
        self.check(failure, "exchanging gradients")
    }

    /// Ends work that waits for a rank which has failed; nothing else may be called afterwards.
    pub fn abort(mut self) {
        let handle = std::mem::replace(&mut self.handle, std::ptr::null_mut());
        // SAFETY: the communicator is live, and is not destroyed again.
        unsafe { (self.nccl.comm_abort)(handle) };
    }

    fn check(&self, status: Status, doing: &str) -> Result<(), GraphError> {
        self.nccl.check(status, self.handle, doing)
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the communicator is live and not used any more.
            unsafe { (self.nccl.comm_destroy)(self.handle) };
        }
    }
}
