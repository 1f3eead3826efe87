//! Word to the service manager that the gateway is ready, or ends: sd_notify(3).

use std::env;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Variable with the manager's socket: a path, or a name in the abstract namespace after `@`.
const SOCKET: &str = "NOTIFY_SOCKET";

/// State that the service manager is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Requests have a chance: what was to wait for this gateway may go on.
    Ready,
    /// No new connection is accepted, and what is open may finish.
    Stopping,
}

impl Notice {
    fn text(self) -> &'static str {
        match self {
            Notice::Ready => "READY=1",
            Notice::Stopping => "STOPPING=1",
        }
    }
}

/// Tells the service manager, if there is one that wants to know (`Type=notify`).
pub fn notify(notice: Notice) {
    let Some(socket) = env::var_os(SOCKET) else { return };
    if let Err(error) = send(socket.as_bytes(), notice) {
        tracing::warn!(?socket, "the service manager could not be told {}: {error}", notice.text());
    }
}

fn send(socket: &[u8], notice: Notice) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => abstract_address(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(socket))?,
    };
    UnixDatagram::unbound()?.send_to_addr(notice.text().as_bytes(), &address).map(drop)
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &[u8]) -> io::Result<SocketAddr> {
    <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn abstract_address(_: &[u8]) -> io::Result<SocketAddr> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn manager_is_told_by_path_and_by_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("pd-proxy-test-{}", std::process::id());
        let places = [
            (path.as_os_str().as_bytes().to_vec(), UnixDatagram::bind(&path).unwrap()),
            (
                [b"@", name.as_bytes()].concat(),
                UnixDatagram::bind_addr(&abstract_address(name.as_bytes()).unwrap()).unwrap(),
            ),
        ];
        for (socket, manager) in places {
            for (notice, text) in [(Notice::Ready, "READY=1"), (Notice::Stopping, "STOPPING=1")] {
                send(&socket, notice).unwrap();
                let mut told = [0; 64];
                let length = manager.recv(&mut told).unwrap();
                assert_eq!(std::str::from_utf8(&told[..length]).unwrap(), text);
            }
        }
    }
}
