//! Listening sockets that a service manager has opened and passes on: systemd's socket activation,
//! sd_listen_fds(3).

use std::env;
use std::io;
use std::net::TcpListener;

use listenfd::ListenFd;
use socket2::SockRef;

/// Variable with the names of the sockets, separated by colons.
const NAMES: &str = "LISTEN_FDNAMES";

/// Name of operators' sockets (`FileDescriptorName=` of a `.socket` unit). All others are clients'.
const OPERATORS: &str = "operators";

/// Sockets that were passed to this process.
#[derive(Debug, Default)]
pub struct PassedSockets {
    /// Those of clients.
    pub clients: Vec<TcpListener>,
    /// Those of the routes of operators.
    pub operators: Vec<TcpListener>,
}

/// A socket that was passed and can't be served.
#[derive(Debug, thiserror::Error)]
pub enum PassedError {
    /// No listening TCP socket.
    #[error(
        "LISTEN_FDS: socket {number} ({name:?}) is none that clients can connect to over TCP: {source}; a .socket unit needs \
         ListenStream= with a port, and Accept=no"
    )]
    Kind {
        /// Position among those that were passed, from 0.
        number: usize,
        /// Name that it was given.
        name: String,
        /// Reason why it is none.
        source: io::Error,
    },
    /// Sockets for routes that have no listener of their own.
    #[error(
        "LISTEN_FDNAMES: a socket named operators was passed, and server.admin_host is not set: set it, or give the socket \
         another FileDescriptorName="
    )]
    NoOperators,
    /// The system refuses to use one.
    #[error("LISTEN_FDS: a socket that was passed can't be used: {0}")]
    Unusable(#[from] io::Error),
}

impl PassedSockets {
    /// Takes those that were passed to this process, and the variables about them. Must run while
    /// there is one thread: the environment changes.
    ///
    /// # Errors
    /// [`PassedError`] says which of them is none, and what to change.
    pub fn take() -> Result<PassedSockets, PassedError> {
        let names = env::var(NAMES).unwrap_or_default();
        let mut given = ListenFd::from_env();
        let mut names = names.split(':');
        let mut passed = PassedSockets::default();
        for number in 0..given.len() {
            let name = names.next().unwrap_or_default();
            let taken = given.take_tcp_listener(number);
            let error = |source: io::Error| PassedError::Kind { number, name: name.to_owned(), source };
            let Some(socket) = taken.map_err(error)? else { continue };
            check_listens(&socket).map_err(error)?;
            match name {
                OPERATORS => passed.operators.push(socket),
                _ => passed.clients.push(socket),
            }
        }
        Ok(passed)
    }
}

/// Checks that clients can connect to a TCP socket.
///
/// # Errors
/// It does not listen: with `Accept=yes` systemd passes on the connection of one client.
fn check_listens(socket: &TcpListener) -> io::Result<()> {
    match SockRef::from(socket).is_listener()? {
        true => Ok(()),
        false => Err(io::Error::other("it does not listen")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use socket2::{Domain, Socket, Type};

    use super::*;

    #[test]
    fn socket_that_does_not_listen_is_none_for_clients() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        let bound: TcpListener = socket.into();
        assert_eq!(check_listens(&bound).unwrap_err().to_string(), "it does not listen");
        SockRef::from(&bound).listen(1).unwrap();
        check_listens(&bound).unwrap();
    }
}
