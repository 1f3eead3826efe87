use super::*;
use crate::auth::{Callers, Digest, Grants, file::Entry};
use crate::codec::json::{Object, ScanLimits};

/// Rest of 1000 tokens per minute after a request for which 500 were set aside.
fn left(end: impl FnOnce(&mut Ledger)) -> u64 {
    let grants = Grants { tokens_per_minute: Some(1_000), ..Grants::default() };
    let entry = Entry { name: "a".into(), digest: Digest::of(b"k"), grants };
    let caller = Callers::of(vec![entry]).of_key(b"k").unwrap();
    let mut ledger = Ledger::open(Arc::default(), Api::Chat, "id".into(), Instant::now());
    ledger.called_by(caller.clone());
    let body = Object::scan(format!("{:1600}", "{}").into(), ScanLimits::default()).unwrap();
    let shape = Shape::read(Api::Chat, &body);
    assert_eq!(shape.prompt_tokens, 400);
    ledger.reserved(caller.reserve(500, Instant::now()).unwrap(), &shape);
    end(&mut ledger);
    drop(ledger);
    caller.level(Instant::now()).unwrap().remaining
}

#[test]
fn a_request_costs_what_it_took_and_nothing_when_nothing_came_of_it() {
    let usage = |prompt, output| Usage { prompt: Some(prompt), output: Some(output), ..Usage::default() };
    let ok = left(|ledger| {
        ledger.prefilled(usage(300, 1));
        ledger.decoded(usage(300, 50));
        ledger.whole(StatusCode::OK);
    });
    assert!((650..=651).contains(&ok), "{ok}");
    let refused = left(|ledger| {
        ledger.prefilled(usage(300, 1));
        ledger.refused(&Error::new(Kind::DecodeFailed, "no"), StatusCode::BAD_REQUEST);
    });
    assert_eq!(refused, 1_000, "a prefill that nobody had anything of");
    assert_eq!(left(|ledger| ledger.whole(StatusCode::NOT_FOUND)), 1_000, "the engine refused it");
    assert_eq!(left(|_| {}), 1_000, "the client left while it waited");
}

#[test]
fn an_attempt_is_not_told_by_the_counts_of_one_before() {
    let usage = |prompt, cached| Usage {
        prompt: Some(prompt),
        cached: Some(cached),
        output: Some(5),
        ..Usage::default()
    };
    let mut ledger = Ledger::open(Arc::default(), Api::Chat, "id".into(), Instant::now());
    ledger.tries_anew();
    ledger.prefilled(usage(300, 96));
    ledger.tries_anew();
    assert_eq!(ledger.cached_of_prefill(), None);
    ledger.decoded(usage(301, 16));
    let told = |ledger: &Ledger| (ledger.prompt, ledger.cached, ledger.took());
    assert_eq!(told(&ledger), (Some(301), Some(16), TokenCounts { prompt: 301, output: 5 }));
    // The client has some of the answer, to the prompt that was counted.
    ledger.resumes("broken");
    ledger.tries_anew();
    assert_eq!(told(&ledger), (Some(301), Some(16), TokenCounts { prompt: 301, output: 5 }));
}

#[test]
fn parts_cost_what_their_events_may_hold() {
    let body = r#"{"prompt":["a","b"],"stream":true,"stream_interval":100,"max_tokens":900}"#;
    let shape = Shape::read(Api::Completions, &Object::scan(body.into(), ScanLimits::default()).unwrap());
    let mut whole = Ledger::open(Arc::default(), Api::Completions, "id".into(), Instant::now());
    whole.reserved(None, &shape);
    let mut part = whole.part("id-0".into());
    part.piece(Instant::now(), 4);
    assert_eq!((part.tokens(), part.counted()), (Some(300), None), "three events and the end; of no pace");
    part.piece(Instant::now(), 40);
    assert_eq!(part.tokens(), Some(900), "no more than was asked for");
    part.decoded(Usage { output: Some(500), ..Usage::default() });
    assert_eq!((part.tokens(), part.counted()), (Some(500), Some(500)));
}

#[test]
fn client_that_leaves_mid_stream_pays_for_received_tokens() {
    let left = left(|ledger| {
        ledger.decoded(Usage { prompt: Some(100), ..Usage::default() });
        ledger.streams(StatusCode::OK);
        ledger.piece(Instant::now(), 202);
    });
    assert!((700..=701).contains(&left), "{left}");
}

#[test]
fn client_that_leaves_during_prefill_pays_for_the_prompt() {
    let fleet = crate::fleet::Fleet::new(crate::route::Policy::LeastWork);
    fleet.add(Role::Prefill, crate::endpoint::Endpoint::new("p", 1));
    let reservation = fleet.pick(Role::Prefill, crate::fleet::Need::default()).unwrap();
    let left = left(|ledger| ledger.leg(reservation.instance()));
    assert!((600..=601).contains(&left), "{left}");
}

/// Names of the fields of each access line that is written on this thread.
#[derive(Clone, Default)]
struct AccessFields(Arc<std::sync::Mutex<Vec<Vec<&'static str>>>>);

impl tracing::Subscriber for AccessFields {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let names = event.metadata().fields().iter().map(|field| field.name()).collect::<Vec<_>>();
        if names.contains(&"total_ms") {
            self.0.lock().unwrap().push(names);
        }
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn the_access_line_has_the_fields_of_the_reference() {
    let seen = AccessFields::default();
    tracing::subscriber::with_default(seen.clone(), || {
        left(|ledger| ledger.whole(StatusCode::OK));
        left(|ledger| ledger.refused(&Error::new(Kind::DecodeFailed, "no"), StatusCode::BAD_GATEWAY));
    });
    let told = crate::obs::words::REQUEST_FIELDS.map(|field| field.name);
    let lines = seen.0.lock().unwrap();
    assert_eq!(lines.len(), 2, "one at INFO, one at WARN");
    for names in lines.iter() {
        let fields: Vec<&str> = names.iter().copied().filter(|name| *name != "message").collect();
        assert_eq!(fields, told);
    }
}
