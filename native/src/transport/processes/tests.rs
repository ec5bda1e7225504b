//! The engine over TCP on this host, with threads in the place of processes.

use std::io::Write;
use std::net::TcpListener;
use std::sync::Barrier;
use std::thread;

use pipeplan_core::program::P2pOp;

use super::*;
use crate::transport::collectives::{CollectiveError, Reduction};
use crate::transport::rendezvous::{ConnectError, Secret};
use crate::transport::secure::Identity;
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

/// A rank that meets the others at `port` of this host.
fn connect(rank: usize, world: usize, port: u16, patience_ms: u64) -> Result<Tcp, ConnectError> {
    connect_with("one run", rank, world, port, patience_ms)
}

fn connect_with(secret: &str, rank: usize, world: usize, port: u16, patience_ms: u64) -> Result<Tcp, ConnectError> {
    connect_by(&Secret::new(secret), rank, world, port, patience_ms)
}

fn connect_by(secret: &Secret, rank: usize, world: usize, port: u16, patience_ms: u64) -> Result<Tcp, ConnectError> {
    Tcp::connect(rank, world, ("127.0.0.1", port), secret, 1 << 30, Duration::from_millis(patience_ms))
}

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
            let link = connect(rank, ranks, port, 20_000).expect("connected");
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

/// The first address of `listener`, and a thread that does `what` with the first that calls.
fn other_program(what: impl FnOnce(std::net::TcpStream) + Send + 'static) -> (u16, thread::JoinHandle<()>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    (port, thread::spawn(move || what(listener.accept().expect("a caller").0)))
}

/// Another program is blamed where one has answered, and only there.
#[test]
fn another_program_in_the_place_of_rank_zero_is_told() {
    let (port, other) = other_program(|mut stream| {
        stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n").expect("sent");
        thread::sleep(Duration::from_millis(400));
    });
    let error = connect(1, 2, port, 20_000).err().expect("no rank 0").to_string();
    assert!(error.contains("the answer is not that of rank 0") && error.contains("HTTP/1.0 400"), "{error}");
    other.join().expect("no panic");
    let (port, other) = other_program(|_silent| thread::sleep(Duration::from_millis(400)));
    let error = connect(1, 2, port, 200).err().expect("no rank 0").to_string();
    assert!(error.starts_with("rank 1 could not reach rank 0 at 127.0.0.1:"), "{error}");
    assert!(error.ends_with("no answer came in time"), "{error}");
    other.join().expect("no panic");
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let port = free_port();
    let error = connect(0, 3, port, 200).err().expect("nobody comes");
    let waited = format!("rank 0 waited 0 s at 127.0.0.1:{port} for [1, 2] of 3 ranks to connect");
    assert_eq!(error.to_string(), waited);
    let error = connect(2, 3, free_port(), 200).err().expect("nobody there");
    assert!(error.to_string().starts_with("rank 2 could not reach rank 0 at 127.0.0.1:"), "{error}");
}

/// A connection to `port`, as soon as somebody listens there.
fn caller(port: u16) -> std::net::TcpStream {
    loop {
        match std::net::TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Whoever is no rank of the run calls first, in every way that was thought of; then the run starts all the same.
#[test]
fn a_run_starts_whoever_else_calls() {
    let port = free_port();
    let strangers: [fn(u16); 7] = [
        // A port scanner: connects and leaves.
        |port| drop(caller(port)),
        // A hundred that say nothing, and stay.
        |port| {
            let silent: Vec<_> = (0..100).map(|_| caller(port)).collect();
            thread::sleep(Duration::from_millis(300));
            drop(silent);
        },
        // A browser.
        |port| {
            let text = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: a browser\r\n\r\n";
            let _ = caller(port).write_all(text);
        },
        // One that says a byte at a time.
        |port| {
            let mut stream = caller(port);
            for byte in b"pipep" {
                let _ = stream.write_all(&[*byte]);
                thread::sleep(Duration::from_millis(50));
            }
        },
        // A rank of another run.
        |port| {
            let error = connect_with("another run", 1, 3, port, 5_000).err().expect("not let in");
            assert!(matches!(error, ConnectError::OtherRun { rank: 1, .. }), "{error}");
        },
        // A rank of a larger world.
        |port| {
            let error = connect(1, 4, port, 5_000).err().expect("not let in").to_string();
            let reason = "it is rank 1 of 4, and this run has 3 ranks";
            assert_eq!(error, format!("rank 1 is not let in by rank 0: {reason}"));
        },
        // One that takes itself for rank 0 as well, and so listens; the port is taken.
        |port| {
            drop(caller(port));
            assert!(matches!(connect(0, 3, port, 5_000), Err(ConnectError::Listen { .. })));
        },
    ];
    thread::scope(|scope| {
        let zero = scope.spawn(move || connect(0, 3, port, 20_000));
        let called: Vec<_> = strangers.iter().map(|stranger| scope.spawn(move || stranger(port))).collect();
        called.into_iter().for_each(|called| called.join().expect("as it should be"));
        let others: Vec<_> = (1..3).map(|rank| scope.spawn(move || connect(rank, 3, port, 20_000))).collect();
        for joined in others.into_iter().chain([zero]) {
            joined.join().expect("no panic").expect("connected");
        }
    });
}

/// Of two that are both rank 1 the first is let in, and the second is told.
#[test]
fn a_rank_that_is_there_twice_is_told() {
    let port = free_port();
    thread::scope(|scope| {
        let zero = scope.spawn(move || connect(0, 3, port, 20_000));
        let twins: Vec<_> = (0..2).map(|_| scope.spawn(move || connect(1, 3, port, 3_000))).collect();
        thread::sleep(Duration::from_millis(300));
        let two = scope.spawn(move || connect(2, 3, port, 20_000));
        let ended: Vec<_> = twins.into_iter().map(|twin| twin.join().expect("no panic")).collect();
        assert_eq!(ended.iter().filter(|end| end.is_ok()).count(), 1);
        let refused = ended.into_iter().find_map(Result::err).expect("one is not let in").to_string();
        assert_eq!(refused, "rank 1 is not let in by rank 0: rank 1 is connected already");
        assert!(zero.join().expect("no panic").is_ok() && two.join().expect("no panic").is_ok());
    });
}

/// Who was dropped is said where ranks are missing.
#[test]
fn callers_that_were_dropped_are_told() {
    let port = free_port();
    thread::scope(|scope| {
        let zero = scope.spawn(move || connect(0, 2, port, 1_000));
        connect_with("another run", 1, 2, port, 900).err().expect("not let in");
        let error = zero.join().expect("no panic").err().expect("nobody comes").to_string();
        assert!(error.contains("[1] of 2 ranks to connect; a caller was dropped: "), "{error}");
    });
}

/// A bit that changes on the way is noticed, wherever it is; so is a length that no plan sends.
#[test]
fn damage_on_the_way_names_the_rank_and_what_it_sent() {
    let parcel = Frame::Parcel(tag("0SEND_F3"), Buffer::F32(vec![1.0, 2.0])).to_bytes();
    let whole = crate::transport::tcp::framed(&parcel);
    for bit in (0..8 * whole.len()).step_by(7) {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let said = crate::transport::tcp::heard(&damaged, 1 << 20);
        assert!(said.is_err_and(|said| said.contains("damaged")), "bit {bit}");
    }
    let mut damaged = whole.clone();
    *damaged.last_mut().expect("bytes") ^= 1;
    let said = crate::transport::tcp::heard(&damaged, 1 << 20).expect_err("damaged");
    assert_eq!(said, "its data arrived damaged: the checksum of 0SEND_F3 of step 0, 24 bytes, is wrong");
    assert_eq!(crate::transport::tcp::heard(&whole, 1 << 20).as_ref(), Ok(&parcel));
    let said = crate::transport::tcp::heard(&whole, 20).expect_err("too long");
    assert_eq!(said, "it announced a frame of 24 bytes, where the plan sends at most 20");
}

/// An authority, and a folder in which its own certificate and those that it signs are.
struct Authority {
    folder: tempfile::TempDir,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let folder = tempfile::tempdir().expect("a folder");
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut of = rcgen::CertificateParams::new(Vec::new()).expect("no names");
        of.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let own = of.self_signed(&key).expect("signed");
        std::fs::write(folder.path().join("ca.pem"), own.pem()).expect("written");
        Authority { folder, issuer: rcgen::Issuer::new(of, key) }
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Signs a certificate for `name`, and gives the files of it and its key.
    fn sign(&self, name: &str) -> [std::path::PathBuf; 2] {
        let key = rcgen::KeyPair::generate().expect("a key");
        let of = rcgen::CertificateParams::new(vec![name.to_string()]).expect("a name");
        let signed = of.signed_by(&key, &self.issuer).expect("signed");
        let files = [self.file(&format!("{name}.pem")), self.file(&format!("{name}.key"))];
        std::fs::write(&files[0], signed.pem()).expect("written");
        std::fs::write(&files[1], key.serialize_pem()).expect("written");
        files
    }

    /// The secret of a run whose ranks have certificates by this authority.
    fn secret(&self) -> Secret {
        let [certificate, key] = self.sign(crate::transport::secure::NAME);
        let identity = Identity::read(&certificate, &key, &self.file("ca.pem")).expect("sound");
        Secret::new("one run").with(Some(identity))
    }
}

/// Strangers without a certificate, with one of another authority and without TLS call first; the run starts, and what goes over
/// its connections is what was sent, in pieces of any size and both ways at once.
#[test]
fn ranks_meet_over_tls_and_nobody_else_does() {
    let (ours, other) = (Authority::new().secret(), Authority::new().secret());
    let port = free_port();
    let (ours, other) = (&ours, &other);
    let strangers: [&(dyn Fn() + Sync); 4] = [
        &|| {
            let _ = caller(port).write_all(b"GET / HTTP/1.1\r\n\r\n");
        },
        &|| {
            let silent = caller(port);
            thread::sleep(Duration::from_millis(300));
            drop(silent);
        },
        // A rank that knows the secret, and speaks no TLS.
        &|| {
            let error = connect(1, 2, port, 5_000).err().expect("not let in").to_string();
            assert!(error.contains("it speaks TLS, and this rank does not; give all ranks --tls"), "{error}");
        },
        &|| {
            let error = connect_by(other, 1, 2, port, 5_000).err().expect("not let in").to_string();
            assert!(error.contains("but TLS failed: TLS: invalid peer certificate"), "{error}");
        },
    ];
    let payload: Vec<f32> = (0..300_000u32).map(|number| number as f32).collect();
    thread::scope(|scope| {
        let rank = |rank: usize| {
            let payload = payload.clone();
            move || {
                let link = connect_by(ours, rank, 2, port, 20_000).expect("connected");
                let mut end = Processes::new(link, Duration::from_secs(20));
                let peer = 1 - rank;
                for step in 0..3 {
                    let tags = [
                        Tag::of(step, "0SEND_F3".parse().expect("one")),
                        Tag::of(step, "1SEND_B3".parse().expect("one")),
                    ];
                    let send = Outgoing { peer, tag: tags[rank], buffer: Buffer::F32(payload.clone()) };
                    let came = end.exchange(vec![send], &[Incoming { peer, tag: tags[peer] }]).expect("exchanged");
                    assert_eq!(came, [Buffer::F32(payload.clone())]);
                }
                end.control().leave();
            }
        };
        let zero = scope.spawn(rank(0));
        let called: Vec<_> = strangers.iter().map(|stranger| scope.spawn(stranger)).collect();
        called.into_iter().for_each(|called| called.join().expect("as it should be"));
        let one = scope.spawn(rank(1));
        one.join().expect("no panic");
        zero.join().expect("no panic");
    });
}

/// Who was dropped is said where ranks are missing, on either side of the question who speaks TLS.
#[test]
fn callers_without_a_certificate_are_told() {
    let secret = &Authority::new().secret();
    for (listens_in_tls, says) in
        [(true, "it has no certificate of this run: TLS: "), (false, "it speaks TLS, and this rank does not")]
    {
        let port = free_port();
        thread::scope(|scope| {
            let plain = Secret::new("one run");
            let (zero, one) = if listens_in_tls { (secret.clone(), plain) } else { (plain, secret.clone()) };
            let zero = scope.spawn(move || connect_by(&zero, 0, 2, port, 1_000));
            connect_by(&one, 1, 2, port, 900).err().expect("not let in");
            let error = zero.join().expect("no panic").err().expect("nobody comes").to_string();
            assert!(error.contains("of 2 ranks to connect") && error.contains(says), "{error}");
        });
    }
}

#[test]
fn certificates_that_no_rank_would_accept_are_named_before_the_run() {
    let (ours, other) = (Authority::new(), Authority::new());
    let ([certificate, key], [_, other_key]) = (ours.sign("pipeplan"), other.sign("pipeplan"));
    let [elsewhere, elsewhere_key] = ours.sign("example.org");
    let (ca, other_ca, missing) = (ours.file("ca.pem"), other.file("ca.pem"), ours.file("missing.pem"));
    for (files, at, says) in [
        ([&certificate, &key, &other_ca], &certificate, "the certificate is not signed by"),
        ([&elsewhere, &elsewhere_key, &ca], &elsewhere, "or is not for the name pipeplan now"),
        ([&certificate, &other_key, &ca], &other_key, "KeyMismatch"),
        ([&certificate, &certificate, &ca], &certificate, "no items found"),
        ([&key, &key, &ca], &key, "it has no certificate in PEM"),
        ([&certificate, &key, &missing], &missing, "No such file"),
    ] {
        let [certificate, key, ca] = files;
        let error = Identity::read(certificate, key, ca).err().expect("refused").to_string();
        assert!(error.starts_with(&format!("{}: ", at.display())) && error.contains(says), "{error}");
    }
}
