//! `/batch_query_keys`, `/get_all_keys` and `/health`, with the limits and the fault of the real
//! ones.

use std::fmt::Write;
use std::io;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::super::hub::lock;
use super::{MetaFault, MetaObject, MetaVersion, SEEN, Shared};

const NARROW_TARGET_BYTES: usize = 8 << 10;
const MAX_HEAD_BYTES: usize = 64 << 10;

pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let shared = shared.clone();
        connections.spawn(async move {
            // However a connection ends, nothing of the service depends on it.
            let _ = serve(stream, &shared).await;
        });
    }
}

async fn serve(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if buffer.len() > MAX_HEAD_BYTES || stream.read_buf(&mut buffer).await? == 0 {
                break 0;
            }
        };
        if end == 0 || end > MAX_HEAD_BYTES {
            return stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
        }
        let head = String::from_utf8_lossy(buffer.get(..end).unwrap_or_default()).into_owned();
        buffer.drain(..end);
        let (status, body) = answer(shared, head.split(' ').nth(1).unwrap_or_default());
        let length = body.len();
        let top = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(top.as_bytes()).await?;
        // The body of such an answer never comes, and the connection stays.
        if !head.to_ascii_lowercase().contains("connection: close") || shared.version == MetaVersion::V1_1 {
            stream.write_all(body.as_bytes()).await?;
        }
    }
}

fn answer(shared: &Shared, target: &str) -> (&'static str, String) {
    match target {
        "/health" => {
            let health = r#"{"role":"unknown","service_ready":true,"status":"ok"}"#;
            return ("200 OK", health.to_owned());
        }
        "/get_all_keys" => {
            let inner = lock(&shared.inner);
            return ("200 OK", inner.objects.keys().map(|key| format!("{key}\n")).collect());
        }
        _ => {}
    }
    let Some(list) = target.strip_prefix("/batch_query_keys?keys=") else {
        return ("404 Not Found", String::new());
    };
    if shared.version == MetaVersion::V1_1 && target.len() > NARROW_TARGET_BYTES {
        return ("414 URI Too Long", String::new());
    }
    let list = unescape(list);
    let mut inner = lock(&shared.inner);
    if inner.fault == MetaFault::Refuse {
        return ("200 OK", "{\"success\":false}".to_owned());
    }
    let keys: Vec<&str> = list.split(',').filter(|key| !key.is_empty()).collect();
    if inner.asked.len() < SEEN {
        inner.asked.push(super::MetaRequest { op: 0, keys: keys.len() });
    }
    let entries: Vec<String> =
        keys.iter().map(|key| entry(shared.version, key, inner.objects.get(*key))).collect();
    ("200 OK", format!("{{\"data\":[{}],\"success\":true}}", entries.join(",")))
}

fn entry(version: MetaVersion, key: &str, object: Option<&MetaObject>) -> String {
    let mut blobs = String::new();
    for (rank, medium) in object.map_or([].as_slice(), |object| &object.replicas) {
        let medium = ["HBM", "DRAM", "SSD"].get(usize::from(*medium)).unwrap_or(&"OTHER");
        let comma = if blobs.is_empty() { "" } else { "," };
        // Writing to a string can't fail.
        let _ = write!(blobs, "{comma}{{\"medium\":\"{medium}\",\"rank\":{rank}");
        if version > MetaVersion::V1_1 {
            let state = u8::from(object.is_some_and(|object| object.readable));
            let _ = write!(blobs, ",\"gva\":1,\"leaseTimeoutTtlMs\":9999,\"state\":{state}");
        }
        blobs.push('}');
    }
    let (count, valid) = (object.map_or(0, |object| object.replicas.len()), object.is_some());
    format!(
        "{{\"blobs\":[{blobs}],\"key\":\"{key}\",\"numBlobs\":{count},\"prot\":0,\"size\":4096,\"valid\":{valid}}}"
    )
}

fn unescape(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}
