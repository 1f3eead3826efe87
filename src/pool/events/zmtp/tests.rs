use super::*;
use crate::pool::zmtp::LONG;
use tokio::io::duplex;

/// First bytes of libzmq's PUB: version 3.1, and its READY.
fn publisher(kind: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; GREETING_BYTES];
    (bytes[0], bytes[8], bytes[9], bytes[10], bytes[11]) = (0xff, 1, 0x7f, 3, 1);
    bytes[12..16].copy_from_slice(b"NULL");
    let ready = [b"\x05READY\x0bSocket-Type\0\0\0", &[u8::try_from(kind.len()).unwrap()][..], kind].concat();
    bytes.extend([COMMAND, u8::try_from(ready.len()).unwrap()]);
    bytes.extend(ready);
    bytes
}

/// A connection to a peer that has sent this.
async fn meets(sent: &[u8]) -> (Result<Connection, LinkError>, tokio::io::DuplexStream) {
    let (ours, mut theirs) = duplex(1 << 20);
    theirs.write_all(sent).await.unwrap();
    (Connection::greet(Box::new(ours), Role::Subscriber).await, theirs)
}

#[tokio::test]
async fn a_subscription_and_its_messages() {
    let (link, mut peer) = meets(&publisher(b"PUB")).await;
    let mut link = link.unwrap();
    link.subscribe("kv").await.unwrap();
    let mut sent = vec![0; GREETING_BYTES + 27 + 5];
    peer.read_exact(&mut sent).await.unwrap();
    assert_eq!(&sent[GREETING_BYTES..], b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB\0\x03\x01kv");

    let mut wire = vec![1, 2, b'k', b'v', COMMAND, 11];
    wire.extend(b"\x04PING\0\x10ctxt");
    wire.extend([1, 0, 2, 0, 0, 0, 0, 0, 0, 1, 0]);
    wire.extend([7; 256]);
    for byte in wire {
        peer.write_all(&[byte]).await.unwrap();
    }
    let message = link.receive().await.unwrap();
    assert_eq!(message, [&b"kv"[..], b"", &[7; 256]]);
    let mut pong = vec![0; 11];
    peer.read_exact(&mut pong).await.unwrap();
    assert_eq!(pong, b"\x04\x09\x04PONGctxt");
    drop(peer);
    assert!(matches!(link.receive().await, Err(LinkError::Closed)));
}

#[tokio::test]
async fn strangers_are_refused() {
    let mut other_version = publisher(b"PUB");
    other_version[10] = 2;
    let mut secured = publisher(b"PUB");
    secured[12..17].copy_from_slice(b"CURVE");
    let message = [&publisher(b"PUB")[..GREETING_BYTES], &[0, 1, 1]].concat();
    for sent in [other_version, secured, publisher(b"REP"), message, vec![b'H'; 80]] {
        assert!(matches!(meets(&sent).await.0, Err(LinkError::Protocol(_))));
    }
}

#[tokio::test]
async fn lengths_and_flags_are_bounded() {
    let whole = publisher(b"PUB");
    let cases: [(Vec<u8>, bool); 4] = [
        (vec![LONG, 0x7f, 255, 255, 255, 255, 255, 255, 255], true),
        ([1, 1, 0].repeat(MAX_FRAMES + 1), true),
        (vec![MORE | COMMAND, 0], false),
        (vec![8, 0], false),
    ];
    for (sent, too_large) in cases {
        let (link, _peer) = meets(&[whole.as_slice(), &sent].concat()).await;
        let error = link.unwrap().receive().await.unwrap_err();
        assert_eq!(matches!(error, LinkError::TooLarge), too_large, "{error}");
        assert_eq!(matches!(error, LinkError::Protocol(_)), !too_large, "{error}");
    }
}

#[tokio::test]
async fn cut_at_every_byte_it_is_closed() {
    let whole = [publisher(b"PUB").as_slice(), &[1, 1, 9, 0, 1, 9]].concat();
    for cut in 0..whole.len() {
        let (ours, mut theirs) = duplex(1 << 10);
        theirs.write_all(&whole[..cut]).await.unwrap();
        theirs.shutdown().await.unwrap();
        let link = Connection::greet(Box::new(ours), Role::Subscriber).await;
        let end = match link {
            Ok(mut link) => link.receive().await.map(drop),
            Err(error) => Err(error),
        };
        assert!(matches!(end, Err(LinkError::Closed)), "cut at {cut}");
    }
}

#[test]
fn addresses_as_engines_have_them() {
    let address = |text: &str| text.parse::<Address>();
    assert_eq!(address("tcp://*:5557"), Ok(Address::Tcp("0.0.0.0:5557".into())));
    assert_eq!(address("tcp://[::1]:5557").unwrap().to_string(), "tcp://[::1]:5557");
    let ranked = |text: &str, rank| address(text).unwrap().of_rank(rank).map(|it| it.to_string());
    assert_eq!(ranked("tcp://node:5557", 2).unwrap(), "tcp://node:5559");
    assert_eq!(ranked("tcp://node:65535", 1), None);
    assert_eq!(ranked("ipc:///tmp/kv", 1).unwrap(), "ipc:///tmp/kv_dp1");
    for text in ["", "tcp://", "tcp://host", "tcp://:1", "tcp://host:70000", "ipc://", "host:1"] {
        assert_eq!(address(text), Err(BadAddress), "{text}");
    }
}
