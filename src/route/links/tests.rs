use proptest::prelude::*;

use super::*;

const STEP_S: Seconds = 0.03;

/// A transfer of so many tokens at this pace, whose first token waits `wait_s` beside its own step.
fn seen(consumer: u64, tokens: u32, token_s: Seconds, wait_s: Seconds) -> SeenTransfer {
    let first_s = HANDOFF_S + f64::from(tokens) * token_s + wait_s + STEP_S;
    SeenTransfer { producer: 1, consumer, tokens, first_s, step_s: STEP_S }
}

/// A repeatable number in 0..1.
fn noise_of(turn: u64) -> f64 {
    (turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1u64 << 53) as f64
}

fn taught(each: impl IntoIterator<Item = SeenTransfer>) -> Links {
    let mut links = Links::default();
    each.into_iter().for_each(|it| links.learn(0.0, &it));
    links
}

#[test]
fn slow_link_is_slow_by_what_it_takes_longer() {
    let far = (0..8).map(|turn| seen(3, 8_000, 40e-6, STEP_S * noise_of(turn)));
    let near = (0..8).map(|turn| seen(2, 8_000, 4e-6, STEP_S * noise_of(turn + 99)));
    let links = taught(near.chain(far));
    let slow = links.slow(1.0, 1);
    assert_eq!(slow.iter().map(|it| it.consumer).collect::<Vec<_>>(), [3]);
    // Less by what may have been the wait for a step.
    let (late_s, real_s) = (extra_s(&slow, 3, 8_000), 8_000.0 * 36e-6);
    assert!((real_s - 2.0 * STEP_S..=real_s).contains(&late_s), "{late_s}");
    assert_eq!((extra_s(&slow, 2, 8_000), extra_s(&slow, 3, 0)), (0.0, 0.0));
    assert!(links.slow(1.0, 2).is_empty(), "nothing is known of another prefiller");
}

#[test]
fn waits_and_short_prompts_make_no_link_slow() {
    // Two in three first tokens wait for room, for up to ten seconds.
    let wait_s = |turn: u64| if turn.is_multiple_of(3) { 0.01 } else { 10.0 * noise_of(turn) };
    let queued = (0..64).map(|turn| seen(turn % 4, 8_000, 4e-6, wait_s(turn / 4)));
    assert!(taught(queued).slow(1.0, 1).is_empty());
    // Ten tokens say nothing about a link, wherever they go.
    let short = (0..64).map(|turn| seen(turn % 4, 10, 4e-6, STEP_S * noise_of(turn)));
    assert!(taught(short).slow(1.0, 1).is_empty());
}

#[test]
fn short_prompts_hide_no_slow_link() {
    let far = (0..32).map(|turn| seen(3, if turn % 4 == 0 { 8_000 } else { 10 }, 40e-6, 0.0));
    let near = (0..8).map(|_| seen(2, 8_000, 4e-6, 0.0));
    assert_eq!(taught(near.chain(far)).slow(1.0, 1).len(), 1);
}

#[test]
fn link_is_judged_anew_when_it_changes_or_nothing_is_seen() {
    let (near, far) = (|| seen(2, 8_000, 4e-6, 0.0), || seen(3, 8_000, 40e-6, 0.0));
    let mut links = taught((0..2).flat_map(|_| [near(), far()]));
    assert!(links.slow(1.0, 1).is_empty(), "two observations are too few");
    [near(), far()].iter().for_each(|it| links.learn(1.0, it));
    assert_eq!(links.slow(2.0, 1).len(), 1);
    assert!(links.slow(1.0 + RETRY_S, 1).is_empty(), "it may be mended");
    links.learn(400.0, &far());
    assert_eq!(links.slow(401.0, 1).len(), 1, "one more says that it is not");
    links.learn(402.0, &seen(3, 8_000, 4e-6, 0.0));
    assert!(links.slow(403.0, 1).is_empty(), "now it is");
    (0..16).for_each(|_| links.learn(404.0, &far()));
    assert_eq!(links.slow(405.0, 1).len(), 1, "and now it is slow again");
    links.forget(3);
    assert!(links.slow(405.0, 1).is_empty());
}

#[test]
fn slowest_links_of_all_prefillers_come_first() {
    let seen_by = |producer, consumer, token_s| {
        (0..8).map(move |_| SeenTransfer { producer, ..seen(consumer, 8_000, token_s, 0.0) })
    };
    let near = seen_by(1, 2, 4e-6).chain(seen_by(5, 3, 4e-6));
    let far = seen_by(1, 3, 40e-6).chain(seen_by(5, 2, 90e-6)).chain(seen_by(5, 4, 40e-6));
    let links = taught(near.chain(far));
    let ends = |most| {
        let slowest = links.slowest(1.0, most).into_iter();
        slowest.map(|it| (it.producer, it.link.consumer)).collect::<Vec<_>>()
    };
    assert_eq!(ends(9), [(5, 2), (1, 3), (5, 4)]);
    assert_eq!(ends(1), [(5, 2)]);
    assert_eq!(links.slowest(1.0, 9)[1].link, links.slow(1.0, 1)[0]);
    assert!(links.slowest(1.0 + RETRY_S, 9).is_empty());
}

#[test]
fn pairs_are_bounded_and_the_last_ones_seen_are_kept() {
    let mut links = Links::default();
    let one = |producer, consumer| SeenTransfer { producer, ..seen(consumer, 8_000, 4e-6, 0.0) };
    (0..2_000).for_each(|producer| links.learn(0.0, &one(producer, 0)));
    (0..2_000).for_each(|consumer| links.learn(consumer as f64, &one(7, consumer)));
    assert_eq!(links.producers.len(), MOST_PRODUCERS);
    let kept: Vec<u64> = links.producers[&7].iter().map(|pair| pair.consumer).collect();
    assert_eq!(kept, (2_000 - MOST_CONSUMERS as u64..2_000).collect::<Vec<_>>());
}

proptest! {
    /// Transfers alike over all links, with waits of all lengths: no link is slow as long as each
    /// had one prompt that found its decoder free.
    #[test]
    fn equal_links_are_never_slow(
        token_us in 0.1f64..200.0,
        waits in prop::collection::vec((0u64..8, 200u32..60_000, 0.0f64..20.0), 0..200),
    ) {
        let mut links = Links::default();
        for (consumer, tokens, wait_s) in waits {
            for free in [wait_s, 0.0] {
                links.learn(0.0, &seen(consumer, tokens, token_us / 1e6, free));
            }
        }
        prop_assert!(links.slow(1.0, 1).is_empty());
    }

    #[test]
    fn any_observations_are_survived(
        odd in prop::collection::vec((0u64..4, any::<u32>(), any::<f64>(), any::<f64>()), 0..40),
    ) {
        let mut links = Links::default();
        for (consumer, tokens, first_s, step_s) in odd {
            links.learn(0.0, &SeenTransfer { producer: 1, consumer, tokens, first_s, step_s });
        }
        prop_assert!(links.slow(1.0, 1).iter().all(|it| it.extra_token_s >= 0.0));
    }
}
