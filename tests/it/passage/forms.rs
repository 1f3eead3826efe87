//! Forms with a file: audio.

use super::{asked_at, willing};
use crate::common::client::Raw;
use crate::common::raw_engine::Front;

const PATH: &str = "/v1/audio/transcriptions";
const KIND: &str = "multipart/form-data; boundary=xyz";

fn part(head: &str, value: &[u8]) -> Vec<u8> {
    [format!("--xyz\r\nContent-Disposition: form-data; {head}\r\n\r\n").as_bytes(), value, b"\r\n"].concat()
}

fn field(name: &str, value: &str) -> Vec<u8> {
    part(&format!("name=\"{name}\""), value.as_bytes())
}

/// A file that is no UTF-8, has line ends, and something like a boundary.
fn file(bytes: usize) -> Vec<u8> {
    let sound: Vec<u8> = (0..bytes).map(|at| (at * 7 % 256) as u8).collect();
    part(
        "name=\"file\"; filename=\"a b.wav\"\r\nContent-Type: audio/wav",
        &[b"RIFF\r\n--xy\r\n", &sound[..]].concat(),
    )
}

async fn send(front: &Front, path: &str, kind: &str, parts: &[Vec<u8>]) -> (Raw, Vec<u8>) {
    let body = [&parts.concat()[..], b"--xyz--\r\n"].concat();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    (front.send(&[head.as_bytes(), &body].concat()).await, body)
}

#[tokio::test]
async fn a_form_reaches_one_decoder_as_it_came() {
    let (prefiller, decoder) = (willing().await, willing().await);
    let front =
        Front::of(&[&prefiller], &[&decoder], |config| config.fleet.model = Some("whisper".into())).await;
    for path in [PATH, "/v1/audio/translations"] {
        decoder.forget();
        let (raw, sent) =
            send(&front, path, KIND, &[field("model", "whisper"), file(300_000), field("language", "de")])
                .await;
        assert_eq!(raw.status, 200, "{}", raw.text());
        let asked = asked_at(&decoder, path);
        assert_eq!((asked.len(), asked[0].header("content-type")), (1, Some(KIND)));
        assert!(asked[0].body == sent, "{path}: {} bytes of {}", asked[0].body.len(), sent.len());
    }
    assert!(prefiller.seen().is_empty());
    front.end().await;
}

#[tokio::test]
async fn a_forms_model_is_the_one_that_is_served() {
    let decoder = willing().await;
    let front =
        Front::of(&[&decoder], &[&decoder], |config| config.fleet.model = Some("whisper".into())).await;
    let (raw, _) = send(&front, PATH, KIND, &[field("model", "other"), file(10)]).await;
    assert_eq!((raw.status, raw.header("x-pd-error")), (404, Some("model_not_found")));
    for parts in [
        vec![field("model", "whisper"), field("model", "other")],
        vec![file(10), field("kv_transfer_params", "{}")],
    ] {
        let (raw, _) = send(&front, PATH, KIND, &parts).await;
        assert_eq!((raw.status, raw.header("x-pd-error")), (400, Some("invalid_value")), "{}", raw.text());
    }
    let raw = front.post(PATH, r#"{"model":"whisper"}"#).await;
    assert_eq!(raw.status, 400);
    assert!(raw.text().contains("multipart/form-data"), "{}", raw.text());
    assert!(decoder.seen().is_empty());
    front.end().await;
}

#[tokio::test]
async fn a_form_is_as_long_as_any_other_body() {
    let decoder = willing().await;
    let front = Front::of(&[&decoder], &[&decoder], |config| config.limit.body_bytes = 20_000).await;
    let (raw, _) = send(&front, PATH, KIND, &[file(30_000)]).await;
    assert_eq!((raw.status, raw.header("x-pd-error")), (413, Some("body_too_large")));
    assert_eq!(send(&front, PATH, KIND, &[file(10_000)]).await.0.status, 200);
    assert_eq!(decoder.seen().len(), 1);
    front.end().await;
}

#[tokio::test]
async fn configured_paths_take_forms_as_well() {
    let engine = willing().await;
    let front =
        Front::of(&[&engine], &[&engine], |config| config.server.passthrough = vec!["/v9/audio".into()])
            .await;
    let (raw, sent) = send(&front, "/v9/audio", KIND, &[field("model", "m"), file(100)]).await;
    assert_eq!(raw.status, 200, "{}", raw.text());
    assert!(engine.seen()[0].body == sent);
    front.end().await;
}
