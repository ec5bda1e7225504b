//! The order of calls, against a table of functions that only notes them; and the real library, if there is one.

use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU8, AtomicUsize};

use pipeplan_core::base::units::{Bytes, Nanos};
use pipeplan_core::program::P2pOp;

use super::*;
use crate::backend::cuda::card::{Address, Held, Launch, Mark, Product};
use crate::transport::threads::{ThreadOptions, world};
use crate::transport::{Buffer, OnCard, Outgoing, Tag, Transport};

thread_local! {
    /// How often the last communicator that this thread has made was ended.
    static LAST: Cell<Option<&'static AtomicUsize>> = const { Cell::new(None) };
    /// Calls of this thread, and what the next questions for the asynchronous error answer.
    static CALLS: RefCell<(Vec<String>, Vec<Code>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

fn note(call: impl Into<String>) -> Code {
    CALLS.with_borrow_mut(|(calls, _)| calls.push(call.into()));
    SUCCESS
}

/// The calls so far, without repeated questions.
fn calls() -> Vec<String> {
    let mut calls = CALLS.with_borrow_mut(|(calls, _)| std::mem::take(calls));
    calls.dedup();
    calls
}

/// A peer that nothing can be sent to.
const NOBODY: c_int = 9;

/// How often the last communicator was ended.
fn ends() -> Option<usize> {
    LAST.get().map(|ends| ends.load(Ordering::SeqCst))
}

fn answer(codes: &[Code]) {
    CALLS.with_borrow_mut(|(_, answers)| *answers = codes.to_vec());
}

unsafe extern "C" fn get_version(version: *mut c_int) -> Code {
    unsafe { *version = 22_907 };
    SUCCESS
}
unsafe extern "C" fn get_old_version(version: *mut c_int) -> Code {
    unsafe { *version = 21_602 };
    SUCCESS
}
unsafe extern "C" fn get_unique_id(id: *mut UniqueId) -> Code {
    unsafe { (*id).0[0] = 7 };
    note("unique id")
}
unsafe extern "C" fn error_string(_: Code) -> *const c_char {
    c"unhandled system error".as_ptr()
}
unsafe extern "C" fn last_error(_: RawComm) -> *const c_char {
    c"the cable is out\n".as_ptr()
}
unsafe extern "C" fn init(comm: *mut RawComm, size: c_int, id: UniqueId, rank: c_int, _: *mut Config) -> Code {
    // Other threads end it, and this one asks how often that was.
    let ends: &'static AtomicUsize = Box::leak(Box::default());
    LAST.set(Some(ends));
    unsafe { *comm = std::ptr::from_ref(ends).cast_mut().cast() };
    note(format!("init {rank} of {size}, id {}", id.0[0]));
    IN_PROGRESS
}
unsafe extern "C" fn async_error(_: RawComm, state: *mut Code) -> Code {
    let answer = CALLS.with_borrow_mut(|(_, answers)| match answers.len() {
        0 => SUCCESS,
        1 => answers[0],
        _ => answers.remove(0),
    });
    unsafe { *state = answer };
    note("ask")
}
unsafe extern "C" fn finalize(_: RawComm) -> Code {
    note("finalize")
}
unsafe extern "C" fn destroy(_: RawComm) -> Code {
    note("destroy")
}
unsafe extern "C" fn abort(comm: RawComm) -> Code {
    unsafe { &*comm.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
    SUCCESS
}
unsafe extern "C" fn group_start() -> Code {
    note("group start")
}
unsafe extern "C" fn group_end() -> Code {
    note("group end")
}
unsafe extern "C" fn send(_: *const c_void, count: usize, _: c_int, peer: c_int, _: RawComm, _: RawStream) -> Code {
    note(format!("send {count} to {peer}"));
    // As NCCL does of what it cannot do.
    if peer == NOBODY { 5 } else { SUCCESS }
}
unsafe extern "C" fn recv(_: *mut c_void, count: usize, _: c_int, peer: c_int, _: RawComm, _: RawStream) -> Code {
    note(format!("receive {count} from {peer}"))
}
unsafe extern "C" fn reduce(
    _: *const c_void,
    _: *mut c_void,
    count: usize,
    kind: c_int,
    operation: c_int,
    _: RawComm,
    _: RawStream,
) -> Code {
    note(format!("reduce {count} of kind {kind} by {operation}"))
}
unsafe extern "C" fn reduce_to(
    _: *const c_void,
    _: *mut c_void,
    count: usize,
    kind: c_int,
    operation: c_int,
    root: c_int,
    _: RawComm,
    _: RawStream,
) -> Code {
    note(format!("reduce {count} of kind {kind} by {operation} to {root}"))
}
unsafe extern "C" fn gather(
    _: *const c_void,
    _: *mut c_void,
    count: usize,
    _: c_int,
    _: RawComm,
    _: RawStream,
) -> Code {
    note(format!("gather {count}"))
}

fn functions() -> Functions {
    Functions {
        get_version,
        get_unique_id,
        get_error_string: error_string,
        get_last_error: last_error,
        init_rank_config: init,
        get_async_error: async_error,
        finalize,
        destroy,
        abort,
        group_start,
        group_end,
        send,
        recv,
        all_reduce: reduce,
        all_gather: gather,
        reduce_scatter: reduce,
        broadcast: reduce,
        reduce: reduce_to,
    }
}

fn joined(longest_ms: u64) -> (Arc<Library>, Result<Communicator, NcclError>, Ending) {
    let library = Arc::new(Library::of(functions()).expect("a library"));
    let ending = Ending::default();
    let patience = Patience { rank: 1, longest: Duration::from_millis(longest_ms), ending: ending.clone() };
    let id = library.unique_id().expect("an id");
    let communicator = Communicator::join(&library, id, (1, 2), vec![0], None, patience, &mut || Ok(()));
    (library, communicator, ending)
}

#[test]
fn joining_is_asked_for_until_it_is_done_and_finishing_destroys() {
    answer(&[IN_PROGRESS, IN_PROGRESS, SUCCESS]);
    let (library, communicator, _) = joined(10_000);
    let mut communicator = communicator.expect("joined");
    assert_eq!(calls(), ["unique id", "init 1 of 2, id 7", "ask"]);
    grouped(&library, &mut [&mut communicator], |members| {
        // SAFETY: nobody looks at the memory.
        unsafe {
            members[0].send(16, 8, 0, std::ptr::null_mut())?;
            members[0].receive(16, 4, 0, std::ptr::null_mut())
        }
    })
    .expect("queued");
    communicator.settle("a group", &mut || Ok(())).expect("queued");
    assert_eq!(calls(), ["group start", "send 8 to 0", "receive 4 from 0", "group end", "ask"]);
    communicator.finish(&mut || Ok(())).expect("finished");
    assert_eq!(calls(), ["finalize", "ask", "destroy"]);
}

#[test]
fn a_wait_ends_with_an_abort_and_the_name_of_the_peer() {
    answer(&[IN_PROGRESS]);
    let (_, communicator, _) = joined(20);
    let error = communicator.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.starts_with("rank 1 waited") && error.contains("joining a communicator with rank 0"), "{error}");
    assert_eq!(calls(), ["unique id", "init 1 of 2, id 7", "ask"]);
    assert_eq!(ends(), Some(1), "ended once, and it was waited for");
}

#[test]
fn a_wait_hears_of_a_rank_that_is_gone() {
    answer(&[IN_PROGRESS]);
    let library = Arc::new(Library::of(functions()).expect("a library"));
    let patience = Patience { rank: 1, longest: Duration::from_secs(60), ending: Ending::default() };
    let gone = TransportError::PeerLost { peer: 0, reason: "its connection is closed".to_string() };
    let mut watch = || Err(gone.clone());
    let id = library.unique_id().expect("an id");
    let joined = Communicator::join(&library, id, (1, 2), vec![0], None, patience, &mut watch);
    assert_eq!(joined.err(), Some(NcclError::Run(gone)));
    assert_eq!(ends(), Some(1), "ended once, and it was waited for");
}

#[test]
fn an_asynchronous_error_aborts_and_says_what_nccl_says() {
    answer(&[SUCCESS]);
    let (_, communicator, _) = joined(1000);
    let mut communicator = communicator.expect("joined");
    calls();
    answer(&[2]);
    let error = communicator.settle("a transfer", &mut || Ok(())).expect_err("it failed");
    assert_eq!(error.to_string(), "a transfer failed: unhandled system error: the cable is out");
    drop(communicator);
    assert_eq!(calls(), ["ask"]);
    assert_eq!(ends(), Some(1), "once, and it was waited for");
}

/// A call that is refused because the communicator had failed before is told as that failure.
#[test]
fn what_a_communicator_failed_of_is_told_before_what_it_refuses() {
    for (state, told) in [(SUCCESS, "ncclSend failed: "), (6, "a transfer failed: ")] {
        answer(&[SUCCESS]);
        let (_, communicator, _) = joined(1000);
        let mut communicator = communicator.expect("joined");
        answer(&[state]);
        // SAFETY: the functions are those above, which look at no memory.
        let error = unsafe { communicator.send(16, 1, NOBODY as usize, std::ptr::null_mut()) }.expect_err("refused");
        assert!(error.to_string().starts_with(told), "{error}");
    }
}

#[test]
fn another_ranks_end_ends_the_wait() {
    answer(&[SUCCESS]);
    let (_, communicator, ending) = joined(60_000);
    let mut communicator = communicator.expect("joined");
    answer(&[IN_PROGRESS]);
    ending.raise();
    assert_eq!(communicator.settle("a transfer", &mut || Ok(())), Err(NcclError::Aborted));
    // SAFETY: refused before the library is called.
    let refused = unsafe { communicator.send(16, 1, 0, std::ptr::null_mut()) };
    assert_eq!(refused, Err(NcclError::Aborted));
}

#[test]
fn a_group_ends_also_where_a_call_within_fails() {
    answer(&[SUCCESS]);
    let (library, communicator, _) = joined(1000);
    let mut communicator = communicator.expect("joined");
    calls();
    let failed = grouped(&library, &mut [&mut communicator], |_| Err(NcclError::Aborted));
    assert_eq!(failed, Err(NcclError::Aborted));
    assert_eq!(calls(), ["group start", "group end"]);
}

#[test]
fn old_libraries_and_shared_gpus_are_refused_with_the_reason() {
    let old = Library::of(Functions { get_version: get_old_version, ..functions() });
    let error = old.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("NCCL 2.16.2 is too old: install 2.18.1"), "{error}");
    let gpus = ["a", "b", "a"].map(String::from);
    let check = |version, enabled| {
        check_sharing(Version::of_number(version), &gpus, enabled).err().map(|error| error.to_string())
    };
    assert!(check(22_907, true).is_some_and(|error| error.contains("ranks [0, 2] are on one GPU, but NCCL 2.29.7")));
    assert!(check(23_007, false).is_some_and(|error| error.contains("NCCL_MULTI_RANK_GPU_ENABLE=1")));
    assert_eq!(check(23_007, true), None);
    assert!(check_sharing(Version::of_number(22_907), &gpus[..2], false).is_ok());
}

/// The real library needs no GPU to say its version and to make an id.
#[test]
fn the_real_library_says_its_version_and_makes_ids() {
    let library = match Library::load() {
        Ok(library) => library,
        Err(error) => return eprintln!("SKIPPED: NCCL is not called: {error}"),
    };
    assert!(library.version() >= Version::OLDEST);
    let (one, other) = (library.unique_id().expect("an id"), library.unique_id().expect("an id"));
    assert!(one != other);
}

/// As in a pipeline of any length with messages both ways: no rank twice in a round, four rounds at most, and all links once.
#[test]
fn links_are_joined_in_few_rounds() {
    for ranks in [2usize, 3, 8, 64] {
        let links: Vec<(usize, usize)> = (1..ranks).flat_map(|rank| [(rank, rank - 1), (rank - 1, rank)]).collect();
        let order = engine::in_rounds(links.iter().chain(&links).copied().collect());
        assert_eq!(order.len(), links.len());
        assert!(links.iter().all(|link| order.contains(link)));
        // A rank comes to a link when both ends have done all before it: how many it has waited for by then, at most.
        let mut waited = vec![0; ranks];
        for (from, to) in order {
            let round = waited[from].max(waited[to]) + 1;
            (waited[from], waited[to]) = (round, round);
        }
        assert!(waited.iter().all(|rounds| *rounds <= 4), "{ranks} ranks: {waited:?}");
    }
}

/// A card that does nothing. Its marks are past, or not, or say that it has failed: 0, 1 and 2.
#[derive(Clone, Default)]
struct Idle {
    number: u8,
    marks: Arc<AtomicU8>,
}

impl Mark for Idle {
    fn is_past(&self) -> Result<bool, CardError> {
        match self.marks.load(Ordering::SeqCst) {
            2 => Err(CardError::call("cuEventQuery", "an illegal address")),
            marks => Ok(marks == 0),
        }
    }
}

impl Card for Idle {
    fn name(&self) -> String {
        "none".to_string()
    }
    fn shared_bytes(&self) -> u32 {
        0
    }
    fn allocate(&self, _: Bytes, _: Held) -> Result<Address, CardError> {
        Ok(Address::new(256))
    }
    fn free(&self, _: Address, _: Bytes, _: Held) {}
    fn write(&self, _: Address, _: &[u8]) -> Result<(), CardError> {
        Ok(())
    }
    fn read(&self, _: Address, _: &mut [u8]) -> Result<(), CardError> {
        Ok(())
    }
    fn copy(&self, _: Address, _: Address, _: Bytes) -> Result<(), CardError> {
        Ok(())
    }
    fn copy_across(&self, _: Address, _: Address, _: Bytes) -> Result<(), CardError> {
        Ok(())
    }
    fn zero(&self, _: Address, _: Bytes) -> Result<(), CardError> {
        Ok(())
    }
    fn launch(&self, _: &Launch) -> Result<(), CardError> {
        Ok(())
    }
    fn product(&self, _: &Product) -> Result<(), CardError> {
        Ok(())
    }
    fn prepare(&self, _: &[Product]) -> Result<(), CardError> {
        Ok(())
    }
    fn finish(&self) -> Result<(), CardError> {
        Ok(())
    }
    fn start_watch(&self) -> Result<(), CardError> {
        Ok(())
    }
    fn stop_watch(&self) -> Result<Nanos, CardError> {
        Ok(0)
    }
    fn mark(&self) -> Result<Box<dyn Mark>, CardError> {
        Ok(Box::new(self.clone()))
    }
    fn wait_for(&self, _: &dyn Mark) -> Result<bool, CardError> {
        Ok(true)
    }
    fn another(&self) -> Result<Arc<dyn Card>, CardError> {
        Ok(Arc::new(self.clone()))
    }
    fn identity(&self) -> [u8; 16] {
        [self.number; 16]
    }
    fn choose(&self) -> Result<(), CardError> {
        Ok(())
    }
    fn taken_bytes(&self) -> Option<Bytes> {
        None
    }
}

/// A card's fault that nobody has asked for before the barrier is the card's, and not that of the rank that something
/// was sent to.
#[test]
fn a_fault_of_the_card_that_shows_in_a_barrier_is_told_as_one() {
    let at_barrier = std::thread::scope(|scope| {
        let ranks = world(2, ThreadOptions::default()).into_iter().map(|mut end| {
            scope.spawn(move || {
                let rank = end.rank();
                let card = Idle { number: rank as u8, ..Idle::default() };
                let (marks, card) = (Arc::clone(&card.marks), Arc::new(card) as Arc<dyn Card>);
                let library = Arc::new(Library::of(functions()).expect("a library"));
                let connections = Connections { links: vec![(0, 1)], ..Connections::default() };
                let started = Nccl::start(&mut end, library, Arc::clone(&card), connections, Duration::from_secs(60));
                let mut nccl = started.unwrap_or_else(|error| panic!("{error}"));
                if rank == 1 {
                    return Ok(());
                }
                let memory = Arc::new(Memory::new(&card, 8).expect("memory"));
                let tag = Tag::of(0, "0SEND_F0".parse::<P2pOp>().expect("a message"));
                marks.store(1, Ordering::SeqCst);
                nccl.post(vec![Outgoing { peer: 1, tag, buffer: Buffer::OnCard(OnCard::new(memory, 8)) }])?;
                marks.store(2, Ordering::SeqCst);
                nccl.barrier()
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().expect("it ends")).collect::<Vec<_>>()
    });
    let reason = "cuEventQuery failed: an illegal address".to_string();
    assert_eq!(at_barrier, [Err(TransportError::Device { reason }), Ok(())]);
}
