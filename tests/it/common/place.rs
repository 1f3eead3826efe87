//! Addresses that one test has for itself, also while nobody listens there.
//!
//! On 127.0.0.1 whatever is free now may be another test's by the time it is listened on, or the
//! near end of a connection. A loopback host of its own is nobody else's: not in this process, nor
//! in another one that runs tests at the same time, and connections do not start from it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Any free port of a host that is given to nobody else.
pub fn own_host() -> SocketAddr {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Far from the hosts of processes with other ids: 22 bits, below 127.64.0.0/10.
    let first = std::process::id().wrapping_mul(0x9E37_79B1) >> 10;
    let host = (first + GIVEN.fetch_add(1, Ordering::Relaxed)) & 0x3F_FFFF;
    (Ipv4Addr::from_bits(0x7F40_0000 | host), 0).into()
}

/// An address where nobody listens, and nobody will but who is told of it. Other processes have
/// other ports.
pub fn own() -> SocketAddr {
    TcpListener::bind(own_host()).unwrap().local_addr().unwrap()
}
