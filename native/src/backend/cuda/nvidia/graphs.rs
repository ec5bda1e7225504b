//! CUDA graphs of jobs that come again.

use crate::backend::cuda::card::Card;
use std::sync::RwLock;
use std::sync::atomic::Ordering;

use cudarc::driver::{result, sys};

use super::Nvidia;
use crate::backend::cuda::card::{CardError, Command, one_by_one};
use crate::backend::cuda::driver::driver_error;
use crate::backend::cuda::fallbacks;
use crate::backend::cuda::jobs::Known;

/// Read while a list is captured, written while something waits for the whole card: libraries' handles that come and go, and
/// memory that goes. The driver ends the captures of other threads then.
pub(super) static CAPTURES: RwLock<()> = RwLock::new(());

impl Nvidia {
    /// `list` as a graph, which does not start it.
    pub(super) fn graph_of(&self, list: &[Command]) -> Result<sys::CUgraphExec, CardError> {
        self.make_current()?;
        let fail = |call| move |error| driver_error(call, error);
        // SAFETY: the stream is valid. Nothing but this list is put on it meanwhile, and other threads are not held up:
        // all that the list needs has been loaded when it first came. What began is ended whatever happens between.
        unsafe {
            let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
            let captures = CAPTURES.read();
            result::stream::begin_capture(self.stream, mode).map_err(fail("cuStreamBeginCapture"))?;
            self.is_capturing.store(true, Ordering::Relaxed);
            let noted = one_by_one(self, list);
            self.is_capturing.store(false, Ordering::Relaxed);
            let graph = result::stream::end_capture(self.stream).map_err(fail("cuStreamEndCapture"));
            drop(captures);
            let graph = noted.and(graph)?;
            let mut made = std::ptr::null_mut();
            let instantiated = sys::cuGraphInstantiateWithFlags(&mut made, graph, 0).result();
            let _ = result::graph::destroy(graph);
            instantiated.map_err(fail("cuGraphInstantiate"))?;
            fallbacks::count(|tally| tally.graphs += 1);
            Ok(made)
        }
    }

    /// `list` piece by piece, and all others from now on: a driver or library that cannot do graphs ends nothing else.
    pub(super) fn without_graphs(
        &self,
        graphs: &mut Option<Known<sys::CUgraphExec>>,
        list: &[Command],
        why: &CardError,
    ) -> Result<(), CardError> {
        fallbacks::count(|tally| _ = tally.no_graphs.get_or_insert_with(|| why.to_string()));
        // What was started may still run.
        self.finish()?;
        for graph in graphs.take().into_iter().flat_map(Known::into_made) {
            // SAFETY: not used again, and nothing of it runs any more.
            let _ = unsafe { result::graph::exec_destroy(graph) };
        }
        one_by_one(self, list)
    }

    pub(super) fn repeat(&self, graph: sys::CUgraphExec) -> Result<(), CardError> {
        self.make_current()?;
        // SAFETY: the graph lives as long as this, and so does all memory that it names.
        unsafe { result::graph::launch(graph, self.stream) }.map_err(|error| driver_error("cuGraphLaunch", error))?;
        fallbacks::count(|tally| tally.repeats += 1);
        Ok(())
    }
}
