//! As much of HTTP/1.1 as handing files to a browser takes: one thread a connection, one request a connection.
//!
//! A browser opens several connections at once and keeps some of them open without a word. So no connection
//! may wait for a thread that another one holds, which is what a pool of threads would come to. Nor may those who
//! connect without end, or send and read a byte at a time, take all that the process has: connections are counted,
//! and each has a time in which it is over.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What is asked for.
pub struct Request<'a> {
    /// `GET` and the like.
    pub method: &'a str,
    /// The path with its query.
    pub path: &'a str,
    /// As whom the other end has asked this one, with a port or without: what it says in its one `Host`.
    pub host: &'a str,
    /// The codings of content that the other end takes.
    pub takes: Codings,
}

/// Codings of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Codings {
    /// gzip.
    pub gzip: bool,
    /// Brotli.
    pub brotli: bool,
}

/// What is sent back.
pub struct Reply {
    /// The status line after the version: `200 OK`.
    pub status: &'static str,
    /// The content's type.
    pub content_type: &'static str,
    /// The content.
    pub body: Body,
    /// The coding of the content, `br` or `gzip`; none if it is sent as it is.
    pub coding: Option<&'static str>,
    /// What tells this content from any other of the same address, as `ETag` has it. Whoever has it already is sent none.
    pub tag: Option<String>,
    /// More lines of the head, each with its end.
    pub headers: String,
}

/// The content of a reply, of which a connection holds no copy: whoever reads slowly takes no memory.
pub enum Body {
    /// Bytes that others share.
    Shared(Arc<[u8]>),
    /// So many bytes of a file.
    File(File, u64),
}

impl Body {
    /// How many bytes it has.
    pub fn len(&self) -> u64 {
        match self {
            Body::Shared(bytes) => bytes.len() as u64,
            Body::File(_, length) => *length,
        }
    }

    fn send(self, to: &mut impl Write) -> io::Result<()> {
        match self {
            Body::Shared(bytes) => to.write_all(&bytes),
            // A file that has become shorter ends the connection early, which a browser notices by the length.
            Body::File(file, length) => io::copy(&mut file.take(length), to).map(|_| ()),
        }
    }
}

/// A request that has not come by then is let go, and so is a peer that reads nothing for so long.
const PATIENCE: Duration = Duration::from_secs(30);
/// A reply that has not left by then: a megabyte takes that long at 14 kbit/s.
const LONGEST_REPLY: Duration = Duration::from_secs(600);
/// Longest request that is read, headers included.
const MAX_REQUEST_BYTES: u64 = 64 << 10;
/// Most connections at once: a browser opens about six. Beyond, the one that has asked for nothing for the longest time has to
/// go; where all have asked, the one that has taken nothing of its reply for the longest time, if that is [`SLOW`]; else the
/// newest.
const MOST_CONNECTIONS: usize = 64;
const SLOW: Duration = Duration::from_secs(2);
/// Bytes of a reply that are handed over at once, so that whoever reads is known to read.
const PIECE: usize = 16 << 10;
/// Between two tries to take a connection where the system has nothing left for one, and how many tries in a row.
const PAUSE: Duration = Duration::from_millis(50);
const MOST_TRIES: u32 = 600;

/// Answers every request on `listener` until it fails.
///
/// # Errors
/// What stopped the listening.
pub fn serve(listener: &TcpListener, answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> io::Error {
    serve_at_once(MOST_CONNECTIONS, listener, answer)
}

fn serve_at_once(
    most: usize,
    listener: &TcpListener,
    answer: impl Fn(&Request) -> Reply + Send + Sync + 'static,
) -> io::Error {
    let answer = Arc::new(answer);
    let open = Arc::new(Open::new(most));
    let mut tries = 0;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                tries = 0;
                let Some(connection) = open.enter(&stream) else {
                    refuse(&stream, "503 Service Unavailable", "Retry-After: 1\r\n");
                    continue;
                };
                let answer = Arc::clone(&answer);
                // Neither a browser that went away in the middle nor a thread that cannot be had ends the server.
                let talking = move || {
                    let _ = talk(&stream, &connection, &*answer);
                };
                let _ = thread::Builder::new().spawn(talking);
            }
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            // No file or memory is left for another connection: those that are open will end.
            Err(_) if tries < MOST_TRIES => {
                tries += 1;
                thread::sleep(PAUSE);
            }
            Err(error) => return error,
        }
    }
}

/// The connections that are open.
struct Open {
    most: usize,
    /// The greatest number given so far, and how far each has come, by number.
    talks: Mutex<(u64, BTreeMap<u64, Talk>)>,
}

/// How far a connection has come.
struct Talk {
    stream: Option<TcpStream>,
    has_asked: bool,
    /// When it came, or last took bytes of its reply.
    moved: Instant,
}

impl Open {
    fn new(most: usize) -> Open {
        Open { most, talks: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, Talk>)> {
        self.talks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more; none where there are too many and all others are being served.
    fn enter(self: &Arc<Open>, stream: &TcpStream) -> Option<Connection> {
        let mut open = self.lock();
        let (next, talks) = &mut *open;
        if talks.len() >= self.most {
            let silent = talks.iter().find(|(_, talk)| !talk.has_asked);
            let slow = || {
                let slowest = talks.iter().min_by_key(|(_, talk)| talk.moved)?;
                Some(slowest).filter(|(_, talk)| talk.moved.elapsed() >= SLOW)
            };
            let number = *silent.or_else(slow)?.0;
            // Its thread notices, and ends.
            if let Some(stream) = talks.remove(&number).and_then(|talk| talk.stream) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
        *next += 1;
        let number = *next;
        let talk = Talk { stream: stream.try_clone().ok(), has_asked: false, moved: Instant::now() };
        talks.insert(number, talk);
        Some(Connection { number, open: Arc::clone(self) })
    }
}

/// One of the connections that are open, while it lives.
struct Connection {
    number: u64,
    open: Arc<Open>,
}

impl Connection {
    /// It has asked for something, or has taken some of the reply: it does not have to go for another one yet.
    fn moved(&self) {
        if let Some(talk) = self.open.lock().1.get_mut(&self.number) {
            (talk.has_asked, talk.moved) = (true, Instant::now());
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.lock().1.remove(&self.number);
    }
}

/// Says no, where that can be said at once.
fn refuse(stream: &TcpStream, status: &str, more: &str) {
    let _ = stream.set_nonblocking(true);
    let mut stream = stream;
    let _ = stream.write_all(no(status, more).as_bytes());
}

fn no(status: &str, more: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n{more}Connection: close\r\n\r\n")
}

/// A connection that is over at some time, however slowly its bytes come and go.
struct Until<'s> {
    stream: &'s TcpStream,
    end: Instant,
    connection: &'s Connection,
}

impl Until<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left.min(PATIENCE))) }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        let written = self.stream.write(bytes.get(..PIECE).unwrap_or(bytes))?;
        self.connection.moved();
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn talk(stream: &TcpStream, connection: &Connection, answer: &dyn Fn(&Request) -> Reply) -> io::Result<()> {
    let asking = Until { stream, end: Instant::now() + PATIENCE, connection };
    let mut lines = BufReader::new(asking).take(MAX_REQUEST_BYTES);
    let heard = read_request(&mut lines);
    let mut telling = Until { stream, end: Instant::now() + LONGEST_REPLY, connection };
    let Heard { head, hosts, takes, known } = match heard {
        Ok(heard) => heard,
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            let refusal = if lines.limit() == 0 { "431 Request Header Fields Too Large" } else { "400 Bad Request" };
            return telling.write_all(no(refusal, "").as_bytes());
        }
        Err(error) => return Err(error),
    };
    // Of two names nobody knows which one others on the way have looked at.
    let [host] = &hosts[..] else {
        return telling.write_all(no("400 Bad Request", "").as_bytes());
    };
    connection.moved();
    let mut words = head.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let reply = answer(&Request { method, path, host, takes });
    let is_known = reply.tag.as_ref().is_some_and(|tag| names(&known, tag));
    telling.write_all(head_of(&reply, is_known).as_bytes())?;
    if method != "HEAD" && !is_known {
        reply.body.send(&mut telling)?;
    }
    telling.flush()
}

/// The head of a reply: whole, or of one whose content the other end has.
fn head_of(reply: &Reply, is_known: bool) -> String {
    let line =
        |name: &str, value: Option<&str>| value.map_or_else(String::new, |value| format!("{name}: {value}\r\n"));
    let status = if is_known { "304 Not Modified" } else { reply.status };
    let content = match is_known {
        true => String::new(),
        false => {
            let coding = line("Content-Encoding", reply.coding);
            format!("Content-Type: {}\r\nContent-Length: {}\r\n{coding}", reply.content_type, reply.body.len())
        }
    };
    // Plans and pages change while somebody works on them: a browser is to ask again each time.
    format!(
        "HTTP/1.1 {status}\r\n{content}{}Cache-Control: no-cache\r\n\
         X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nVary: Accept-Encoding\r\n{}\
         Connection: close\r\n\r\n",
        line("ETag", reply.tag.as_deref()),
        reply.headers,
    )
}

/// Whether `If-None-Match` names this tag.
fn names(known: &str, tag: &str) -> bool {
    let bare = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    known.trim() == "*" || known.split(',').any(|one| bare(one) == bare(tag))
}

/// As much of a request as is listened to.
#[derive(Default)]
struct Heard {
    /// The first line.
    head: String,
    /// What each of its `Host` headers says.
    hosts: Vec<String>,
    takes: Codings,
    /// The tags of the contents that the other end has.
    known: String,
}

/// Hears a request to its end. [`ErrorKind::InvalidData`] for what is none or does not end.
fn read_request(lines: &mut impl BufRead) -> io::Result<Heard> {
    let mut heard = Heard::default();
    lines.read_line(&mut heard.head)?;
    let mut header = String::new();
    loop {
        header.clear();
        // An empty line is the end.
        match lines.read_line(&mut header)? {
            0 => return Err(ErrorKind::InvalidData.into()),
            _ if header.trim_end().is_empty() => return Ok(heard),
            _ => {
                // A line that goes on with the one before, and a space behind a name, mean one thing here and another elsewhere.
                let named = header.split_once(':').filter(|(name, _)| is_token(name));
                let Some((name, value)) = named else { return Err(ErrorKind::InvalidData.into()) };
                match name.to_ascii_lowercase().as_str() {
                    "accept-encoding" => {
                        heard.takes.gzip |= accepts(value, "gzip");
                        heard.takes.brotli |= accepts(value, "br");
                    }
                    "if-none-match" => heard.known = value.trim().to_owned(),
                    "host" => heard.hosts.push(value.trim().to_owned()),
                    _ => {}
                }
            }
        }
    }
}

/// Whether `text` is a token of HTTP, as names of headers are (RFC 9110, section 5.6.2).
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// Whether `Accept-Encoding` says that a coding is taken.
fn accepts(value: &str, wanted: &str) -> bool {
    let is_taken = |coding: &str| {
        let mut parts = coding.split(';').map(str::trim);
        let refused = |weight: &str| weight.strip_prefix("q=").and_then(|q| q.parse().ok()) == Some(0.0);
        parts.next().is_some_and(|name| name.eq_ignore_ascii_case(wanted)) && !parts.any(refused)
    };
    value.split(',').any(is_taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More of them than there may be connections at once.
    #[test]
    fn silent_connections_keep_nobody_waiting() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            serve(&listener, |request| {
                let Request { method, path, host, takes: Codings { gzip, brotli } } = request;
                let body = format!("{method} {path} {host} {gzip} {brotli}").into_bytes();
                Reply {
                    status: "200 OK",
                    content_type: "text/plain",
                    body: Body::Shared(body.into()),
                    coding: None,
                    tag: Some("\"a\"".to_owned()),
                    headers: String::new(),
                }
            })
        });
        let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
        for (request, end) in [
            ("GET /a?b HTTP/1.1\r\nHost: x\r\n\r\n", "\r\n\r\nGET /a?b x false false"),
            ("GET / HTTP/1.1\r\nhost: y\r\naccept-encoding: br, GZIP;q=0.5\r\n\r\n", "GET / y true true"),
            (
                "GET / HTTP/1.1\r\nHOST: [::1]:80 \r\nAccept-Encoding: gzip;q=0, br\r\n\r\n",
                "GET / [::1]:80 false true",
            ),
            ("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n", "close\r\n\r\n"),
        ] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut reply = String::new();
            stream.read_to_string(&mut reply).unwrap();
            assert!(reply.starts_with("HTTP/1.1 200 OK\r\n") && reply.ends_with(end), "{reply}");
        }
        for (known, is_sent) in
            [("\"a\"", false), ("W/\"b\", \"a\"", false), ("*", false), ("\"ab\"", true), ("", true)]
        {
            let mut stream = TcpStream::connect(address).unwrap();
            write!(stream, "GET / HTTP/1.1\r\nHost: x\r\nIf-None-Match: {known}\r\n\r\n").unwrap();
            let mut reply = String::new();
            stream.read_to_string(&mut reply).unwrap();
            let status = if is_sent { "HTTP/1.1 200 OK\r\n" } else { "HTTP/1.1 304 Not Modified\r\n" };
            assert!(reply.starts_with(status) && reply.contains("ETag: \"a\"\r\n"), "{known}: {reply}");
            assert_eq!(reply.ends_with("close\r\n\r\n"), !is_sent, "{known}: {reply}");
        }
        drop(silent);
    }

    /// Where all have asked for something, whoever comes next is told to come again, until one of them has read nothing for a while:
    /// that one has to go, and who reads does not.
    #[test]
    fn more_than_can_be_served_are_told_so_and_who_reads_nothing_goes_first() {
        const MOST: usize = 8;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            serve_at_once(MOST, &listener, |_| Reply {
                status: "200 OK",
                content_type: "text/plain",
                // More than the system takes for a connection that nobody reads.
                body: Body::Shared(vec![b'x'; 16 << 20].into()),
                coding: None,
                tag: None,
                headers: String::new(),
            })
        });
        let asking = || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut first = [0; 12];
            stream.read_exact(&mut first).unwrap();
            (String::from_utf8_lossy(&first).into_owned(), stream)
        };
        let (_, mut reader) = asking();
        let unread: Vec<_> = (1..MOST).map(|_| asking()).collect();
        assert!(unread.iter().all(|(first, _)| first == "HTTP/1.1 200"));
        assert_eq!(asking().0, "HTTP/1.1 503");
        let (reads, mut piece, mut read) = (Instant::now(), vec![0; 256 << 10], 12);
        while reads.elapsed() < SLOW + Duration::from_millis(500) {
            read += reader.read(&mut piece).unwrap();
            thread::sleep(Duration::from_millis(100));
        }
        // Each takes the place of one that reads nothing.
        for _ in 1..MOST {
            let (first, mut honest) = asking();
            assert_eq!(first, "HTTP/1.1 200");
            assert!(honest.read_to_end(&mut Vec::new()).unwrap() > 16 << 20);
        }
        read += reader.read_to_end(&mut Vec::new()).unwrap();
        assert!(read > 16 << 20, "{read}");
        drop(unread);
    }

    #[test]
    fn what_is_no_request_is_told_so() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let refused = |request: Vec<u8>| {
            let asking = thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(&request).unwrap();
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let mut reply = String::new();
                // What was not read may cut the answer short.
                let _ = stream.read_to_string(&mut reply);
                reply
            });
            let (stream, _) = listener.accept().unwrap();
            let connection = Arc::new(Open::new(1)).enter(&stream).unwrap();
            let _ = talk(&stream, &connection, &|_| unreachable!("nothing was asked for"));
            drop((stream, connection));
            asking.join().unwrap()
        };
        let long = |bytes: usize| format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(bytes)).into_bytes();
        assert!(refused(b"GET /\xff\xff HTTP/1.1\r\n\r\n".to_vec()).starts_with("HTTP/1.1 400 "));
        assert!(refused(b"GET / HTTP/1.1\r\nHost: x\r\n".to_vec()).starts_with("HTTP/1.1 400 "));
        assert!(refused(b"GET / HTTP/1.1\r\n\r\n".to_vec()).starts_with("HTTP/1.1 400 "));
        assert!(refused(b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n".to_vec()).starts_with("HTTP/1.1 400 "));
        for header in ["Host: x\r\n y", "Host: x\r\nHost : y", "Host: x\r\n: y", "Host: x\r\ny"] {
            let request = format!("GET / HTTP/1.1\r\n{header}\r\n\r\n").into_bytes();
            assert!(refused(request).starts_with("HTTP/1.1 400 "), "{header}");
        }
        assert!(refused(long(MAX_REQUEST_BYTES as usize - 19)).starts_with("HTTP/1.1 431 "));
    }

    #[test]
    fn a_byte_at_a_time_is_over_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let dripping = thread::spawn(move || {
            while slow.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(10));
            }
        });
        let (stream, _) = listener.accept().unwrap();
        let connection = Arc::new(Open::new(1)).enter(&stream).unwrap();
        let end = Instant::now() + Duration::from_millis(200);
        let mut asking = Until { stream: &stream, end, connection: &connection };
        let error = asking.read_to_end(&mut Vec::new()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{error}");
        drop((stream, connection));
        dripping.join().unwrap();
    }
}
