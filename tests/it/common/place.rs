//! Addresses that one test has for itself, also while nobody listens there.
//!
//! On 127.0.0.1 whatever is free now may be another test's by the time it is listened on, or the near end of a connection. A
//! loopback host of its own is nobody else's: not in this process, and connections do not start from it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Any free port of a host that is given to nobody else.
pub fn own_host() -> SocketAddr {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let [high, low] = GIVEN.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    (Ipv4Addr::new(127, 78, high, low), 0).into()
}

/// An address where nobody listens, and nobody will but who is told of it. Other processes have other ports.
pub fn own() -> SocketAddr {
    TcpListener::bind(own_host()).unwrap().local_addr().unwrap()
}
