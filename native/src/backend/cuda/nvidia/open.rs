//! Opens a GPU, or a part of it, and tries out what only some GPUs have.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use cudarc::driver::{result, sys};

use super::graphs::CAPTURES;
use super::{Blas, Nvidia, WORKSPACE_BYTES};
use crate::backend::cuda::card::{Address, Args, Card, CardError, Format, Held, Launch, Matrix, Product};
use crate::backend::cuda::cublaslt::Products;
use crate::backend::cuda::device::Device;
use crate::backend::cuda::driver::{driver_error, guarded, make_current};
use crate::backend::cuda::jobs::Known;
use crate::backend::cuda::warp_group_trial::Shape;
use crate::backend::cuda::{Opening, fallbacks, warp_group_trial};

impl Nvidia {
    /// A new stream on GPU `ordinal`.
    ///
    /// # Errors
    /// [`CardError`]; also where `opening` asks for a part and the driver cannot share the multiprocessors out.
    pub fn on(ordinal: usize, opening: Opening) -> Result<Nvidia, CardError> {
        let device = Device::open(ordinal)?;
        device.make_current()?;
        // An attempt may break more than itself.
        let advised = |call: String, error: &CardError| {
            CardError::call(call, format!("{error}; {}", warp_group_trial::advice()))
        };
        let attempt =
            || warp_group_trial::try_out(&Nvidia::for_trial(&device)?, &Shape::FIRST, warp_group_trial::PATIENCE);
        let left = device.try_groups(warp_group_trial::are_left()?, attempt);
        let left = left.map_err(|error| advised(format!("opening GPU {ordinal}"), &error))?;
        Nvidia::opened(&device, opening).map_err(|error| match left {
            Some(why) => advised(format!("opening GPU {ordinal}, after {why},"), &error),
            None => error,
        })
    }

    fn opened(device: &Arc<Device>, opening: Opening) -> Result<Nvidia, CardError> {
        let Some(portion) = opening.portion else {
            return Nvidia::whole(device, opening);
        };
        let part = device.part(portion)?;
        // Work on a part belongs to the part's context or, as drivers also have it, to the card's: what works, works.
        let mut failed = None;
        for context in part.context().ok().into_iter().chain([device.context]) {
            let open = || Nvidia::with(device, context, || part.stream(), Some(part.multiprocessors), opening);
            // What an attempt has taken for products is not the rank's.
            let queue = open().and_then(|queue| queue.try_out()).and_then(|()| open());
            // The driver lets only one thread at a time have a part's context, and its rank will be another.
            device.make_current()?;
            match queue {
                Ok(queue) => return Ok(queue),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| CardError::call("dividing the multiprocessors", "no part can be used")))
    }

    fn whole(device: &Arc<Device>, opening: Opening) -> Result<Nvidia, CardError> {
        let create = || {
            result::stream::create(result::stream::StreamKind::NonBlocking)
                .map_err(|error| driver_error("cuStreamCreate", error))
        };
        Nvidia::with(device, device.context, create, None, opening)
    }

    /// A stream that tries something out: what it takes of the card it gives back.
    fn for_trial(device: &Arc<Device>) -> Result<Arc<dyn Card>, CardError> {
        let opening = Opening { graphs: false, ..Opening::default() };
        Nvidia::whole(device, opening).map(|queue| Arc::new(queue) as Arc<dyn Card>)
    }

    /// A stream for transfers, on the whole card. Its kernels are few and others wait for them, so they come first.
    pub(super) fn for_transfers(device: &Arc<Device>) -> Result<Nvidia, CardError> {
        let create = || {
            let (mut least, mut greatest, mut stream) = (0, 0, std::ptr::null_mut());
            // SAFETY: writes two ints and a stream, of the context that is current.
            unsafe {
                sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest)
                    .result()
                    .map_err(|error| driver_error("cuCtxGetStreamPriorityRange", error))?;
                let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
                sys::cuStreamCreateWithPriority(&mut stream, flags, greatest)
                    .result()
                    .map_err(|error| driver_error("cuStreamCreateWithPriority", error))?;
            }
            Ok(stream)
        };
        Nvidia::with(device, device.context, create, None, Opening::default())
    }

    fn with(
        device: &Arc<Device>,
        context: sys::CUcontext,
        stream: impl FnOnce() -> Result<sys::CUstream, CardError>,
        multiprocessors: Option<u32>,
        Opening { graphs, apart, .. }: Opening,
    ) -> Result<Nvidia, CardError> {
        make_current(context)?;
        guarded("opening a stream", || {
            let stream = stream()?;
            let event = || {
                result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)
                    .map_err(|error| driver_error("cuEventCreate", error))
            };
            Ok(Nvidia {
                events: [event()?, event()?],
                device: Arc::clone(device),
                context,
                stream,
                heaps: Mutex::default(),
                apart,
                multiprocessors,
                blas: Mutex::new(None),
                graphs: Mutex::new(graphs.then(Known::default)),
                is_capturing: AtomicBool::new(false),
            })
        })
    }

    /// Whether memory, kernels, products and events can be used on this stream at all.
    fn try_out(&self) -> Result<(), CardError> {
        const SIDE: u64 = 16;
        let bytes = SIDE * SIDE * Format::Bf16.bytes();
        let memory = self.allocate(3 * bytes, Held::Briefly)?;
        self.start_watch()?;
        // Adds up nothing.
        let launch =
            Launch { kernel: "add_f32".to_string(), grid: [1, 1, 1], threads: 32, shared: 0, args: Args::default() };
        self.launch(&launch)?;
        self.zero(memory, 3 * bytes)?;
        let matrix = |number: u64| Matrix {
            at: Address(memory.0 + number * bytes),
            row: SIDE,
            step: 0,
            transposed: false,
            format: Format::Bf16,
        };
        self.product(&Product {
            rows: SIDE,
            inner: SIDE,
            columns: SIDE,
            a: matrix(0),
            b: matrix(1),
            c: matrix(2),
            alpha: 1.0,
            beta: 0.0,
            count: 1,
            addend: None,
            bias: None,
        })?;
        self.stop_watch()?;
        self.free(memory, 3 * bytes, Held::Briefly);
        Ok(())
    }

    pub(super) fn new_blas(&self) -> Result<Blas, CardError> {
        let workspace = self.allocate(WORKSPACE_BYTES, Held::Kept)?;
        let _alone = CAPTURES.write();
        let products = guarded("opening cuBLASLt", || Products::new(WORKSPACE_BYTES as usize, self.multiprocessors));
        let products = products.map_err(|error| {
            fallbacks::count(|tally| _ = tally.no_products.get_or_insert_with(|| error.to_string()));
        });
        Ok(Blas { plain: None, products: products.ok(), workspace })
    }
}
