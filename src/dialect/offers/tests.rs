use super::*;
use crate::codec::json::ScanLimits;

const BLOCK: usize = 4;

/// A decoder keeps a prompt of so many tokens from `first` on, and an answer of ten behind it.
fn returned(first: u32, prompt: u32) -> Returned {
    let (prompt, answer): (Vec<u32>, Vec<u32>) =
        ((first..first + prompt).collect(), (first + prompt..first + prompt + 10).collect());
    let held = prompt.len() + 10;
    let blocks: Vec<u32> = (0..u32::try_from(held.div_ceil(BLOCK)).unwrap()).collect();
    let text = serde_json::json!({"choices": [{"prompt_token_ids": prompt, "token_ids": answer}],
        "kv_transfer_params": {"do_remote_decode": true, "remote_block_ids": [blocks], "remote_num_tokens": held,
            "remote_request_id": first.to_string()}});
    let answer = Object::scan(text.to_string().into(), ScanLimits::default()).unwrap();
    Returned::read(&answer).unwrap()
}

fn nobody() -> Context {
    [None, None]
}

fn kept(first: u32, prompt: u32, owner: u8) -> KeptKv<u8> {
    KeptKv { returned: returned(first, prompt), context: nobody(), block_tokens: BLOCK, owner, until_ms: 100 }
}

fn keep(offers: &mut Offers<u8>, first: u32, owner: u8, now_ms: u64) -> usize {
    offers.keep(KeptKv { until_ms: now_ms + 100, ..kept(first, 20, owner) }, now_ms)
}

fn wanted<'a>(tokens: &'a [u32], context: &'a Context) -> Wanted<'a> {
    Wanted { tokens, context, block_tokens: BLOCK }
}

fn next_turn(first: u32) -> Vec<u32> {
    (first..first + 50).collect()
}

fn take(offers: &mut Offers<u8>, first: u32, now_ms: u64) -> Option<usize> {
    offers.take(wanted(&next_turn(first), &nobody()), now_ms, |_| true).map(|offer| offer.tokens)
}

#[test]
fn the_next_turn_finds_it_once() {
    let mut offers = Offers::default();
    assert_eq!(keep(&mut offers, 0, 1, 0), 0);
    keep(&mut offers, 1000, 1, 0);
    assert_eq!(take(&mut offers, 500, 1), None);
    assert_eq!(take(&mut offers, 0, 1), Some(28), "30 tokens in whole blocks of 4");
    assert_eq!(take(&mut offers, 0, 1), None, "one use");
    assert_eq!((offers.len(), take(&mut offers, 1000, 1), offers.is_empty()), (1, Some(28), true));
    assert!(offers.by_start.is_empty() && offers.tokens == 0);
}

#[test]
fn the_longest_is_the_best_and_of_two_alike_the_newer() {
    let mut offers = Offers::default();
    keep(&mut offers, 0, 1, 0);
    offers.keep(kept(0, 32, 2), 0);
    offers.keep(kept(0, 32, 3), 0);
    let owners = std::cell::RefCell::new(Vec::new());
    let all = |owner: &u8| {
        owners.borrow_mut().push(*owner);
        true
    };
    let offer = offers.take(wanted(&next_turn(0), &nobody()), 1, all).unwrap();
    assert_eq!((offer.tokens, offers.len()), (40, 2));
    let left: Vec<u8> = offers.entries.values().map(|entry| entry.kept.owner).collect();
    assert_eq!(left, [1, 2]);
    assert_eq!(owners.into_inner(), [1, 2, 3]);
}

#[test]
fn other_models_salts_and_block_sizes_have_nothing_in_common() {
    let mut offers = Offers::default();
    let body = |text: &str| context(&Object::scan(text.to_owned().into(), ScanLimits::default()).unwrap());
    let mine = body(r#"{"model":"m","cache_salt":"a"}"#);
    offers.keep(KeptKv { context: mine.clone(), ..kept(0, 20, 1) }, 0);
    for other in
        [r#"{"model":"m"}"#, r#"{"model":"m","cache_salt":"b"}"#, r#"{"model":"l","cache_salt":"a"}"#]
    {
        assert_eq!(offers.take(wanted(&next_turn(0), &body(other)), 1, |_| true), None, "{other}");
    }
    assert_eq!(offers.take(Wanted { block_tokens: 5, ..wanted(&next_turn(0), &mine) }, 1, |_| true), None);
    assert!(offers.take(wanted(&next_turn(0), &mine), 1, |_| true).is_some());
}

#[test]
fn expired_offers_and_those_of_departed_decoders_are_not_taken() {
    let mut offers = Offers::default();
    keep(&mut offers, 0, 1, 0);
    assert_eq!(take(&mut offers, 0, 100), None);
    assert!(offers.is_empty(), "dropped on the way");
    keep(&mut offers, 0, 1, 0);
    assert_eq!(offers.take(wanted(&next_turn(0), &nobody()), 1, |owner| *owner == 2), None);
    assert!(offers.is_empty());
    keep(&mut offers, 0, 1, 0);
    keep(&mut offers, 1000, 2, 0);
    offers.forget(|owner| *owner == 1);
    assert_eq!((take(&mut offers, 0, 1), take(&mut offers, 1000, 1)), (None, Some(28)));
}

#[test]
fn the_oldest_make_room() {
    let mut offers = Offers::default();
    for n in 0..u32::try_from(MOST).unwrap() {
        assert_eq!(keep(&mut offers, n * 100, 1, 0), 0);
    }
    assert_eq!(keep(&mut offers, 10_000_000, 1, 1), 1);
    assert_eq!((offers.len(), take(&mut offers, 0, 1)), (MOST, None));
    assert_eq!(keep(&mut offers, 20_000_000, 1, 100), MOST - 1, "what is over goes first");
    assert_eq!(offers.len(), 2, "that of the time 1 is not");
    let short = KeptKv { until_ms: 200, ..kept(0, 3, 1) };
    assert_eq!(offers.keep(short, 100), 1, "no block of a prompt to know it by");
}
