//! As much of HTTP/1.1 as handing files to a browser takes: one thread a connection, one request a connection.
//!
//! A browser opens several connections at once and keeps some of them open without a word. So no connection
//! may wait for a thread that another one holds, which is what a pool of threads would come to.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// What is asked for.
pub struct Request<'a> {
    /// `GET` and the like.
    pub method: &'a str,
    /// The path with its query.
    pub path: &'a str,
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

/// A silent peer is let go after this.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest request that is read, headers included.
const MAX_REQUEST_BYTES: u64 = 64 << 10;

/// Answers every request on `listener` until it fails.
///
/// # Errors
/// What stopped the listening.
pub fn serve(listener: &TcpListener, answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> io::Error {
    let answer = Arc::new(answer);
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                let answer = Arc::clone(&answer);
                // A browser that went away in the middle is no failure of the server.
                std::thread::spawn(move || drop(talk(stream, &*answer)));
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return error,
        }
    }
}

fn talk(mut stream: TcpStream, answer: &dyn Fn(&Request) -> Reply) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(&stream).take(MAX_REQUEST_BYTES);
    let mut request = String::new();
    lines.read_line(&mut request)?;
    let (mut header, mut takes_gzip) = (String::new(), false);
    while lines.read_line(&mut header)? > 2 {
        takes_gzip |= accepts_gzip(&header);
        header.clear();
    }
    let mut words = request.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let reply = answer(&Request { method, path, takes_gzip });
    // Plans and pages change while somebody works on them: a browser is to ask again each time.
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-cache\r\n\
         X-Content-Type-Options: nosniff\r\nVary: Accept-Encoding\r\n{}Connection: close\r\n\r\n",
        reply.status,
        reply.content_type,
        reply.body.len(),
        if reply.is_gzip { "Content-Encoding: gzip\r\n" } else { "" },
    );
    stream.write_all(head.as_bytes())?;
    if method != "HEAD" {
        stream.write_all(&reply.body)?;
    }
    stream.flush()
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
                body: format!("{} {} {}", request.method, request.path, request.takes_gzip).into_bytes(),
                is_gzip: false,
            })
        });
        let silent: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
        for (request, end) in [
            ("GET /a?b HTTP/1.1\r\nHost: x\r\n\r\n", "\r\n\r\nGET /a?b false"),
            ("GET / HTTP/1.1\r\naccept-encoding: br, GZIP;q=0.5\r\n\r\n", "GET / true"),
            ("GET / HTTP/1.1\r\nAccept-Encoding: gzip;q=0, br\r\n\r\n", "GET / false"),
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
}
