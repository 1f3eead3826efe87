//! The admin port of a simulated master: its state, its keys, and the question about many keys.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::codec::{Arguments, KeyEntry, Medium, NOT_FOUND, Replica};
use super::{Leadership, Mooncake, Shared, State};
use crate::hub::lock;

/// Longest head of a request: some 200 000 keys.
const MAX_HEAD_BYTES: u64 = 32 << 20;

/// A running admin port; dropping it ends it.
#[derive(Debug)]
pub struct AdminPort {
    addr: SocketAddr,
    _tasks: JoinSet<()>,
}

impl AdminPort {
    /// Address at which it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Mooncake {
    /// Opens the master's admin port on `listen`; port 0 takes a free one. With
    /// [`Arguments::Plain`] it is that of a master before 0.3.12.
    pub async fn admin(&self, listen: SocketAddr) -> io::Result<AdminPort> {
        let listener = TcpListener::bind(listen).await?;
        let addr = listener.local_addr()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(self.shared.clone(), listener));
        Ok(AdminPort { addr, _tasks: tasks })
    }
}

async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                let Ok((tcp, _)) = accepted else { continue };
                let shared = shared.clone();
                // However a connection ends, it ends.
                connections.spawn(async move { drop(converse(&shared, tcp).await) });
            }
        }
    }
}

async fn converse(shared: &Shared, tcp: TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let mut tcp = BufReader::new(tcp);
    loop {
        let mut head = (&mut tcp).take(MAX_HEAD_BYTES);
        let mut first = String::new();
        head.read_line(&mut first).await?;
        let mut line = String::new();
        while head.read_line(&mut line).await? > 2 {
            line.clear();
        }
        let Some(target) = first.split(' ').nth(1) else { return Ok(()) };
        let (status, body) = match page(shared, target) {
            Some(body) => ("200 OK", body),
            None => ("404 Not Found", String::new()),
        };
        let mut answer = String::with_capacity(body.len() + 128);
        // A String takes everything.
        let _ = write!(answer, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        tcp.write_all(answer.as_bytes()).await?;
    }
}

fn page(shared: &Shared, target: &str) -> Option<String> {
    let state = lock(&shared.state);
    let later = state.spec.arguments == Arguments::Tenant;
    match target.split_once('?').unwrap_or((target, "")) {
        ("/health", _) => Some(health(&state.standing).to_string()),
        ("/kv_events/status", _) if later => Some(json!({"enabled": false}).to_string()),
        ("/get_segments_detail", _) if later => Some(segments(&state).to_string()),
        ("/get_all_keys", _) => Some(state.objects.keys().map(|key| format!("{key}\n")).collect()),
        ("/batch_query_keys", query) => {
            let keys = query.strip_prefix("keys=")?.split(',');
            let entry = |key: &str| {
                let key = if later { decoded(key)? } else { key.to_owned() };
                let entry = described(state.objects.get(&key), later);
                Some((key, entry))
            };
            let data = keys.map(entry).collect::<Option<Map<_, _>>>()?;
            Some(json!({"success": true, "data": data}).to_string())
        }
        _ => None,
    }
}

fn health(standing: &Leadership) -> Value {
    let (role, state, leader) = match standing {
        Leadership::Leader => ("leader", "serving", Value::Null),
        Leadership::WarmingUp => ("leader", "leader_warmup", Value::Null),
        Leadership::Standby(leader) if leader.is_empty() => ("standby", "standby", Value::Null),
        Leadership::Standby(leader) => ("standby", "standby", leader.as_str().into()),
    };
    let ready = *standing == Leadership::Leader;
    json!({"status": "ok", "role": role, "ha_state": state, "service_ready": ready, "leader_address": leader})
}

/// The memory segments that hold objects, each once.
fn segments(state: &State) -> Value {
    let replicas = state.objects.values().flat_map(|held| match held {
        KeyEntry::Object(replicas) => replicas.as_slice(),
        KeyEntry::Error(_) => &[],
    });
    let places: BTreeSet<&str> =
        replicas.filter(|r| r.medium == Medium::Memory).map(|r| r.place.as_str()).collect();
    let segment = |place| json!({"segment_name": place, "te_endpoint": place, "client_id": place});
    places.into_iter().map(segment).collect()
}

fn described(held: Option<&KeyEntry>, later: bool) -> Value {
    let (mut entry, replicas): (Value, &[Replica]) = match held {
        Some(KeyEntry::Object(replicas)) => (json!({"ok": true}), replicas),
        Some(KeyEntry::Error(error)) if *error != NOT_FOUND => {
            (json!({"ok": false, "error": error.to_string()}), &[])
        }
        _ => (json!({"ok": false, "error": "OBJECT_NOT_FOUND"}), &[]),
    };
    let listed = |medium: Medium, describe: fn(&str) -> Value| -> Value {
        let complete = replicas.iter().filter(|r| r.complete && r.medium == medium);
        let list: Vec<Value> = complete.map(|replica| describe(&replica.place)).collect();
        if list.is_empty() { Value::Null } else { Value::Array(list) }
    };
    let buffer = |place: &str| {
        let address = 140_123_456_789_504_u64;
        json!({"size_": 64, "buffer_address_": address, "protocol_": "tcp", "transport_endpoint_": place})
    };
    let fields: &[(&str, Value)] = &[
        ("values", listed(Medium::Memory, buffer)),
        ("nof_values", listed(Medium::Nof, buffer)),
        ("disk_values", listed(Medium::Disk, |place| json!({"file_path": place, "object_size": 64}))),
        (
            "local_disk_values",
            listed(Medium::LocalDisk, |place| json!({"object_size": 64, "transport_endpoint": place})),
        ),
    ];
    if let Some(entry) = entry.as_object_mut() {
        let known = if later { fields } else { fields.get(..1).unwrap_or_default() };
        entry.extend(known.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    }
    entry
}

/// A key without its percent signs; none if they are no text.
fn decoded(key: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        match (byte, after) {
            (b'+', _) => bytes.push(b' '),
            (b'%', [high, low, after @ ..]) => {
                let digits = [char::from(*high), char::from(*low)].map(|digit| digit.to_digit(16));
                let [Some(high), Some(low)] = digits else { return None };
                bytes.push(u8::try_from(high << 4 | low).ok()?);
                rest = after;
            }
            _ => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}
