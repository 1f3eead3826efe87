//! A wire between a client and its service, on which things go wrong.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::common::place;
use crate::common::time::{eventually, pass};

/// The fate of the service's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// The answers arrive.
    Whole,
    /// No answer arrives.
    Hole,
    /// They arrive this late.
    Slow(Duration),
    /// Half of what comes at once arrives, then the connection ends.
    Half,
    /// Other bytes arrive.
    Garbage,
}

/// A listening wire; dropping it cuts it.
pub struct Proxy {
    addr: SocketAddr,
    backend: SocketAddr,
    wire: watch::Sender<Wire>,
    /// Empty while nobody listens.
    tasks: Mutex<JoinSet<()>>,
}

impl Proxy {
    pub async fn start(backend: SocketAddr) -> Self {
        let listener = TcpListener::bind(place::own_host()).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (wire, tasks) = (watch::Sender::new(Wire::Whole), Mutex::new(JoinSet::new()));
        let proxy = Self { addr, backend, wire, tasks };
        proxy.listen(listener);
        proxy
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn set(&self, wire: Wire) {
        self.wire.send_replace(wire);
    }

    /// Refuses connections and resets those there are.
    pub fn close(&self) {
        *self.tasks.lock().unwrap() = JoinSet::new();
    }

    /// Listens again, at the same place.
    pub async fn open(&self) {
        // The old one goes when its task does.
        self.listen(eventually("a free port", async || TcpListener::bind(self.addr).await).await);
    }

    fn listen(&self, listener: TcpListener) {
        let (backend, wire) = (self.backend, self.wire.subscribe());
        self.tasks.lock().unwrap().spawn(async move {
            let mut links = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let wire = wire.clone();
                links.spawn(async move {
                    if let Ok(service) = TcpStream::connect(backend).await {
                        let (from_client, to_client) = client.into_split();
                        let (from_service, to_service) = service.into_split();
                        tokio::select! {
                            () = carry(from_client, to_service) => {}
                            () = disturb(from_service, to_client, wire) => {}
                        }
                    }
                });
            }
        });
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    // However it ends, the connection does.
    let _ = tokio::io::copy(&mut from, &mut to).await;
}

async fn disturb(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, wire: watch::Receiver<Wire>) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let wire = *wire.borrow();
        let arriving = match wire {
            Wire::Whole => &bytes[..count],
            Wire::Hole => continue,
            Wire::Slow(wait) => {
                pass(wait).await;
                &bytes[..count]
            }
            Wire::Half => &bytes[..count / 2],
            Wire::Garbage => {
                &b"\x7fELF\x02\x01\x01\0 is no answer \xff\xfe\xfd\xfc of any kind of service at all"[..]
            }
        };
        if to.write_all(arriving).await.is_err() || wire == Wire::Half {
            return;
        }
    }
}
