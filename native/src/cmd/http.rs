//! As much of HTTP/1.1 as handing files to a browser takes: one thread a connection, one request a connection.
//!
//! A browser opens several connections at once and keeps some of them open without a word. So no connection
//! may wait for a thread that another one holds, which is what a pool of threads would come to. Nor may those who
//! connect without end, or send and read a byte at a time, take all that the process has: connections are counted,
//! and each has a time in which it is over.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// What is asked for.
pub struct Request<'a> {
    /// `GET` and the like.
    pub method: &'a str,
    /// The path with its query.
    pub path: &'a str,
    /// As whom the other end has asked this one, with a port or without: what it says in its `Host`.
    pub host: Option<&'a str>,
    /// Whether the other end takes what is compressed by gzip.
    pub takes_gzip: bool,
}

/// What is sent back.
pub struct Reply {
    /// The status line after the version: `200 OK`.
    pub status: &'static str,
    /// The content's type.
    pub content_type: &'static str,
    /// The content.
    pub body: Vec<u8>,
    /// Whether that is compressed by gzip.
    pub is_gzip: bool,
}

/// A request that has not come by then is let go, and so is a peer that reads nothing for so long.
const PATIENCE: Duration = Duration::from_secs(30);
/// A reply that has not left by then: a megabyte takes that long at 14 kbit/s.
const LONGEST_REPLY: Duration = Duration::from_secs(600);
/// Longest request that is read, headers included.
const MAX_REQUEST_BYTES: u64 = 64 << 10;
/// Most connections at once, each of which may hold a whole file: a browser opens about six.
const MOST_CONNECTIONS: usize = 64;
/// Between two tries to take a connection where the system has nothing left for one, and how many tries in a row.
const PAUSE: Duration = Duration::from_millis(50);
const MOST_TRIES: u32 = 600;

/// Answers every request on `listener` until it fails.
///
/// # Errors
/// What stopped the listening.
pub fn serve(listener: &TcpListener, answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> io::Error {
    let answer = Arc::new(answer);
    let open = Arc::new(AtomicUsize::new(0));
    let mut tries = 0;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                tries = 0;
                let connection = Counted::new(&open);
                if open.load(Ordering::SeqCst) > MOST_CONNECTIONS {
                    continue;
                }
                let answer = Arc::clone(&answer);
                // Neither a browser that went away in the middle nor a thread that cannot be had ends the server.
                let talking = move || {
                    let _ = talk(&stream, &*answer);
                    drop(connection);
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

/// One of the connections that are open, while it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(open: &Arc<AtomicUsize>) -> Counted {
        open.fetch_add(1, Ordering::SeqCst);
        Counted(Arc::clone(open))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A connection that is over at some time, however slowly its bytes come and go.
struct Until<'s> {
    stream: &'s TcpStream,
    end: Instant,
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
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn talk(stream: &TcpStream, answer: &dyn Fn(&Request) -> Reply) -> io::Result<()> {
    let asking = Until { stream, end: Instant::now() + PATIENCE };
    let mut lines = BufReader::new(asking).take(MAX_REQUEST_BYTES);
    let heard = read_request(&mut lines);
    let mut telling = Until { stream, end: Instant::now() + LONGEST_REPLY };
    let Heard { head, host, takes_gzip } = match heard {
        Ok(heard) => heard,
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            let refusal = if lines.limit() == 0 { "431 Request Header Fields Too Large" } else { "400 Bad Request" };
            let head = format!("HTTP/1.1 {refusal}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            return telling.write_all(head.as_bytes());
        }
        Err(error) => return Err(error),
    };
    let mut words = head.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let reply = answer(&Request { method, path, host: host.as_deref(), takes_gzip });
    // Plans and pages change while somebody works on them: a browser is to ask again each time.
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-cache\r\n\
         X-Content-Type-Options: nosniff\r\nVary: Accept-Encoding\r\n{}Connection: close\r\n\r\n",
        reply.status,
        reply.content_type,
        reply.body.len(),
        if reply.is_gzip { "Content-Encoding: gzip\r\n" } else { "" },
    );
    telling.write_all(head.as_bytes())?;
    if method != "HEAD" {
        telling.write_all(&reply.body)?;
    }
    telling.flush()
}

/// As much of a request as is listened to.
#[derive(Default)]
struct Heard {
    /// The first line.
    head: String,
    host: Option<String>,
    takes_gzip: bool,
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
                heard.takes_gzip |= accepts_gzip(&header);
                let host = header.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("host"));
                heard.host = host.map(|(_, host)| host.trim().to_owned()).or(heard.host);
            }
        }
    }
}

/// Whether a header says that gzip is taken.
fn accepts_gzip(header: &str) -> bool {
    let Some((name, value)) = header.split_once(':') else { return false };
    let is_taken = |coding: &str| {
        let mut parts = coding.split(';').map(str::trim);
        let refused = |weight: &str| weight.strip_prefix("q=").and_then(|q| q.parse().ok()) == Some(0.0);
        parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip")) && !parts.any(refused)
    };
    name.eq_ignore_ascii_case("accept-encoding") && value.split(',').any(is_taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_connections_keep_nobody_waiting() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            serve(&listener, |request| Reply {
                status: "200 OK",
                content_type: "text/plain",
                body: format!("{} {} {:?} {}", request.method, request.path, request.host, request.takes_gzip)
                    .into_bytes(),
                is_gzip: false,
            })
        });
        let silent: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
        for (request, end) in [
            ("GET /a?b HTTP/1.1\r\nHost: x\r\n\r\n", "\r\n\r\nGET /a?b Some(\"x\") false"),
            ("GET / HTTP/1.1\r\naccept-encoding: br, GZIP;q=0.5\r\n\r\n", "GET / None true"),
            (
                "GET / HTTP/1.1\r\nHOST: [::1]:80 \r\nAccept-Encoding: gzip;q=0, br\r\n\r\n",
                "GET / Some(\"[::1]:80\") false",
            ),
            ("HEAD / HTTP/1.1\r\n\r\n", "close\r\n\r\n"),
        ] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut reply = String::new();
            stream.read_to_string(&mut reply).unwrap();
            assert!(reply.starts_with("HTTP/1.1 200 OK\r\n") && reply.ends_with(end), "{reply}");
        }
        drop(silent);
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
            let _ = talk(&stream, &|_| unreachable!("nothing was asked for"));
            drop(stream);
            asking.join().unwrap()
        };
        let long = |bytes: usize| format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(bytes)).into_bytes();
        assert!(refused(b"GET /\xff\xff HTTP/1.1\r\n\r\n".to_vec()).starts_with("HTTP/1.1 400 "));
        assert!(refused(b"GET / HTTP/1.1\r\nHost: x\r\n".to_vec()).starts_with("HTTP/1.1 400 "));
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
        let mut asking = Until { stream: &stream, end: Instant::now() + Duration::from_millis(200) };
        let error = asking.read_to_end(&mut Vec::new()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{error}");
        drop(stream);
        dripping.join().unwrap();
    }
}
