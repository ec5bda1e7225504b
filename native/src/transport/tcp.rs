//! Processes over TCP: no library but the system's.
//!
//! They find each other by a [`rendezvous`], after which each pair has one connection. A process that dies
//! is noticed by the end of its connections, at once; a host that vanishes, by the engine's time-out; a damaged frame, by
//! its checksum.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::processes::{Event, Link};
use super::rendezvous::{self, ConnectError, Secret};
use super::secure::Connection;
use super::wire::Frame;

/// One process' end of all its connections.
pub struct Tcp {
    rank: usize,
    /// By rank: where frames for it go; none for this rank.
    writers: Vec<Option<Sender<Vec<u8>>>>,
    streams: Vec<Connection>,
    /// Frames handed over and not yet given to the system.
    waiting: Arc<AtomicUsize>,
    events: Receiver<Event>,
}

/// The bytes before a frame: its length (8), its CRC-32C (4), and the CRC-32C of these twelve bytes (4), little-endian.
const HEADER: usize = 16;

impl Tcp {
    /// Connects `rank` with all others of `world`, meeting at rank 0's `host` and `port`. Returns when all are
    /// connected. No rank sends a frame of more than `longest` bytes.
    ///
    /// # Errors
    /// [`ConnectError`], at the latest after `patience`.
    pub fn connect(
        rank: usize,
        world: usize,
        meeting: (&str, u16),
        secret: &Secret,
        longest: u64,
        patience: Duration,
    ) -> Result<Tcp, ConnectError> {
        let peers = rendezvous::meet(rank, world, meeting, secret, patience)?;
        Tcp::over(rank, peers, longest).map_err(|source| ConnectError::Broken { rank, source })
    }

    fn over(rank: usize, peers: Vec<Option<Connection>>, longest: u64) -> io::Result<Tcp> {
        let (tell, events) = mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let mut writers = Vec::with_capacity(peers.len());
        let mut streams = Vec::new();
        for (peer, stream) in peers.into_iter().enumerate() {
            let Some(stream) = stream else {
                writers.push(None);
                continue;
            };
            stream.socket().set_nodelay(true)?;
            stream.socket().set_read_timeout(None)?;
            stream.socket().set_write_timeout(None)?;
            let (reading, mut writing) = (stream.try_clone()?, stream.try_clone()?);
            streams.push(stream);
            let tell = tell.clone();
            thread::Builder::new().name(format!("from rank {peer}")).spawn(move || {
                let reason = read_all(peer, reading, longest, &tell);
                let _ = tell.send(Event::Lost(peer, reason));
            })?;
            let (hand, frames) = mpsc::channel::<Vec<u8>>();
            let counted = Arc::clone(&waiting);
            thread::Builder::new().name(format!("to rank {peer}")).spawn(move || {
                for frame in frames {
                    // A broken connection is noticed by its reader.
                    let _ = writing.write_all(&header(&frame)).and_then(|()| writing.write_all(&frame));
                    counted.fetch_sub(1, Ordering::AcqRel);
                }
            })?;
            writers.push(Some(hand));
        }
        Ok(Tcp { rank, writers, streams, waiting, events })
    }
}

fn header(frame: &[u8]) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..8].copy_from_slice(&(frame.len() as u64).to_le_bytes());
    bytes[8..12].copy_from_slice(&crc32c::crc32c(frame).to_le_bytes());
    let own = crc32c::crc32c(&bytes[..12]);
    bytes[12..].copy_from_slice(&own.to_le_bytes());
    bytes
}

/// The length and CRC-32C of the frame that follows; none where a bit of them is wrong.
fn announced(header: &[u8; HEADER]) -> Option<(u64, u32)> {
    let [length @ .., _, _, _, _, _, _, _, _] = *header;
    let [_, _, _, _, _, _, _, _, a, b, c, d, own @ ..] = *header;
    let own = u32::from_le_bytes(own);
    (crc32c::crc32c(&header[..12]) == own).then_some((u64::from_le_bytes(length), u32::from_le_bytes([a, b, c, d])))
}

/// Hands on what comes from `peer` until nothing more does, and returns why.
fn read_all(peer: usize, mut stream: Connection, longest: u64, tell: &Sender<Event>) -> String {
    loop {
        let frame = match read_frame(&mut stream, longest) {
            Ok(frame) => frame,
            Err(reason) => return reason,
        };
        if tell.send(Event::Frame(peer, frame)).is_err() {
            return "nobody listens any more".to_string();
        }
    }
}

/// The next frame, or why there is none.
fn read_frame(stream: &mut impl Read, longest: u64) -> Result<Vec<u8>, String> {
    let mut bytes = [0; HEADER];
    stream.read_exact(&mut bytes).map_err(|error| match error.kind() {
        // A system closes the connections of a process that died with or without what was still unread.
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            "its process ended and closed the connection".to_string()
        }
        _ => format!("its connection broke: {error}"),
    })?;
    let (length, sum) = announced(&bytes)
        .ok_or_else(|| "its data arrived damaged: the checksum of a frame's length is wrong".to_string())?;
    if length > longest {
        return Err(format!("it announced a frame of {length} bytes, where the plan sends at most {longest}"));
    }
    // Memory is taken as the bytes come.
    let mut frame = Vec::new();
    match Read::take(stream, length).read_to_end(&mut frame) {
        Ok(read) if read as u64 == length => {}
        Ok(_) => return Err("its process ended in the middle of a transfer".to_string()),
        Err(error) => return Err(format!("its connection broke: {error}")),
    }
    if crc32c::crc32c(&frame) != sum {
        let what = Frame::of_bytes(&frame).map_or_else(|_| "a frame".to_string(), |frame| frame.name());
        return Err(format!("its data arrived damaged: the checksum of {what}, {length} bytes, is wrong"));
    }
    Ok(frame)
}

/// A frame as it travels.
#[cfg(test)]
pub(super) fn framed(frame: &[u8]) -> Vec<u8> {
    [&header(frame)[..], frame].concat()
}

/// The frame that travelled as `bytes`.
#[cfg(test)]
pub(super) fn heard(mut bytes: &[u8], longest: u64) -> Result<Vec<u8>, String> {
    read_frame(&mut bytes, longest)
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
            stream.close();
        }
    }
}
