use crate::dialect::Dialect;
use std::time::Duration;

use http::HeaderMap;
use http::uri::PathAndQuery;

use super::*;
use crate::codec::json::{Object, ScanLimits};
use crate::dialect::{Api, Shape};
use crate::endpoint::Endpoint;
use crate::fleet::Fleet;
use crate::relay::ask::ReceivedRequest;
use crate::route::Policy;

/// A guard over a hand-off, and the receiving end of the queue.
fn guard(handoff: Option<&'static str>) -> (HandoffGuard, mpsc::Receiver<AbandonedHandoff>) {
    let body = Object::scan("{}".into(), ScanLimits::default()).unwrap();
    let ask = ReceivedRequest {
        api: Api::Chat,
        id: "x".into(),
        name: None,
        target: PathAndQuery::from_static("/v1/chat/completions"),
        headers: HeaderMap::new(),
        shape: Shape::read(Api::Chat, &body),
        body,
        alias: None,
        resume: None,
        encodings: None,
        http2: false,
        arrived: Instant::now(),
        ttft_slo: None,
        trace: None,
    };
    let fleet = Fleet::new(Policy::LeastWork);
    fleet.add(Role::Prefill, Endpoint::new("p", 1));
    let reservation = fleet.pick(Role::Prefill, Need { tokens: 1, ..Need::default() }).unwrap();
    let (releases, orphans) = ReleaseQueue::new(1, &Arc::default(), fleet.pending_decodes());
    (
        HandoffGuard::new(
            Arc::new(ask.with_job(Arc::default())),
            handoff.map(Bytes::from),
            reservation,
            releases,
        ),
        orphans,
    )
}

/// True if a guard that went through `steps` is queued for release when it is dropped.
fn queued(handoff: Option<&'static str>, steps: impl FnOnce(&mut HandoffGuard)) -> bool {
    let (mut guard, mut orphans) = guard(handoff);
    steps(&mut guard);
    let releases = guard.releases.clone();
    drop(guard);
    let queued = orphans.try_recv().is_ok();
    assert!(!releases.pending(), "taken or not, nothing is left open");
    queued
}

fn written() -> Written {
    let written = Written::default();
    written.set();
    written
}

#[test]
fn handoff_is_queued_for_release_unless_fetched() {
    let some = Some("{}");
    assert!(queued(some, |_| {}), "no decoder had it");
    assert!(queued(some, |d| drop(d.give(&Written::default()).cloned())), "on its way to one");
    assert!(
        !queued(some, |d| drop(d.give(&written()).cloned())),
        "a decoder has it and was hung up on: it frees both"
    );
    assert!(!queued(some, HandoffGuard::used), "fetched");
    assert!(!queued(some, HandoffGuard::lost), "it may have killed the decoder");
    assert!(queued(some, HandoffGuard::refused), "turned away unread");
    assert!(!queued(None, |_| {}), "there is nothing to release");
}

/// The abandoned hand-off of a guard, with `handoff` as its parameters.
fn lost(guard: &HandoffGuard, handoff: &'static str) -> Lost {
    let (ask, prefiller) = (guard.ask.clone(), guard.prefiller().id());
    Lost { ask, handoff: handoff.into(), prefiller, born: guard.born, late: false }
}

#[test]
fn more_than_the_queue_holds_is_left_to_the_lease() {
    let (first, mut orphans) = guard(Some("{}"));
    let releases = first.releases.clone();
    drop(first);
    assert!(releases.pending());
    let (second, _other_queue) = guard(None);
    releases.submit(Left::Handoff(lost(&second, "")));
    assert!(orphans.try_recv().is_ok() && orphans.try_recv().is_err());
    assert!(!releases.pending());
}

#[test]
fn a_handoff_grows_stale_before_its_lease_ends() {
    let (mut guard, _orphans) = guard(Some("{}"));
    assert!(!guard.stale(Duration::from_secs(10)));
    guard.born = BootInstant::now().earlier(Duration::from_secs(8));
    assert!(guard.stale(Duration::from_secs(10)) && !guard.stale(Duration::from_secs(11)));
}

#[test]
fn a_handoff_that_tells_its_lease_is_good_for_so_long() {
    let (mut guard, _orphans) = guard(Some(r#"{"kv_lease_duration":20}"#));
    let aged = |guard: &mut HandoffGuard, age_s| {
        guard.born = BootInstant::now().earlier(Duration::from_secs(age_s));
    };
    let [short, long] = [5, 60].map(Duration::from_secs);
    aged(&mut guard, 15);
    assert!(!guard.stale(short) && !guard.stale(long), "it tells 20 s");
    aged(&mut guard, 16);
    assert!(guard.stale(short) && guard.stale(long));
}

#[test]
fn abandoned_handoff_is_over_with_its_lease() {
    let is_over = |handoff, age_s| {
        let (mut guard, _orphans) = guard(None);
        guard.born = BootInstant::now().earlier(Duration::from_secs(age_s));
        lost(&guard, handoff).is_over(Duration::from_secs(10))
    };
    assert!(!is_over("{}", 5) && is_over("{}", 10));
    let told = r#"{"kv_lease_duration":20}"#;
    assert!(!is_over(told, 15) && is_over(told, 20));
}

#[test]
fn only_engines_that_know_the_handoff_settle_it() {
    let settled = |dialect| move |code: u16| fetched_or_told(dialect, StatusCode::from_u16(code).unwrap());
    assert!([200, 400, 404, 422, 503].into_iter().all(settled(Dialect::Mooncake)));
    assert!(![401, 403, 429, 500, 502].into_iter().any(settled(Dialect::Mooncake)));
    for told_by_nobody in [Dialect::KvTransfer, Dialect::NixlPush] {
        assert!(settled(told_by_nobody)(200));
        assert!(![400, 404, 422, 503].into_iter().any(settled(told_by_nobody)), "{told_by_nobody:?}");
    }
}
