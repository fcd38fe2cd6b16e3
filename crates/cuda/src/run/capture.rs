//! Stream capture: a run as CUDA graphs.

use std::ops::RangeInclusive;

use cudarc::driver::sys as cu;
use vit_graph::GraphError;

use crate::driver::{Stream, check};

/// A segment of a run as a CUDA graph, instantiated from a captured stream.
pub(crate) struct CapturedGraph(cu::CUgraphExec);

impl CapturedGraph {
    /// Captures what `enqueue` puts into the stream for each of these steps; one past the last step of a run stands for
    /// the updates. Work in other streams that waits for this stream is captured as well, and this stream must wait for
    /// it in the end.
    pub fn new(
        stream: &Stream,
        mut steps: RangeInclusive<usize>,
        enqueue: impl Fn(usize) -> Result<(), GraphError>,
    ) -> Result<Self, GraphError> {
        // In the global mode, calls of other threads such as `cuMemAlloc` would fail during the capture.
        let mode = cu::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is live.
        check(unsafe { cu::cuStreamBeginCapture_v2(stream.raw(), mode) }, "capturing")?;
        let enqueued = steps.try_for_each(enqueue);
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        // The capture must end even if a step failed.
        // SAFETY: the stream is live, the pointers are to live variables.
        let ended = check(unsafe { cu::cuStreamEndCapture(stream.raw(), &mut graph) }, "capturing");
        let instantiated = enqueued.and(ended).and_then(|()| {
            // SAFETY: the graph was just captured, the pointer is to a live variable.
            check(unsafe { cu::cuGraphInstantiateWithFlags(&mut executable, graph, 0) }, "preparing the run")
        });
        if !graph.is_null() {
            // SAFETY: the graph is not used any more; the instantiated one does not refer to it.
            unsafe { cu::cuGraphDestroy(graph) };
        }
        instantiated?;
        Ok(CapturedGraph(executable))
    }

    /// Runs the graph in a stream.
    ///
    /// # Safety
    ///
    /// As for everything that was captured ([`super::launch::ReadyLaunch::enqueue`],
    /// [`super::exchange::CollectiveStream::after`]). The stream must be synchronised before `self` is dropped.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), GraphError> {
        // SAFETY: the graph and the stream are live; the caller guarantees what the captured work uses.
        check(unsafe { cu::cuGraphLaunch(self.0, stream.raw()) }, "starting a run")
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        // SAFETY: the graph was instantiated by `new`; callers of `launch` have synchronised the stream.
        unsafe { cu::cuGraphExecDestroy(self.0) };
    }
}
