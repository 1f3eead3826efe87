//! Bodies that come more slowly than they must, over any connection.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pd_proxy::config::Config;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{GOOD, PATH, PATIENCE, assert_serves, reached, stage};
use crate::common::time::pace;

/// Between two bytes. So a body never comes faster than 50 bytes/s, on however busy a machine.
const PAUSE: Duration = Duration::from_millis(20);

/// Limits that such a body is below, long before `timeout.body_ms` is over.
pub fn limit(config: &mut Config) {
    (config.timeout.body_grace_ms, config.limit.body_rate) = (300, 1_000);
}

/// Status and time of the answer to a body that comes byte by byte.
pub struct Ended {
    pub status: u16,
    pub text: String,
    took: Duration,
}

impl Ended {
    pub fn assert_too_slow(&self, when: &str) {
        let Ended { status, text, took } = self;
        assert!(*status == 408 && text.contains("limit.body_rate"), "{when}: {status} {text}");
        assert!(*took < PATIENCE, "{when}: {took:?}, and timeout.body_ms is a minute");
    }
}

/// Over HTTP/1.1 on this connection.
pub async fn over_http1(io: impl AsyncRead + AsyncWrite) -> Ended {
    let (mut reader, mut writer) = tokio::io::split(io);
    let (start, mut said) = (Instant::now(), Vec::new());
    let writing = async {
        let head = format!("POST {PATH} HTTP/1.1\r\nhost: gateway\r\ncontent-length: 100000\r\n\r\n{{");
        let mut piece = head.as_bytes();
        while writer.write_all(piece).await.is_ok() && writer.flush().await.is_ok() {
            piece = b" ";
            pace(PAUSE).await;
        }
        // The answer is still to be read.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        // TLS that ends without its farewell is an error, after everything has come.
        ended = timeout(PATIENCE, reader.read_to_end(&mut said)) => drop(ended.expect("it ends")),
        () = writing => {}
    }
    let text = String::from_utf8_lossy(&said).into_owned();
    let status = text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
    Ended { status, text, took: start.elapsed() }
}

/// Over HTTP/2 on this connection.
pub async fn over_http2(io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Ended {
    let start = Instant::now();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(io)).await.unwrap();
    let bytes = stream::repeat(b" ").then(async |byte: &'static [u8; 1]| {
        pace(PAUSE).await;
        Ok::<_, Infallible>(Frame::data(Bytes::from_static(byte)))
    });
    let request = http::Request::post(format!("http://gateway{PATH}"))
        .header("content-length", 100_000)
        .body(StreamBody::new(Box::pin(bytes)))
        .unwrap();
    let exchange = async {
        let response = sender.send_request(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Ended { status, text: String::from_utf8_lossy(&body).into_owned(), took: start.elapsed() }
    };
    let exchange = timeout(PATIENCE, exchange);
    tokio::select! {
        ended = exchange => ended.expect("it ends"),
        ended = connection => panic!("the connection ended first: {ended:?}"),
    }
}

#[tokio::test]
async fn a_body_below_the_least_rate_is_given_up_over_either_http() {
    let stage = stage(|s| limit(&mut s.config)).await;
    over_http1(TcpStream::connect(stage.gateway).await.unwrap()).await.assert_too_slow("HTTP/1.1");
    over_http2(TcpStream::connect(stage.gateway).await.unwrap()).await.assert_too_slow("HTTP/2");
    assert_eq!(reached(&stage, "bodies that trickle"), 0);
    assert_serves(&stage, "after them").await;
    stage.end().await;
}

/// A stream that trickles is none of the others' business on its connection.
#[tokio::test]
async fn other_streams_of_its_connection_are_served_meanwhile() {
    let stage = stage(|s| limit(&mut s.config)).await;
    let io = TokioIo::new(TcpStream::connect(stage.gateway).await.unwrap());
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    let request = |body: stream::BoxStream<'static, Result<Frame<Bytes>, Infallible>>| {
        http::Request::post(format!("http://gateway{PATH}")).body(StreamBody::new(body)).unwrap()
    };
    let slow = stream::repeat(b" ").then(async |byte: &'static [u8; 1]| {
        pace(PAUSE).await;
        Ok(Frame::data(Bytes::from_static(byte)))
    });
    let slow = sender.send_request(request(slow.boxed()));
    let good = stream::iter([Ok(Frame::data(Bytes::from_static(GOOD.as_bytes())))]);
    let good = sender.send_request(request(good.boxed()));
    let both = timeout(PATIENCE, async { tokio::join!(slow, good) });
    let (slow, good) = tokio::select! {
        both = both => both.expect("both end"),
        ended = connection => panic!("the connection ended first: {ended:?}"),
    };
    assert_eq!((slow.unwrap().status().as_u16(), good.unwrap().status().as_u16()), (408, 200));
    stage.end().await;
}
