//! How the processes of a run find each other over TCP, and keep everybody else out.
//!
//! Rank 0 listens where the launcher says. The others come to it, tell where they listen themselves, and get the list of
//! all. Then each connects to every rank below it, so that each pair has one connection.
//!
//! Whoever calls is asked who it is, and both sides prove that they know the [`Secret`] of the run:
//!
//! | from | bytes |
//! |---|---|
//! | caller | `pipeplan`, version (2), its own port (2), rank (4), world (4), nonce (16) |
//! | listener | `pipeplan`, nonce (16), HMAC-SHA-256 of "listener", the caller's bytes and this nonce (32) |
//! | caller | HMAC-SHA-256 of "caller", the caller's bytes and the listener's nonce (32) |
//! | listener | 0; or 1, a length (2) and the reason in UTF-8 |
//! | rank 0 | a length (4) and the addresses of ranks 1 and up, one a line |
//!
//! Where the run has certificates, all of it goes over TLS ([`secure`](super::secure)). Numbers are little-endian. A caller that is no rank of this run is dropped, and the wait goes on: each call has a thread of
//! its own, and [`HELLO_TIME`] for all that it has to say.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::secure::{Connection, Identity, Side};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// What only the processes of one run know, so that no other is let in: a text, empty where the run has none; and, where they
/// speak TLS, their certificates.
#[derive(Clone, Default)]
pub struct Secret {
    text: String,
    identity: Option<Identity>,
}

impl Secret {
    /// A secret with this text.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret { text: text.into(), identity: None }
    }

    /// That of one generation of the ranks of a run.
    pub fn of_generation(&self, generation: u32) -> Secret {
        Secret { text: format!("{}.{generation}", self.text), identity: self.identity.clone() }
    }

    /// The same over TLS, where there is an `identity`.
    pub fn with(self, identity: Option<Identity>) -> Secret {
        Secret { identity, ..self }
    }

    /// A secret that nobody can guess.
    ///
    /// # Errors
    /// Where the system has no random numbers.
    pub fn random() -> io::Result<Secret> {
        let bytes: [u8; 16] = random()?;
        Ok(Secret::new(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
    }

    /// Its text, for a process that this one starts.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn proof(&self, label: &str, hello: &[u8; HELLO], nonce: &Nonce) -> Hmac<Sha256> {
        let mut key = [0; 64];
        key[..32].copy_from_slice(&Sha256::digest(self.text.as_bytes()));
        let mut mac = Hmac::<Sha256>::new(&key.into());
        mac.update(label.as_bytes());
        mac.update(hello);
        mac.update(nonce);
        mac
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Why the ranks did not find each other.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Rank 0 cannot listen.
    #[error(
        "rank 0 cannot listen on {host}:{port}: {source}; MASTER_ADDR must name its host, MASTER_PORT a free port"
    )]
    Listen {
        /// The host given.
        host: String,
        /// The port given.
        port: u16,
        /// What the system says.
        source: io::Error,
    },
    /// Rank 0 is not there, or does not answer.
    #[error("rank {rank} could not reach rank 0 at {host}:{port} within {:.0} s: {source}", waited.as_secs_f64())]
    Unreachable {
        /// This rank.
        rank: usize,
        /// The host given.
        host: String,
        /// The port given.
        port: u16,
        /// How long it tried.
        waited: Duration,
        /// What the last try came to.
        source: io::Error,
    },
    /// Some ranks have not come.
    #[error(
        "rank {rank} waited {:.0} s at {place} for {missing:?} of {world} ranks to connect{}",
        waited.as_secs_f64(), turned_away(dropped)
    )]
    Missing {
        /// This rank.
        rank: usize,
        /// Where it listened.
        place: String,
        /// Ranks that have not come.
        missing: Vec<usize>,
        /// Ranks in all.
        world: usize,
        /// How long it waited.
        waited: Duration,
        /// Callers that were no rank of this run, and why.
        dropped: Vec<String>,
    },
    /// A rank of the same run says that this process is none of it.
    #[error("rank {rank} is not let in by rank {by}: {reason}")]
    NotLetIn {
        /// The rank that this process takes itself for.
        rank: usize,
        /// The rank that was called.
        by: usize,
        /// Its reason.
        reason: String,
    },
    /// Rank 0 of another run listens where that of this run should.
    #[error(
        "rank {rank} reached {host}:{port}, but rank 0 there is of another run: its secret differs (PIPEPLAN_SECRET, \
         or the run's name that the launcher sets); give each run a MASTER_PORT of its own"
    )]
    OtherRun {
        /// This rank.
        rank: usize,
        /// The host.
        host: String,
        /// The port.
        port: u16,
    },
    /// Something listens where rank 0 should, and is another program.
    #[error(
        "rank {rank} reached {host}:{port}, but the answer is not that of rank 0: check that MASTER_ADDR and \
         MASTER_PORT name rank 0 and not another program (the answer begins with {answer:?})"
    )]
    NotRankZero {
        /// This rank.
        rank: usize,
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// The first bytes of the answer.
        answer: String,
    },
    /// A rank of this run and this one do not trust each other's certificates, or one of them has none.
    #[error(
        "rank {rank} reached {place}, but TLS failed: {reason}; give all ranks --tls with certificates of one authority"
    )]
    Tls {
        /// This rank.
        rank: usize,
        /// Where it called.
        place: String,
        /// What went wrong.
        reason: String,
    },
    /// A connection broke.
    #[error("rank {rank} lost a connection before the start: {source}")]
    Broken {
        /// This rank.
        rank: usize,
        /// What the system says.
        source: io::Error,
    },
}

/// Callers that were dropped, as the end of a sentence.
fn turned_away(dropped: &[String]) -> String {
    match dropped {
        [] => String::new(),
        [one] => format!("; a caller was dropped: {one}"),
        [first, rest @ ..] => format!("; {} callers were dropped, the first: {first}", 1 + rest.len()),
    }
}

const MAGIC: &[u8; 8] = b"pipeplan";
/// Raised with every change of what processes say to each other.
const VERSION: u16 = 2;
const HELLO: usize = 8 + 2 + 2 + 4 + 4 + 16;
type Nonce = [u8; 16];
type Tag = [u8; 32];

/// The longest time that a caller may take to say who it is.
pub const HELLO_TIME: Duration = Duration::from_secs(5);
/// Callers that are listened to at the same time. Those beyond are dropped, and a rank among them calls again.
const MOST_CALLERS: usize = 512;
/// Reasons for dropping a caller that are kept.
const MOST_REASONS: usize = 100;
/// Bytes of an address and a port as text, at most.
const LONGEST_PLACE: usize = 64;
/// The stack of a thread that listens to one caller: it reads a few bytes.
const CALLER_STACK: usize = 128 << 10;
/// Between two calls at a rank that is not there yet.
const AGAIN: Duration = Duration::from_millis(20);

/// Who a caller says that it is.
#[derive(Clone, Copy)]
struct Caller {
    rank: usize,
    world: usize,
    port: u16,
}

impl Caller {
    fn hello(self, nonce: &Nonce) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.port.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.rank as u32).to_le_bytes());
        bytes[16..20].copy_from_slice(&(self.world as u32).to_le_bytes());
        bytes[20..].copy_from_slice(nonce);
        bytes
    }

    /// Who `hello` is from.
    fn of(hello: &[u8; HELLO]) -> Result<Caller, String> {
        let word = |at: usize| u32::from_le_bytes([hello[at], hello[at + 1], hello[at + 2], hello[at + 3]]) as usize;
        // The first record of a TLS handshake.
        if hello[..2] == [0x16, 3] {
            return Err("it speaks TLS, and this rank does not: give all ranks --tls".to_string());
        }
        if hello[..8] != *MAGIC {
            return Err(format!("it began with {:?}", text_of(&hello[..8])));
        }
        let version = u16::from_le_bytes([hello[8], hello[9]]);
        if version != VERSION {
            return Err(format!("it is another version of pipeplan (protocol {version}, here {VERSION})"));
        }
        Ok(Caller { rank: word(12), world: word(16), port: u16::from_le_bytes([hello[10], hello[11]]) })
    }
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(format!("no random numbers: {error}")))?;
    Ok(bytes)
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Reads by `read` from what `socket` carries, until `until`; nothing where the other side has closed it.
fn read_until(socket: &TcpStream, until: Instant, mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer came in time"));
        }
        socket.set_read_timeout(Some(left))?;
        match read() {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) => {}
            read => return read,
        }
    }
}

/// Some bytes that come from `socket` until `until`; none where the other side has closed it.
pub(super) fn read_some(socket: &TcpStream, bytes: &mut [u8], until: Instant) -> io::Result<usize> {
    let mut stream = socket;
    read_until(socket, until, || stream.read(bytes))
}

/// Fills `bytes` until `until`, however slowly they come. The bytes that came where it fails.
fn read_by(stream: &mut Connection, bytes: &mut [u8], until: Instant) -> Result<(), (usize, io::Error)> {
    let socket = stream.socket().try_clone().map_err(|error| (0, error))?;
    let mut at = 0;
    while at < bytes.len() {
        match read_until(&socket, until, || stream.read(&mut bytes[at..])).map_err(|error| (at, error))? {
            0 => {
                let closed = io::Error::new(io::ErrorKind::UnexpectedEof, "the other side closed the connection");
                return Err((at, closed));
            }
            read => at += read,
        }
    }
    Ok(())
}

/// Connects `rank` with all others of `world`, meeting at rank 0's `host` and `port`. Returns when all are connected: a
/// connection by rank, and none for this one.
///
/// # Errors
/// [`ConnectError`], at the latest after `patience`.
pub fn meet(
    rank: usize,
    world: usize,
    meeting: (&str, u16),
    secret: &Secret,
    patience: Duration,
) -> Result<Vec<Option<Connection>>, ConnectError> {
    let (host, port) = meeting;
    let started = Instant::now();
    let mut search =
        Search { rank, world, secret, started, until: started + patience, peers: Vec::new(), dropped: Vec::new() };
    search.peers.resize_with(world, || None);
    if rank > 0 {
        search.come(host, port)?;
    } else if world > 1 {
        let listener = TcpListener::bind((host, port));
        let listener = listener.map_err(|source| ConnectError::Listen { host: host.into(), port, source })?;
        search.host(&listener)?;
    }
    Ok(search.peers)
}

/// The search for the other ranks.
struct Search<'s> {
    rank: usize,
    world: usize,
    secret: &'s Secret,
    started: Instant,
    until: Instant,
    peers: Vec<Option<Connection>>,
    dropped: Vec<String>,
}

/// What a thread that listened to a caller has found.
enum Heard {
    Rank(Caller, Connection),
    Dropped(String),
}

/// Why a call came to nothing.
enum Call {
    /// Nothing was said, so that a second call may do better.
    Again(io::Error),
    /// Another program answers.
    Other(String),
    /// A rank of another run answers.
    OtherRun,
    /// TLS does not come about.
    Tls(String),
    /// A rank of this run does not let this process in.
    NotLetIn(String),
}

impl Search<'_> {
    fn broken(&self, source: io::Error) -> ConnectError {
        ConnectError::Broken { rank: self.rank, source }
    }

    /// Rank 0: waits for all, then tells each where the others listen.
    fn host(&mut self, listener: &TcpListener) -> Result<(), ConnectError> {
        let places = self.accept(listener, 1..self.world)?;
        let list: Vec<String> = places.iter().map(ToString::to_string).collect();
        let list = list.join("\n").into_bytes();
        for stream in self.peers.iter_mut().flatten() {
            let length = (list.len() as u32).to_le_bytes();
            let sent = stream.write_all(&length).and_then(|()| stream.write_all(&list));
            sent.map_err(|source| ConnectError::Broken { rank: 0, source })?;
        }
        Ok(())
    }

    /// Waits for each of `expected` and returns where they listen.
    fn accept(&mut self, listener: &TcpListener, expected: Range<usize>) -> Result<Vec<SocketAddr>, ConnectError> {
        listener.set_nonblocking(true).map_err(|source| self.broken(source))?;
        let mut places: Vec<Option<SocketAddr>> = vec![None; expected.len()];
        let (tell, heard) = mpsc::channel();
        let listened_to = Arc::new(AtomicUsize::new(0));
        while places.iter().any(Option::is_none) {
            if Instant::now() >= self.until {
                let missing = expected.clone().filter(|rank| places[rank - expected.start].is_none()).collect();
                let (rank, world, waited) = (self.rank, self.world, self.started.elapsed());
                let place =
                    listener.local_addr().map_or_else(|_| String::from("no address"), |place| place.to_string());
                let dropped = std::mem::take(&mut self.dropped);
                return Err(ConnectError::Missing { rank, place, missing, world, waited, dropped });
            }
            // All who are waiting, before another look at what they say.
            loop {
                match listener.accept() {
                    Ok((stream, _)) => self.listen(stream, &listened_to, &tell),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // A caller that has gone again, or more of them than this process may have open.
                    Err(error) => {
                        self.drop_caller(format!("it could not be accepted: {error}"));
                        thread::sleep(AGAIN);
                        break;
                    }
                }
            }
            match heard.recv_timeout(Duration::from_millis(5)) {
                Ok(Heard::Rank(caller, stream)) => self.judge(caller, stream, &expected, &mut places),
                Ok(Heard::Dropped(reason)) => self.drop_caller(reason),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
        Ok(places.into_iter().flatten().collect())
    }

    /// Listens to a caller in a thread of its own: whoever says nothing holds up nobody.
    fn listen(&mut self, stream: TcpStream, listened_to: &Arc<AtomicUsize>, tell: &Sender<Heard>) {
        if listened_to.load(Ordering::Relaxed) >= MOST_CALLERS {
            return self.drop_caller(format!("{MOST_CALLERS} others had not said who they are"));
        }
        let (secret, tell, counted) = (self.secret.clone(), tell.clone(), Arc::clone(listened_to));
        let until = self.until.min(Instant::now() + HELLO_TIME);
        counted.fetch_add(1, Ordering::Relaxed);
        let listening = move || {
            let heard = match admit(stream, &secret, until) {
                Ok((caller, stream)) => Heard::Rank(caller, stream),
                Err(reason) => Heard::Dropped(reason),
            };
            counted.fetch_sub(1, Ordering::Relaxed);
            // Where all ranks have come in the meantime, nobody asks.
            let _ = tell.send(heard);
        };
        let thread = thread::Builder::new().name("caller".to_string()).stack_size(CALLER_STACK).spawn(listening);
        if let Err(error) = thread {
            listened_to.fetch_sub(1, Ordering::Relaxed);
            self.drop_caller(format!("it could not be listened to: {error}"));
        }
    }

    /// Lets in a caller of this run, or tells it why not.
    fn judge(
        &mut self,
        caller: Caller,
        mut stream: Connection,
        expected: &Range<usize>,
        places: &mut [Option<SocketAddr>],
    ) {
        let Caller { rank, world, port } = caller;
        let fault = if world != self.world {
            Some(format!("it is rank {rank} of {world}, and this run has {} ranks", self.world))
        } else if !expected.contains(&rank) {
            Some(format!("rank {} expects ranks {} to {}, not {rank}", self.rank, expected.start, expected.end - 1))
        } else if places[rank - expected.start].is_some() {
            Some(format!("rank {rank} is connected already"))
        } else {
            None
        };
        if let Some(fault) = fault {
            let mut answer = vec![1];
            answer.extend((fault.len() as u16).to_le_bytes());
            answer.extend(fault.as_bytes());
            // One that has gone needs no reason.
            let _ = stream.write_all(&answer);
            return self.drop_caller(fault);
        }
        let from = stream.socket().peer_addr().and_then(|from| stream.write_all(&[0]).map(|()| from));
        match from {
            Ok(from) => {
                places[rank - expected.start] = Some(SocketAddr::new(from.ip(), port));
                self.peers[rank] = Some(stream);
            }
            Err(error) => self.drop_caller(format!("rank {rank} went away: {error}")),
        }
    }

    fn drop_caller(&mut self, reason: String) {
        if self.dropped.len() < MOST_REASONS {
            self.dropped.push(reason);
        }
    }

    /// Any other rank: comes to rank 0, then to all below it, then waits for all above.
    fn come(&mut self, host: &str, port: u16) -> Result<(), ConnectError> {
        let (mut meeting, listener, me) = self.reach(host, port)?;
        let mut length = [0; 4];
        let mut list = Vec::new();
        let read = read_by(&mut meeting, &mut length, self.until).and_then(|()| {
            let length = u32::from_le_bytes(length) as usize;
            if length > LONGEST_PLACE * self.world {
                return Err((4, io::Error::new(io::ErrorKind::InvalidData, "rank 0 did not send a list of ranks")));
            }
            list.resize(length, 0);
            read_by(&mut meeting, &mut list, self.until)
        });
        read.map_err(|(_, source)| self.broken(source))?;
        self.peers[0] = Some(meeting);
        // Ranks on rank 0's own host are known to it by an address that means another host here only if it is the
        // loopback; then all are on one host.
        let places = places_of(&list, self.world).map_err(|source| self.broken(source))?;
        for (peer, place) in (1..self.rank).zip(places) {
            let stream = loop {
                let called = TcpStream::connect_timeout(&place, self.left())
                    .map_err(Call::Again)
                    .and_then(|stream| call(stream, me, self.secret, self.until));
                match called {
                    Ok(stream) => break stream,
                    Err(Call::NotLetIn(reason)) => {
                        return Err(ConnectError::NotLetIn { rank: self.rank, by: peer, reason });
                    }
                    Err(Call::Again(_)) if Instant::now() < self.until => thread::sleep(AGAIN),
                    Err(Call::Again(source)) => return Err(self.broken(source)),
                    Err(Call::Tls(reason)) => {
                        let rank = self.rank;
                        return Err(ConnectError::Tls { rank, place: place.to_string(), reason });
                    }
                    Err(Call::Other(_) | Call::OtherRun) => {
                        let gone = format!("rank {peer} has gone: something else answers at {place}");
                        return Err(self.broken(io::Error::other(gone)));
                    }
                }
            };
            self.peers[peer] = Some(stream);
        }
        self.accept(&listener, self.rank + 1..self.world).map(|_| ())
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    /// A connection to rank 0, which may start later than this process, and where this rank itself listens.
    fn reach(&self, host: &str, port: u16) -> Result<(Connection, TcpListener, Caller), ConnectError> {
        let rank = self.rank;
        loop {
            let called = self.connect(host, port).map_err(Call::Again).and_then(|stream| {
                // Where rank 0 is reached from, the others reach this rank.
                let here = stream.local_addr().map_err(Call::Again)?.ip();
                let listener = TcpListener::bind((here, 0)).map_err(Call::Again)?;
                let own_port = listener.local_addr().map_err(Call::Again)?.port();
                let me = Caller { rank, world: self.world, port: own_port };
                call(stream, me, self.secret, self.until).map(|stream| (stream, listener, me))
            });
            let host = host.to_string();
            match called {
                Ok(found) => return Ok(found),
                Err(Call::Other(answer)) => return Err(ConnectError::NotRankZero { rank, host, port, answer }),
                Err(Call::OtherRun) => return Err(ConnectError::OtherRun { rank, host, port }),
                Err(Call::NotLetIn(reason)) => return Err(ConnectError::NotLetIn { rank, by: 0, reason }),
                Err(Call::Tls(reason)) => {
                    return Err(ConnectError::Tls { rank, place: format!("{host}:{port}"), reason });
                }
                Err(Call::Again(source)) if Instant::now() >= self.until => {
                    let waited = self.started.elapsed();
                    return Err(ConnectError::Unreachable { rank, host, port, waited, source });
                }
                Err(Call::Again(_)) => thread::sleep(AGAIN),
            }
        }
    }

    fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, self.left()) {
                // The system may pick the very port that is sought, and connect the socket to itself.
                Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {}
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// The places in rank 0's `list`, of all ranks but its own.
fn places_of(list: &[u8], world: usize) -> io::Result<Vec<SocketAddr>> {
    let places: Option<Vec<SocketAddr>> = text_of(list).lines().map(|line| line.parse().ok()).collect();
    let all = places.filter(|places| places.len() + 1 == world);
    all.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "rank 0 did not send a list of ranks"))
}

/// Listens to a caller: who it is, if it knows the secret, and the connection with it.
fn admit(socket: TcpStream, secret: &Secret, until: Instant) -> Result<(Caller, Connection), String> {
    let said = |(_, error): (usize, io::Error)| match error.kind() {
        io::ErrorKind::TimedOut => format!("it did not say in {} s who it is", HELLO_TIME.as_secs()),
        _ => error.to_string(),
    };
    let broken = |error: io::Error| error.to_string();
    socket.set_nonblocking(false).map_err(broken)?;
    // Whoever takes no answer is not waited for, either.
    socket.set_write_timeout(Some(HELLO_TIME)).map_err(broken)?;
    let opened = Connection::open(socket, secret.identity.as_ref(), Side::Listener, until);
    let mut stream = opened.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => format!("it has no certificate of this run: {error}"),
        _ => said((0, error)),
    })?;
    let mut hello = [0; HELLO];
    read_by(&mut stream, &mut hello, until).map_err(said)?;
    let caller = Caller::of(&hello)?;
    let nonce: Nonce = random().map_err(broken)?;
    let mut answer = MAGIC.to_vec();
    answer.extend(nonce);
    answer.extend(secret.proof("listener", &hello, &nonce).finalize().into_bytes());
    stream.write_all(&answer).map_err(broken)?;
    let mut proof: Tag = [0; 32];
    read_by(&mut stream, &mut proof, until).map_err(said)?;
    let known = secret.proof("caller", &hello, &nonce).verify_slice(&proof);
    known.map_err(|_| format!("it is rank {} of another run: its secret differs", caller.rank))?;
    Ok((caller, stream))
}

/// Tells a listener who this process is, and returns the connection once it is let in.
fn call(socket: TcpStream, me: Caller, secret: &Secret, until: Instant) -> Result<Connection, Call> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => Call::Tls(error.to_string()),
        _ => Call::Again(error),
    };
    let mut stream = Connection::open(socket, secret.identity.as_ref(), Side::Caller, until).map_err(failed)?;
    let hello = me.hello(&random().map_err(Call::Again)?);
    stream.write_all(&hello).map_err(Call::Again)?;
    let mut answer = [0; 8 + 16 + 32];
    let read = read_by(&mut stream, &mut answer, until);
    let came = read.as_ref().map_or_else(|(came, _)| *came, |()| answer.len());
    let begun = came.min(MAGIC.len());
    // An alert of TLS, to one who speaks none.
    if answer.starts_with(&[0x15, 3]) {
        return Err(Call::Tls("it speaks TLS, and this rank does not".to_string()));
    }
    if answer[..begun] != MAGIC[..begun] {
        return Err(Call::Other(text_of(&answer[..came.min(40)])));
    }
    // Over TLS a listener says only now what it thinks of the caller's certificate.
    read.map_err(|(_, error)| failed(error))?;
    let mut nonce: Nonce = [0; 16];
    nonce.copy_from_slice(&answer[8..24]);
    secret.proof("listener", &hello, &nonce).verify_slice(&answer[24..]).map_err(|_| Call::OtherRun)?;
    let proof = secret.proof("caller", &hello, &nonce).finalize().into_bytes();
    stream.write_all(&proof).map_err(Call::Again)?;
    let again = |(_, error): (usize, io::Error)| Call::Again(error);
    let mut verdict = [0; 1];
    read_by(&mut stream, &mut verdict, until).map_err(again)?;
    if verdict == [0] {
        return Ok(stream);
    }
    let mut length = [0; 2];
    read_by(&mut stream, &mut length, until).map_err(again)?;
    let mut reason = vec![0; usize::from(u16::from_le_bytes(length))];
    read_by(&mut stream, &mut reason, until).map_err(again)?;
    Err(Call::NotLetIn(text_of(&reason)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place that is left out would make each later rank another one.
    #[test]
    fn a_list_that_is_not_of_all_other_ranks_is_refused() {
        let list = b"127.0.0.1:7\n[::1]:8";
        assert_eq!(places_of(list, 3).expect("two others")[1].port(), 8);
        assert!(places_of(list, 2).is_err() && places_of(list, 4).is_err());
        assert!(places_of(b"127.0.0.1:7\nnowhere", 3).is_err() && places_of(b"\xff", 2).is_err());
    }
}
