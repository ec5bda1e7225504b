//! The order of calls, against a table of functions that only notes them; and the real library, where there is one.

use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::AtomicUsize;

use super::*;

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
    note(format!("send {count} to {peer}"))
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
    let communicator = Communicator::join(&library, id, (1, 2), 0, None, patience);
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
    assert_eq!(calls(), ["group start", "send 8 to 0", "receive 4 from 0", "group end", "ask"]);
    communicator.finish().expect("finished");
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
fn an_asynchronous_error_aborts_and_says_what_nccl_says() {
    answer(&[SUCCESS]);
    let (_, communicator, _) = joined(1000);
    let mut communicator = communicator.expect("joined");
    calls();
    answer(&[2]);
    let error = communicator.settle("a transfer").expect_err("it failed");
    assert_eq!(error.to_string(), "a transfer failed: unhandled system error: the cable is out");
    drop(communicator);
    assert_eq!(calls(), ["ask"]);
    assert_eq!(ends(), Some(1), "once, and it was waited for");
}

#[test]
fn another_ranks_end_ends_the_wait() {
    answer(&[SUCCESS]);
    let (_, communicator, ending) = joined(60_000);
    let mut communicator = communicator.expect("joined");
    answer(&[IN_PROGRESS]);
    ending.raise();
    assert_eq!(communicator.settle("a transfer"), Err(NcclError::Aborted));
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
    assert!(check(22_907, true).is_some_and(|error| error.contains("ranks [0, 2] are on one GPU, and NCCL 2.29.7")));
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
