//! Streams and events. The context of their GPU must be current where they are created and used
//! ([`super::Gpu::enter`]).

use cudarc::driver::sys as cu;
use vit_graph::GraphError;

use crate::driver::check;

/// A queue of work that the GPU does in order, without waiting for the default stream.
pub(crate) struct Stream(cu::CUstream);

// SAFETY: streams may be used from any thread.
unsafe impl Send for Stream {}

impl Stream {
    pub fn new() -> Result<Self, GraphError> {
        let mut stream = std::ptr::null_mut();
        let flag = cu::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the pointer is to a live variable.
        check(unsafe { cu::cuStreamCreate(&mut stream, flag) }, "creating a stream")?;
        Ok(Stream(stream))
    }

    /// The driver's handle, valid while `self` lives.
    pub fn raw(&self) -> cu::CUstream {
        self.0
    }

    /// Blocks until all work in the stream is done.
    pub fn synchronize(&self) -> Result<(), GraphError> {
        // SAFETY: the stream is live.
        check(unsafe { cu::cuStreamSynchronize(self.0) }, "running")
    }

    /// Makes later work in the stream wait for the point that the event recorded last, in any stream; returns at once, and
    /// does nothing for an event that was never recorded.
    pub fn wait_event(&self, event: &Event) -> Result<(), GraphError> {
        // SAFETY: both are live.
        check(unsafe { cu::cuStreamWaitEvent(self.0, event.0, 0) }, "waiting for an event")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream was created by `new`; the driver keeps it until its work is done.
        unsafe { cu::cuStreamDestroy_v2(self.0) };
    }
}

/// A point in a stream, whose time can be read.
pub(crate) struct Event(cu::CUevent);

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    pub fn new() -> Result<Self, GraphError> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the pointer is to a live variable.
        check(unsafe { cu::cuEventCreate(&mut event, 0) }, "creating an event")?;
        Ok(Event(event))
    }

    pub fn record(&self, stream: &Stream) -> Result<(), GraphError> {
        // SAFETY: both are live.
        check(unsafe { cu::cuEventRecord(self.0, stream.0) }, "recording an event")
    }

    /// Blocks until the stream has passed the point recorded last; not at all if none was.
    pub fn synchronize(&self) -> Result<(), GraphError> {
        // SAFETY: the event is live.
        check(unsafe { cu::cuEventSynchronize(self.0) }, "running")
    }

    /// The time from one point in a stream to another; the streams must have passed both.
    pub fn milliseconds_since(&self, start: &Event) -> Result<f32, GraphError> {
        let mut milliseconds = 0.0;
        // SAFETY: both are live, the pointer is to a live variable.
        check(unsafe { cu::cuEventElapsedTime_v2(&mut milliseconds, start.0, self.0) }, "reading the time")?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event was created by `new` and is not used any more.
        unsafe { cu::cuEventDestroy_v2(self.0) };
    }
}
