//! Processes over TCP: no library but the system's.
//!
//! Rank 0 listens where the launcher says; the others come to it, tell where they listen themselves, and get the
//! list of all. Then each connects to every rank below it, so that each pair has one connection. A process that dies
//! is noticed by the end of its connections, at once; a host that vanishes, by the engine's time-out.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::processes::{Event, Link};

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
    /// Rank 0 is not there.
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
        /// What the system says.
        source: io::Error,
    },
    /// Some ranks have not come.
    #[error("rank {rank} waited {:.0} s at {place} for {missing:?} of {world} ranks to connect", waited.as_secs_f64())]
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
    },
    /// A process that says it belongs here, and does not fit.
    #[error("a process connected as rank {rank} of {found}; the run has {world} ranks, each once")]
    Stranger {
        /// Its rank.
        rank: usize,
        /// The world that it believes in.
        found: usize,
        /// The world here.
        world: usize,
    },
    /// Something listens where rank 0 should, and is another program.
    #[error(
        "rank {rank} reached {host}:{port}, but the answer is not that of rank 0: check that MASTER_ADDR and \
         MASTER_PORT name rank 0 and not another program ({source})"
    )]
    NotRankZero {
        /// This rank.
        rank: usize,
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// What was wrong with the answer.
        source: io::Error,
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

/// One process' end of all its connections.
pub struct Tcp {
    rank: usize,
    /// By rank: where frames for it go; none for this rank.
    writers: Vec<Option<Sender<Vec<u8>>>>,
    streams: Vec<TcpStream>,
    /// Frames handed over and not yet given to the system.
    waiting: Arc<AtomicUsize>,
    events: Receiver<Event>,
}

/// What a process says first: who it is, and where it listens.
const MAGIC: &[u8; 8] = b"pipeplan";
const HELLO: usize = 8 + 4 + 4 + 2;

fn hello(rank: usize, world: usize, port: u16) -> [u8; HELLO] {
    let mut bytes = [0; HELLO];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&(rank as u32).to_le_bytes());
    bytes[12..16].copy_from_slice(&(world as u32).to_le_bytes());
    bytes[16..].copy_from_slice(&port.to_le_bytes());
    bytes
}

/// Rank, world and port of a caller; none where it is no process of ours.
fn heard(stream: &mut TcpStream) -> Option<(usize, usize, u16)> {
    stream.set_nonblocking(false).ok()?;
    // Whoever connects and says nothing must not hold up the others for long.
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    let mut bytes = [0; HELLO];
    stream.read_exact(&mut bytes).ok()?;
    let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize);
    let found = (number(8)?, number(12)?, u16::from_le_bytes([bytes[16], bytes[17]]));
    (bytes[..8] == *MAGIC).then_some(found)
}

impl Tcp {
    /// Connects `rank` with all others of `world`, meeting at rank 0's `host` and `port`. Returns when all are
    /// connected.
    ///
    /// # Errors
    /// [`ConnectError`], at the latest after `patience`.
    pub fn connect(rank: usize, world: usize, meeting: (&str, u16), patience: Duration) -> Result<Tcp, ConnectError> {
        let (host, port) = meeting;
        let mut search = Search { rank, world, patience, started: Instant::now(), peers: Vec::new() };
        search.peers.resize_with(world, || None);
        if rank == 0 {
            if world > 1 {
                let listener = TcpListener::bind((host, port));
                let listener = listener.map_err(|source| ConnectError::Listen { host: host.into(), port, source })?;
                search.meet(&listener)?;
            }
        } else {
            search.come(host, port)?;
        }
        let broken = |source| ConnectError::Broken { rank, source };
        Tcp::over(rank, search.peers).map_err(broken)
    }

    fn over(rank: usize, peers: Vec<Option<TcpStream>>) -> io::Result<Tcp> {
        let (tell, events) = mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let mut writers = Vec::with_capacity(peers.len());
        let mut streams = Vec::new();
        for (peer, stream) in peers.into_iter().enumerate() {
            let Some(stream) = stream else {
                writers.push(None);
                continue;
            };
            stream.set_nodelay(true)?;
            stream.set_read_timeout(None)?;
            let (reading, mut writing) = (stream.try_clone()?, stream.try_clone()?);
            streams.push(stream);
            let tell = tell.clone();
            thread::Builder::new().name(format!("from rank {peer}")).spawn(move || read_all(peer, reading, &tell))?;
            let (hand, frames) = mpsc::channel::<Vec<u8>>();
            let counted = Arc::clone(&waiting);
            thread::Builder::new().name(format!("to rank {peer}")).spawn(move || {
                for frame in frames {
                    let length = (frame.len() as u64).to_le_bytes();
                    // A broken connection is noticed by its reader.
                    let _ = writing.write_all(&length).and_then(|()| writing.write_all(&frame));
                    counted.fetch_sub(1, Ordering::AcqRel);
                }
            })?;
            writers.push(Some(hand));
        }
        Ok(Tcp { rank, writers, streams, waiting, events })
    }
}

fn read_all(peer: usize, mut stream: TcpStream, tell: &Sender<Event>) {
    let reason = loop {
        let mut length = [0; 8];
        if let Err(error) = stream.read_exact(&mut length) {
            break match error.kind() {
                // A system closes the connections of a process that died with or without what was still unread.
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                    "its process ended and closed the connection".to_string()
                }
                _ => format!("its connection broke: {error}"),
            };
        }
        let length = u64::from_le_bytes(length);
        // Memory is taken as the bytes come, so that a wrong length takes none.
        let mut frame = Vec::new();
        match Read::take(&mut stream, length).read_to_end(&mut frame) {
            Ok(read) if read as u64 == length => {}
            Ok(_) => break "its process ended in the middle of a transfer".to_string(),
            Err(error) => break format!("its connection broke: {error}"),
        }
        if tell.send(Event::Frame(peer, frame)).is_err() {
            return;
        }
    };
    let _ = tell.send(Event::Lost(peer, reason));
}

/// The search for the other ranks.
struct Search {
    rank: usize,
    world: usize,
    patience: Duration,
    started: Instant,
    peers: Vec<Option<TcpStream>>,
}

/// Bytes of an address and a port as text, at most.
const LONGEST_PLACE: usize = 64;

impl Search {
    fn broken(&self, source: io::Error) -> ConnectError {
        ConnectError::Broken { rank: self.rank, source }
    }

    fn left(&self) -> Option<Duration> {
        self.patience.checked_sub(self.started.elapsed()).filter(|left| !left.is_zero())
    }

    /// Rank 0: waits for all, then tells each where the others listen.
    fn meet(&mut self, listener: &TcpListener) -> Result<(), ConnectError> {
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
    fn accept(
        &mut self,
        listener: &TcpListener,
        expected: std::ops::Range<usize>,
    ) -> Result<Vec<SocketAddr>, ConnectError> {
        listener.set_nonblocking(true).map_err(|source| self.broken(source))?;
        let mut places: Vec<Option<SocketAddr>> = vec![None; expected.len()];
        while places.iter().any(Option::is_none) {
            if self.left().is_none() {
                let missing = expected.clone().filter(|rank| places[rank - expected.start].is_none()).collect();
                let (rank, world, waited) = (self.rank, self.world, self.started.elapsed());
                let place =
                    listener.local_addr().map_or_else(|_| String::from("no address"), |place| place.to_string());
                return Err(ConnectError::Missing { rank, place, missing, world, waited });
            }
            let (mut stream, from) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                }
                Err(error) => return Err(self.broken(error)),
            };
            let Some((rank, found, port)) = heard(&mut stream) else { continue };
            let fits = found == self.world && expected.contains(&rank) && places[rank - expected.start].is_none();
            if !fits {
                return Err(ConnectError::Stranger { rank, found, world: self.world });
            }
            places[rank - expected.start] = Some(SocketAddr::new(from.ip(), port));
            self.peers[rank] = Some(stream);
        }
        Ok(places.into_iter().flatten().collect())
    }

    /// Any other rank: comes to rank 0, then to all below it, then waits for all above.
    fn come(&mut self, host: &str, port: u16) -> Result<(), ConnectError> {
        let mut meeting = self.reach(host, port)?;
        let here = meeting.local_addr().map_err(|source| self.broken(source))?.ip();
        let listener = TcpListener::bind((here, 0)).map_err(|source| self.broken(source))?;
        let own_port = listener.local_addr().map_err(|source| self.broken(source))?.port();
        let left = self.left().unwrap_or(Duration::from_millis(1));
        let mut list = Vec::new();
        let answered = (|| {
            meeting.write_all(&hello(self.rank, self.world, own_port))?;
            meeting.set_read_timeout(Some(left))?;
            let mut length = [0; 4];
            meeting.read_exact(&mut length)?;
            let length = u32::from_le_bytes(length);
            if length as usize > LONGEST_PLACE * self.world {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer is not a list of ranks"));
            }
            Read::take(&mut meeting, length.into()).read_to_end(&mut list)?;
            Ok(())
        })();
        answered.map_err(|source| ConnectError::NotRankZero { rank: self.rank, host: host.into(), port, source })?;
        self.peers[0] = Some(meeting);
        let text = String::from_utf8_lossy(&list);
        // Ranks on rank 0's own host are known to it by an address that means another host here only if it is the
        // loopback; then all are on one host.
        let places: Vec<SocketAddr> = text.lines().filter_map(|line| line.parse().ok()).collect();
        for (peer, place) in (1..self.rank).zip(places) {
            let mut stream = TcpStream::connect(place).map_err(|source| self.broken(source))?;
            stream.write_all(&hello(self.rank, self.world, own_port)).map_err(|source| self.broken(source))?;
            self.peers[peer] = Some(stream);
        }
        self.accept(&listener, self.rank + 1..self.world).map(|_| ())
    }

    /// A connection to rank 0, which may start later than this process.
    fn reach(&self, host: &str, port: u16) -> Result<TcpStream, ConnectError> {
        loop {
            let addresses: io::Result<Vec<SocketAddr>> = (host, port).to_socket_addrs().map(Iterator::collect);
            let tried = addresses.and_then(|addresses| {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
                for address in addresses {
                    match TcpStream::connect_timeout(&address, self.left().unwrap_or(Duration::from_millis(1))) {
                        // The system may pick the very port that is sought, and connect the socket to itself.
                        Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {}
                        Ok(stream) => return Ok(stream),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            });
            match tried {
                Ok(stream) => return Ok(stream),
                Err(source) if self.left().is_none() => {
                    let (rank, waited) = (self.rank, self.started.elapsed());
                    return Err(ConnectError::Unreachable { rank, host: host.to_string(), port, waited, source });
                }
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

impl Link for Tcp {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.writers.len()
    }

    fn push(&mut self, peer: usize, frame: Vec<u8>) {
        if let Some(Some(writer)) = self.writers.get(peer) {
            self.waiting.fetch_add(1, Ordering::AcqRel);
            if writer.send(frame).is_err() {
                self.waiting.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    fn pull(&mut self, wait: Duration) -> Option<Event> {
        match self.events.recv_timeout(wait) {
            Ok(event) => Some(event),
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                // All readers have ended and told so: only time can pass.
                thread::sleep(wait);
                None
            }
        }
    }

    fn flush(&mut self, wait: Duration) {
        let started = Instant::now();
        while self.waiting.load(Ordering::Acquire) > 0 && started.elapsed() < wait {
            thread::sleep(Duration::from_micros(200));
        }
    }

    fn name(&self) -> &'static str {
        "tcp"
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.writers.clear();
        for stream in &self.streams {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
