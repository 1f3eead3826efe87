//! `pd-proxy health`: asks the gateway that runs beside it under the same configuration whether it
//! serves. For images without a shell or a client.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::config::Config;

/// A process that serves answers at once.
const PATIENCE: Duration = Duration::from_secs(3);

/// First bytes of an answer that counts as healthy.
const GOOD: &[u8] = b"HTTP/1.1 200 ";

/// Reasons for which the gateway does not count as healthy.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// No connection, or no answer in time.
    #[error("{host}:{port} (server.host, server.port) does not answer: {source}")]
    Away {
        /// Host, as configured.
        host: String,
        /// Port, as configured.
        port: u16,
        /// Cause of the error.
        source: io::Error,
    },
    /// An answer, but not the one.
    #[error("{0} does not answer /health with 200")]
    Sick(SocketAddr),
}

/// Asks `GET /health`. Over TLS an accepted connection is enough: the probe has no client
/// certificate that the gateway may want.
///
/// # Errors
/// [`ProbeError`] says what failed.
pub fn run(config: &Config) -> Result<(), ProbeError> {
    let (host, port) = (config.server.bind_host(), config.server.port);
    let away = |source| ProbeError::Away { host: host.to_owned(), port, source };
    let (mut socket, at) = connect(host, port).map_err(away)?;
    if config.tls.cert.is_some() {
        return Ok(());
    }
    let first = ask(&mut socket).map_err(away)?;
    if first == GOOD { Ok(()) } else { Err(ProbeError::Sick(at)) }
}

fn connect(host: &str, port: u16) -> io::Result<(TcpStream, SocketAddr)> {
    let mut last = io::Error::other("the name has no address");
    for mut at in (host, port).to_socket_addrs()? {
        at.set_ip(match at.ip() {
            // Bound to every address: also to the loopback's.
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::from(std::net::Ipv6Addr::LOCALHOST),
            ip => ip,
        });
        match TcpStream::connect_timeout(&at, PATIENCE) {
            Ok(socket) => return Ok((socket, at)),
            Err(e) => last = e,
        }
    }
    Err(last)
}

fn ask(socket: &mut TcpStream) -> io::Result<[u8; GOOD.len()]> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut first = [0; GOOD.len()];
    socket.read_exact(&mut first)?;
    Ok(first)
}
