//! A connection between two processes: plain, or over TLS 1.3 with a certificate on both sides.
//!
//! Both sides prove that their certificate comes from the same authority and is one for [`NAME`]: no host is named, since ranks
//! run on whichever hosts a launcher gives them. Frames then go encrypted, and what is not from the other side is noticed.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, version};

use super::rendezvous::read_some;

/// The name that certificates of ranks are for.
pub const NAME: &str = "pipeplan";

/// Most bytes that are taken from the system at once.
const PORTION: usize = 16 << 10;

/// What a rank shows of itself, and whom it trusts.
#[derive(Clone)]
pub struct Identity {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file has not what it should.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

impl Identity {
    /// Of the certificate in the file `certificate`, with those that sign it below it, its private key in the file `key`, and the
    /// certificates of the authority in the file `authority`. All are PEM.
    ///
    /// # Errors
    /// [`IdentityError`], which names the file: also where the authority has not signed the certificate.
    pub fn read(certificate: &Path, key: &Path, authority: &Path) -> Result<Identity, IdentityError> {
        let fault = |path: &Path, why: String| IdentityError::File { path: path.to_path_buf(), why };
        let certificates = |path: &Path| {
            let read = CertificateDer::pem_file_iter(path).and_then(|all| all.collect::<Result<Vec<_>, _>>());
            let read = read.map_err(|error| fault(path, error.to_string()))?;
            match read.is_empty() {
                true => Err(fault(path, "it has no certificate in PEM".to_string())),
                false => Ok(read),
            }
        };
        let mut roots = RootCertStore::empty();
        for root in certificates(authority)? {
            roots.add(root).map_err(|error| fault(authority, error.to_string()))?;
        }
        let (roots, chain) = (Arc::new(roots), certificates(certificate)?);
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| fault(key, error.to_string()))?;
        let of_authority = |error: &dyn std::fmt::Display| fault(authority, error.to_string());
        let of_key = |error: rustls::Error| fault(key, error.to_string());
        let provider = Arc::new(rustls::crypto::ring::default_provider());

        let server = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
        let server = server.map_err(|error| of_authority(&error))?;
        let name = ServerName::try_from(NAME).map_err(|error| of_authority(&error))?;
        // Else every other rank would say it, and this one not.
        server.verify_server_cert(&chain[0], &chain[1..], &name, &[], UnixTime::now()).map_err(|error| {
            let signed = format!("{}, or is not for the name {NAME} now: {error}", authority.display());
            fault(certificate, format!("the certificate is not signed by {signed}"))
        })?;
        let client = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
        let client = client.map_err(|error| of_authority(&error))?;

        let of_server = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let of_server = of_server.with_protocol_versions(&[&version::TLS13]).map_err(of_key)?;
        let of_server = of_server.with_client_cert_verifier(client);
        let mut of_server = of_server.with_single_cert(chain.clone(), private.clone_key()).map_err(of_key)?;
        // Nobody comes back to a session.
        of_server.send_tls13_tickets = 0;
        let of_client = ClientConfig::builder_with_provider(provider);
        let of_client = of_client.with_protocol_versions(&[&version::TLS13]).map_err(of_key)?;
        let mut of_client =
            of_client.with_root_certificates(roots).with_client_auth_cert(chain, private).map_err(of_key)?;
        of_client.resumption = rustls::client::Resumption::disabled();
        Ok(Identity { server: Arc::new(of_server), client: Arc::new(of_client) })
    }

    fn new_client(&self) -> io::Result<rustls::Connection> {
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        Ok(ClientConnection::new(Arc::clone(&self.client), name).map_err(io::Error::other)?.into())
    }

    fn new_server(&self) -> io::Result<rustls::Connection> {
        Ok(ServerConnection::new(Arc::clone(&self.server)).map_err(io::Error::other)?.into())
    }
}

/// A connection to another process. One handle of it reads while another writes.
pub enum Connection {
    /// As bytes come.
    Plain(TcpStream),
    /// Over TLS.
    Secure(TcpStream, Arc<Mutex<rustls::Connection>>),
}

/// The side of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Who calls.
    Caller,
    /// Who listens.
    Listener,
}

impl Connection {
    /// Over `socket`, with TLS where there is an `identity`, until `until`.
    ///
    /// # Errors
    /// Of kind [`io::ErrorKind::InvalidData`] where the other side is not let in, or speaks no TLS.
    pub fn open(
        mut socket: TcpStream,
        identity: Option<&Identity>,
        side: Side,
        until: Instant,
    ) -> io::Result<Connection> {
        let Some(identity) = identity else { return Ok(Connection::Plain(socket)) };
        let mut secure = match side {
            Side::Caller => identity.new_client()?,
            Side::Listener => identity.new_server()?,
        };
        let mut bytes = [0; 4096];
        while secure.is_handshaking() {
            send_all(&mut secure, &mut socket)?;
            if !secure.is_handshaking() {
                break;
            }
            let came = match read_some(&socket, &mut bytes, until)? {
                0 => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the other side ended the TLS handshake",
                    ));
                }
                came => came,
            };
            take_in(&mut secure, &bytes[..came]).inspect_err(|_| {
                // The alert that says why; one that has gone needs none.
                let _ = send_all(&mut secure, &mut socket);
            })?;
        }
        send_all(&mut secure, &mut socket)?;
        Ok(Connection::Secure(socket, Arc::new(Mutex::new(secure))))
    }

    /// What carries it.
    pub const fn socket(&self) -> &TcpStream {
        match self {
            Connection::Plain(socket) | Connection::Secure(socket, _) => socket,
        }
    }

    /// The same connection once more.
    ///
    /// # Errors
    /// What the system says.
    pub fn try_clone(&self) -> io::Result<Connection> {
        Ok(match self {
            Connection::Plain(socket) => Connection::Plain(socket.try_clone()?),
            Connection::Secure(socket, secure) => Connection::Secure(socket.try_clone()?, Arc::clone(secure)),
        })
    }

    /// Ends it.
    pub fn close(&self) {
        let _ = self.socket().shutdown(Shutdown::Both);
    }
}

fn lock(secure: &Mutex<rustls::Connection>) -> MutexGuard<'_, rustls::Connection> {
    // One that panicked has left it as it was, or every later record fails its check.
    secure.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives all that `secure` has to send to `to`.
fn send_all(secure: &mut rustls::Connection, to: &mut impl Write) -> io::Result<()> {
    while secure.wants_write() {
        secure.write_tls(to)?;
    }
    Ok(())
}

/// Takes in `bytes` that have come.
fn take_in(secure: &mut rustls::Connection, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        secure.read_tls(&mut bytes)?;
        secure
            .process_new_packets()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {error}")))?;
    }
    Ok(())
}

impl Read for Connection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (socket, secure) = match self {
            Connection::Plain(socket) => return socket.read(into),
            Connection::Secure(socket, secure) => (socket, secure),
        };
        let mut bytes = [0; PORTION];
        loop {
            match lock(secure).reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The end, also one that the other side did not announce: frames have lengths.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            // Not with the lock held: another handle writes meanwhile.
            match socket.read(&mut bytes)? {
                0 => return Ok(0),
                came => take_in(&mut lock(secure), &bytes[..came])?,
            }
        }
    }
}

impl Write for Connection {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Connection::Plain(socket) => socket.write(from),
            Connection::Secure(socket, secure) => {
                let mut records = Vec::new();
                let mut secure = lock(secure);
                let taken = secure.writer().write(from)?;
                send_all(&mut secure, &mut records)?;
                drop(secure);
                socket.write_all(&records)?;
                Ok(taken)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Connection::Plain(socket) | Connection::Secure(socket, _) => socket.flush(),
        }
    }
}
