//! The engine over TCP on this host, with threads in the place of processes.

use std::net::TcpListener;
use std::sync::Barrier;
use std::thread;

use pipeplan_core::program::P2pOp;

use super::*;
use crate::transport::collectives::{CollectiveError, Reduction};
use crate::transport::tcp::Tcp;

fn tag(text: &str) -> Tag {
    Tag::of(0, text.parse::<P2pOp>().expect("a message"))
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}

type End = Processes<Tcp>;

/// Runs `row` as each rank of a world of `ranks`, which all end well.
fn run<R: Send>(ranks: usize, patience_ms: u64, row: impl Fn(&mut End) -> R + Sync) -> Vec<R> {
    run_abrupt(ranks, patience_ms, |end| {
        let result = row(end);
        end.control().leave();
        result
    })
}

/// Runs `row` as each rank, and ends each as a process that dies.
fn run_abrupt<R: Send>(ranks: usize, patience_ms: u64, row: impl Fn(&mut End) -> R + Sync) -> Vec<R> {
    let port = free_port();
    thread::scope(|scope| {
        let row = &row;
        let start = move |rank| {
            let link = Tcp::connect(rank, ranks, ("127.0.0.1", port), Duration::from_secs(20)).expect("connected");
            row(&mut Processes::new(link, Duration::from_millis(patience_ms)))
        };
        // The last rank first: a rank that comes early waits for rank 0.
        let handles: Vec<_> = (0..ranks).rev().map(|rank| scope.spawn(move || start(rank))).collect();
        let mut results: Vec<R> = handles.into_iter().map(|handle| handle.join().expect("a rank panicked")).collect();
        results.reverse();
        results
    })
}

#[test]
fn parcels_arrive_whole_and_in_order() {
    let received = run(3, 20_000, |end| {
        let rank = end.rank();
        let (next, before) = ((rank + 1) % 3, (rank + 2) % 3);
        let mut all = Vec::new();
        for microbatch in 0..40u32 {
            let length = if microbatch % 10 == 0 { 100_000 } else { microbatch as usize };
            let buffer = Buffer::F32(vec![rank as f32; length]);
            let tag = tag(&format!("0SEND_F{microbatch}"));
            let send = Outgoing { peer: next, tag, buffer };
            all.extend(end.exchange(vec![send], &[Incoming { peer: before, tag }]).expect("it arrives"));
        }
        end.barrier().expect("all come");
        all
    });
    for (rank, buffers) in received.iter().enumerate() {
        let from = ((rank + 2) % 3) as f32;
        for (microbatch, buffer) in buffers.iter().enumerate() {
            let length = if microbatch % 10 == 0 { 100_000 } else { microbatch };
            assert_eq!(*buffer, Buffer::F32(vec![from; length]));
        }
    }
}

#[test]
fn channels_do_not_wait_for_each_other() {
    let received = run(2, 20_000, |end| {
        let (forward, backward) = (tag("0SEND_F0"), tag("1SEND_B0"));
        if end.rank() == 0 {
            end.send(1, backward, Buffer::F64(vec![2.0])).expect("sent");
            end.send(1, forward, Buffer::F64(vec![1.0])).expect("sent");
            return Vec::new();
        }
        vec![end.receive(0, forward).expect("it arrives"), end.receive(0, backward).expect("it arrives")]
    });
    assert_eq!(received[1], [Buffer::F64(vec![1.0]), Buffer::F64(vec![2.0])]);
}

#[test]
fn collectives_give_the_bits_that_threads_give() {
    let sum = |end: &mut dyn Transport| -> Result<Vec<u32>, CollectiveError> {
        let mut values: Vec<f32> = (0..2000).map(|at| 0.1 * (at + 7 * end.rank()) as f32).collect();
        let mut group = Group::world(end);
        end.all_reduce(&mut group, &mut values, Reduction::Avg)?;
        Ok(values.into_iter().map(f32::to_bits).collect())
    };
    let over_tcp = run(4, 20_000, |end| sum(end).expect("it ends"));
    let ends = crate::transport::threads::world(4, Default::default());
    let over_threads: Vec<Vec<u32>> = thread::scope(|scope| {
        let handles: Vec<_> = ends.into_iter().map(|mut end| scope.spawn(move || sum(&mut end))).collect();
        handles.into_iter().map(|handle| handle.join().expect("no panic").expect("it ends")).collect()
    });
    assert_eq!(over_tcp, over_threads);
}

#[test]
fn a_rank_that_is_gone_is_named_at_once() {
    let started = Instant::now();
    // Whoever has noticed stays until the other has too: its own end would be a second loss.
    let noticed = Barrier::new(2);
    let errors = run_abrupt(3, 60_000, |end| {
        if end.rank() == 1 {
            return None;
        }
        let error = end.receive(1, tag("0SEND_F0")).err();
        noticed.wait();
        error
    });
    for rank in [0, 2] {
        assert!(matches!(errors[rank], Some(TransportError::PeerLost { peer: 1, .. })), "{errors:?}");
    }
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_rank_that_left_well_is_missed_only_by_those_who_wait_for_it() {
    let errors = run_abrupt(3, 60_000, |end| {
        let hello = Outgoing { peer: 0, tag: tag("2SEND_F9"), buffer: Buffer::Nothing };
        match end.rank() {
            0 => {
                let last = end.receive(2, tag("2SEND_F9")).err();
                (last, end.receive(1, tag("0SEND_F0")).err())
            }
            1 => {
                end.control().leave();
                (None, None)
            }
            _ => {
                thread::sleep(Duration::from_millis(100));
                let sent = end.exchange(vec![hello], &[]).err();
                // Stays until rank 0 has ended.
                end.control().listen(Duration::from_millis(400));
                (sent, None)
            }
        }
    });
    assert_eq!(errors[0].0, None, "rank 1 had left, and nobody needed it");
    assert!(matches!(errors[0].1, Some(TransportError::PeerLost { peer: 1, .. })), "{errors:?}");
    assert_eq!(errors[2].0, None);
}

#[test]
fn last_words_end_every_wait_and_reach_all() {
    let started = Instant::now();
    let words = LastWords { training_step: 4, index: 17, state: 2, cause: "out of numbers".to_string() };
    let heard = run_abrupt(3, 60_000, |end| {
        if end.rank() == 1 {
            thread::sleep(Duration::from_millis(50));
            end.control().say(words.clone());
            return end.control().listen(Duration::from_secs(5)).0;
        }
        assert_eq!(end.barrier().err(), Some(TransportError::Aborted));
        end.control().say(LastWords { training_step: 4, ..LastWords::default() });
        end.control().listen(Duration::from_secs(5)).0
    });
    assert_eq!(heard[0].get(&1), Some(&words));
    assert_eq!(heard[2].get(&1), Some(&words));
    assert_eq!(heard[1].keys().copied().collect::<Vec<_>>(), [0, 2]);
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_silent_peer_ends_in_a_time_out_that_names_it() {
    let errors = run_abrupt(2, 200, |end| match end.rank() {
        0 => {
            thread::sleep(Duration::from_millis(600));
            None
        }
        _ => end.receive(0, tag("0SEND_F3")).err(),
    });
    match errors[1].as_ref().expect("no parcel came") {
        TransportError::TimedOut { peer: 0, receiving: true, tag: waited_for, .. } => {
            assert_eq!(*waited_for, tag("0SEND_F3"));
        }
        other => panic!("{other}"),
    }
}

/// A rank that meets another program where rank 0 should be says so, whether that answers or not.
#[test]
fn another_program_in_the_place_of_rank_zero_is_told() {
    for answers in [false, true] {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            if answers {
                std::io::Write::write_all(&mut stream, b"HTTP/1.0 400 Bad Request\r\n\r\n").unwrap();
            }
            std::thread::sleep(Duration::from_millis(400));
        });
        let error = Tcp::connect(1, 2, ("127.0.0.1", port), Duration::from_millis(200)).err().expect("no rank 0");
        let told = format!("rank 1 reached 127.0.0.1:{port}, but the answer is not that of rank 0");
        assert!(error.to_string().starts_with(&told), "{error}");
        other.join().unwrap();
    }
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let port = free_port();
    let error = Tcp::connect(0, 3, ("127.0.0.1", port), Duration::from_millis(200)).err().expect("nobody comes");
    let waited = format!("rank 0 waited 0 s at 127.0.0.1:{port} for [1, 2] of 3 ranks to connect");
    assert_eq!(error.to_string(), waited);
    let error =
        Tcp::connect(2, 3, ("127.0.0.1", free_port()), Duration::from_millis(200)).err().expect("nobody there");
    assert!(error.to_string().starts_with("rank 2 could not reach rank 0 at 127.0.0.1:"), "{error}");
}

#[test]
fn whoever_else_calls_is_not_let_in() {
    let port = free_port();
    thread::scope(|scope| {
        let zero = scope.spawn(move || Tcp::connect(0, 2, ("127.0.0.1", port), Duration::from_secs(20)));
        scope.spawn(move || {
            // Connects and leaves, as a port scanner does.
            while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
                thread::sleep(Duration::from_millis(5));
            }
            Tcp::connect(1, 2, ("127.0.0.1", port), Duration::from_secs(20)).map(|_| ()).expect("let in");
        });
        assert!(zero.join().expect("no panic").is_ok());
    });
    let port = free_port();
    thread::scope(|scope| {
        let zero = scope.spawn(move || Tcp::connect(0, 2, ("127.0.0.1", port), Duration::from_secs(20)));
        scope.spawn(move || Tcp::connect(1, 3, ("127.0.0.1", port), Duration::from_secs(20)).map(|_| ()));
        let error = zero.join().expect("no panic").err().expect("two worlds");
        assert_eq!(error.to_string(), "a process connected as rank 1 of 3; the run has 2 ranks, each once");
    });
}
