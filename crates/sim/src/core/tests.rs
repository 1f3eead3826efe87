use super::*;
use crate::Connector;
use crate::tokens;

fn spec() -> EngineSpec {
    EngineSpec { block_tokens: 4, kv_blocks: 8, ..EngineSpec::default() }
}

fn prompt(text: &str) -> Prompt {
    Prompt { tokens: tokens::encode(text).into(), salt: 0, remote: false, fetched: 0 }
}

fn remote(text: &str) -> Prompt {
    Prompt { remote: true, ..prompt(text) }
}

fn ready(core: &mut Core, now_us: u64, id: JobId) -> Computed {
    match core.poll(now_us, id) {
        Progress::Ready(computed) => computed,
        other => panic!("not ready: {other:?}"),
    }
}

/// Computes `text`, pins it as `name`, ends the job; gives the blocks and the right print.
fn prefill(core: &mut Core, now_us: u64, text: &str, name: &str) -> (BlockIds, Fingerprint) {
    let id = core.submit(now_us, prompt(text));
    let print = ready(core, now_us, id).print;
    let ids = core.pin(now_us, id, name);
    core.end(now_us, id);
    (ids, print)
}

/// Has `decoder` read `ids` from `source` for `text`; gives what it continues from.
fn pull(decoder: &mut Core, source: &Core, text: &str, ids: &[u32]) -> Fingerprint {
    let id = decoder.submit(0, remote(text));
    let Progress::Pull { blocks } = decoder.poll(0, id) else { panic!("no pull") };
    let contents = source.read(&ids[ids.len() - blocks..]).unwrap();
    decoder.received(0, id, &contents);
    let print = ready(decoder, 0, id).print;
    decoder.end(0, id);
    print
}

#[test]
fn a_handoff_is_read_released_and_right() {
    let (mut p, mut d) = (Core::new(&spec()), Core::new(&spec()));
    let (ids, print) = prefill(&mut p, 0, "the quick brown fox jumps", "r");
    assert_eq!(ids.len(), 3);
    assert_eq!(p.ledger(0).pinned_blocks, 3);
    assert_eq!(pull(&mut d, &p, "the quick brown fox jumps", &ids), print);
    assert!(p.release(0, "r", Release::Read));
    assert!(!p.release(0, "r", Release::Read));
    let ledger = p.ledger(0);
    assert_eq!((ledger.pinned_handoffs, ledger.used_blocks, ledger.released_by_decode), (0, 0, 1));
    assert_eq!(d.usage().0.external_kv_transfer, 9);
}

#[test]
fn a_lease_ends_and_reused_blocks_answer_something_else() {
    let (mut p, mut d) = (Core::new(&spec()), Core::new(&spec()));
    let (ids, print) = prefill(&mut p, 0, "the quick brown fox jumps", "r");
    assert_eq!(p.ledger(29_999_999).expired, 0);
    let ledger = p.ledger(30_000_000);
    assert_eq!((ledger.expired, ledger.pinned_handoffs, ledger.used_blocks), (1, 0, 0));
    assert!(!p.release(30_000_000, "r", Release::Read));
    assert_eq!(pull(&mut d, &p, "the quick brown fox jumps", &ids), print, "freed, not yet reused");
    let other = p.submit(30_000_000, prompt(&"something different ".repeat(4)));
    ready(&mut p, 30_000_000, other);
    d.reset_cache();
    assert_ne!(pull(&mut d, &p, "the quick brown fox jumps", &ids), print);
}

#[test]
fn kv_of_another_prompt_answers_something_else() {
    let (mut p, mut d) = (Core::new(&spec()), Core::new(&spec()));
    let (ids, _) = prefill(&mut p, 0, "the quick brown fox jumps", "r");
    let id = p.submit(0, prompt("the quick brown fox Jumps"));
    let right = ready(&mut p, 0, id).print;
    assert_ne!(pull(&mut d, &p, "the quick brown fox Jumps", &ids), right);
}

#[test]
fn prompts_wait_for_blocks_and_go_on_when_a_lease_ends() {
    let mut p = Core::new(&spec());
    let long = "0123456789ab".repeat(7);
    prefill(&mut p, 0, &long, "r");
    let id = p.submit(5, prompt("another prompt that is long"));
    assert_eq!(p.poll(5, id), Progress::Wait(Some(30_000_000)));
    assert_eq!(p.ledger(5).waiting, 1);
    p.take_woken();
    p.step(30_000_000);
    assert_eq!(p.take_woken(), [id, id]);
    ready(&mut p, 30_000_000, id);
}

#[test]
fn prefill_is_serial_and_an_abort_lets_the_next_one_in() {
    let mut p = Core::new(&EngineSpec { prefill_tokens_per_s: 1000.0, ..spec() });
    let first = p.submit(0, prompt("0123456789ab"));
    let second = p.submit(0, prompt("abcdef"));
    assert_eq!(p.poll(0, first), Progress::Wait(Some(4000)));
    assert_eq!(p.poll(0, second), Progress::Wait(None));
    p.end(1000, first);
    assert_eq!(p.poll(1000, second), Progress::Wait(Some(3000)));
    ready(&mut p, 3000, second);
    p.end(3000, second);
    assert_eq!(p.ledger(3000), Ledger::default());
}

#[test]
fn the_prefix_cache_counts_whole_blocks_and_leaves_one_token() {
    let mut p = Core::new(&spec());
    let text = "0123456789ab".repeat(2);
    let id = p.submit(0, prompt(&text));
    let computed = ready(&mut p, 0, id);
    assert_eq!((computed.cached_tokens, computed.created_tokens), (0, 8));
    p.end(0, id);
    let id = p.submit(0, prompt(&text));
    assert_eq!(ready(&mut p, 0, id).cached_tokens, 4);
    let salted = p.submit(0, Prompt { salt: 9, ..prompt(&text) });
    let other = ready(&mut p, 0, salted);
    assert_eq!((other.cached_tokens, other.print), (0, ready(&mut p, 0, id).print));
}

#[test]
fn streams_keep_the_pace_and_slow_each_other() {
    let mut d = Core::new(&EngineSpec { tpot_ms: 10.0, slope_ms: 1.0, ..spec() });
    let id = d.submit(0, prompt("abc"));
    ready(&mut d, 0, id);
    assert_eq!(d.token_due(0, id), Ok(()));
    assert_eq!(d.token_due(0, id), Err(11_000));
    let other = d.submit(0, prompt("def"));
    ready(&mut d, 0, other);
    assert_eq!(d.token_due(11_000, id), Ok(()));
    assert_eq!(d.token_due(11_000, id), Err(23_000));
}

#[test]
fn held_job_writes_one_token_and_catches_up_nothing() {
    let mut d = Core::new(&EngineSpec { tpot_ms: 10.0, ..spec() });
    d.hold(true);
    let id = d.submit(0, prompt("abc"));
    ready(&mut d, 0, id);
    assert_eq!(d.token_due(0, id), Ok(()));
    assert_eq!(d.token_due(0, id), Err(10_000));
    assert_eq!(d.token_due(10_000, id), Err(1_010_000));
    d.hold(false);
    assert_eq!(d.token_due(500_000, id), Err(1_010_000));
    assert_eq!(d.token_due(1_010_000, id), Ok(()));
    assert_eq!(d.token_due(1_010_000, id), Err(1_020_000));
}

#[test]
fn engines_with_a_pool_find_each_others_blocks() {
    let pool = Arc::new(Pool::new(100));
    let pooled = EngineSpec { connector: Connector::Pool, pool: Some(pool.clone()), ..spec() };
    let mut p = Core::new(&EngineSpec { role: Role::Prefill, ..pooled.clone() });
    let mut d = Core::new(&EngineSpec { role: Role::Decode, ..pooled });
    let text = "0123456789ab".repeat(3);
    let id = p.submit(0, prompt(&text));
    let right = ready(&mut p, 0, id).print;
    assert!(pool.is_empty(), "an engine stores beside its work");
    p.take_to_store().iter().for_each(|computed| computed.store(&pool));
    assert_eq!(pool.len(), 3);
    let id = d.submit(0, prompt(&text));
    let computed = ready(&mut d, 0, id);
    assert_eq!((computed.cached_tokens, computed.print), (8, right));
    assert_eq!(d.usage().0, Sources { local_compute: 4, local_cache_hit: 0, external_kv_transfer: 8 });
}
