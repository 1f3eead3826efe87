//! Messages between gateways: values to bytes and back. The module is pure.

use std::collections::BTreeMap;

use prost::Message as _;

use super::wire;
use crate::route::shared::message::{
    Ask, Beat, Commitment, DecoderLoad, HeldTokens, Message, Numbered, Place, PlaceTerms, PromptFacts,
    ReplicaId, RequestId,
};
use crate::route::{Done, Reported};

/// Bytes of a hash of a prompt's beginning.
const HASH_BYTES: usize = 5;
const EXACT: u32 = 1;
const NAMED: u32 = 2;
const POOL_ASKED: u32 = 4;
const FAILED: u32 = 0;
const COMPUTED: u32 = 1;
const UNSEEN: u32 = 2;

/// The bytes of some messages of one gateway, for each that hears them; those for all, None, come
/// first.
pub fn encode(from: ReplicaId, messages: &[Numbered]) -> Vec<(Option<ReplicaId>, Vec<u8>)> {
    let mut each: BTreeMap<Option<ReplicaId>, Vec<wire::Item>> = BTreeMap::new();
    for Numbered { number, to, message } in messages {
        let item = wire::Item { number: *number, content: Some(content(message)) };
        each.entry(*to).or_default().push(item);
    }
    let bytes = |(to, items): (Option<ReplicaId>, Vec<wire::Item>)| {
        let envelope = wire::Envelope { from: from.0, items, to: to.map(|to| to.0) };
        (to, envelope.encode_to_vec())
    };
    each.into_iter().map(bytes).collect()
}

/// The sender and the messages of what was published. Messages of kinds that are not known are left
/// out, as are those that lack what they need.
///
/// # Errors
/// It is no protobuf of that form.
pub fn decode(bytes: &[u8]) -> Result<(ReplicaId, Vec<Numbered>), prost::DecodeError> {
    let wire::Envelope { from, items, to } = wire::Envelope::decode(bytes)?;
    let to = to.map(ReplicaId);
    let known = items.into_iter().filter_map(|item| {
        let message = message(item.content?)?;
        Some(Numbered { number: item.number, to, message })
    });
    Ok((ReplicaId(from), known.collect()))
}

fn content(message: &Message) -> wire::Content {
    match message {
        Message::Ask(ask) => wire::Content::Ask(wire::Ask {
            number: ask.number,
            waited_ms: milliseconds(ask.waited_s),
            tried: ask.tried.clone(),
            prompt: Some(prompt(&ask.prompt)),
        }),
        Message::Queued(requests) => {
            let requests = requests.iter().copied().map(request).collect();
            wire::Content::Queued(wire::Requests { requests })
        }
        Message::Place(place) => wire::Content::Place(wire::Place {
            request: Some(request(place.request)),
            terms: Some(terms(&place.terms)),
            waiting: place.waiting,
        }),
        Message::Commit(it) => wire::Content::Commit(wire::Commit {
            number: it.number,
            prompt: Some(prompt(&it.prompt)),
            terms: Some(terms(&it.terms)),
        }),
        Message::Ended { number, end } => wire::Content::Ended(ended(*number, *end)),
        Message::Left { number } => wire::Content::Left(*number),
        Message::Beat(beat) => wire::Content::Beat(wire::Beat {
            sent_s: beat.sent_s,
            leads: beat.leads,
            waiting: beat.waiting,
            line_s: single(beat.line_s),
            decoders: beat.decoders.iter().map(decoder_load).collect(),
        }),
        Message::Hello => wire::Content::Hello(0),
        Message::Anew => wire::Content::Anew(0),
    }
}

fn message(content: wire::Content) -> Option<Message> {
    Some(match content {
        wire::Content::Ask(ask) => Message::Ask(Ask {
            number: ask.number,
            waited_s: f64::from(ask.waited_ms) / 1e3,
            tried: ask.tried,
            prompt: facts(ask.prompt?),
        }),
        wire::Content::Queued(it) => Message::Queued(it.requests.into_iter().map(name).collect()),
        wire::Content::Place(it) => Message::Place(Place {
            request: name(it.request?),
            terms: place_terms(&it.terms?),
            waiting: it.waiting,
        }),
        wire::Content::Commit(it) => Message::Commit(Commitment {
            number: it.number,
            prompt: facts(it.prompt?),
            terms: place_terms(&it.terms?),
        }),
        wire::Content::Ended(it) => Message::Ended { number: it.number, end: end(&it)? },
        wire::Content::Left(number) => Message::Left { number },
        wire::Content::Beat(it) => Message::Beat(Beat {
            sent_s: it.sent_s,
            leads: it.leads,
            waiting: it.waiting,
            line_s: seconds(it.line_s),
            decoders: it.decoders.iter().map(told_load).collect(),
        }),
        wire::Content::Hello(_) => Message::Hello,
        wire::Content::Anew(_) => Message::Anew,
    })
}

fn request(id: RequestId) -> wire::Request {
    wire::Request { replica: id.replica.0, number: id.number }
}

fn name(it: wire::Request) -> RequestId {
    RequestId { replica: ReplicaId(it.replica), number: it.number }
}

fn decoder_load(it: &DecoderLoad) -> wire::DecoderLoad {
    wire::DecoderLoad { decoder: it.decoder, requests: it.requests, tokens: it.tokens }
}

fn told_load(it: &wire::DecoderLoad) -> DecoderLoad {
    DecoderLoad { decoder: it.decoder, requests: it.requests, tokens: it.tokens }
}

fn ended(number: u64, end: Done) -> wire::Ended {
    let (code, reported) = match end {
        Done::Failed => (FAILED, Reported::default()),
        Done::Computed(reported) => (COMPUTED, reported),
        Done::Unseen => (UNSEEN, Reported::default()),
    };
    let Reported { prompt_tokens, cached_tokens, estimate_tokens } = reported;
    wire::Ended { number, end: code, prompt_tokens, cached_tokens, estimate_tokens }
}

fn end(it: &wire::Ended) -> Option<Done> {
    let wire::Ended { prompt_tokens, cached_tokens, estimate_tokens, .. } = *it;
    match it.end {
        FAILED => Some(Done::Failed),
        COMPUTED => Some(Done::Computed(Reported { prompt_tokens, cached_tokens, estimate_tokens })),
        UNSEEN => Some(Done::Unseen),
        _ => None,
    }
}

fn prompt(facts: &PromptFacts) -> wire::Prompt {
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    let held =
        |all: &[HeldTokens]| all.iter().map(|it| wire::Held { lane: it.lane, tokens: it.tokens }).collect();
    let mut chain = Vec::with_capacity(facts.chain.len() * HASH_BYTES);
    facts.chain.iter().for_each(|hash| chain.extend_from_slice(&hash.to_le_bytes()[..HASH_BYTES]));
    wire::Prompt {
        prompt_tokens: facts.prompt_tokens,
        output_tokens: facts.output_tokens,
        block_tokens: facts.block_tokens,
        flags: flag(facts.exact, EXACT) | flag(facts.named, NAMED) | flag(facts.pool_asked, POOL_ASKED),
        pool_tokens: facts.pool_tokens,
        near: held(&facts.near),
        told: held(&facts.told),
        chain,
        chain_tokens: facts.chain_tokens,
        ttft_slo_ms: facts.ttft_slo_s.map_or(0, milliseconds),
    }
}

fn facts(it: wire::Prompt) -> PromptFacts {
    let held = |all: Vec<wire::Held>| {
        all.into_iter().map(|it| HeldTokens { lane: it.lane, tokens: it.tokens }).collect()
    };
    let hash = |bytes: &[u8]| {
        let mut whole = [0; 8];
        whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        u64::from_le_bytes(whole)
    };
    PromptFacts {
        prompt_tokens: it.prompt_tokens,
        output_tokens: it.output_tokens,
        block_tokens: it.block_tokens,
        exact: it.flags & EXACT != 0,
        named: it.flags & NAMED != 0,
        pool_asked: it.flags & POOL_ASKED != 0,
        pool_tokens: it.pool_tokens,
        near: held(it.near),
        told: held(it.told),
        chain: it.chain.chunks_exact(HASH_BYTES).map(hash).collect(),
        chain_tokens: it.chain_tokens,
        ttft_slo_s: (it.ttft_slo_ms > 0).then(|| f64::from(it.ttft_slo_ms) / 1e3),
    }
}

fn terms(it: &PlaceTerms) -> wire::Terms {
    wire::Terms {
        lane: it.lane,
        hbm_tokens: it.hbm_tokens,
        near_tokens: it.near_tokens,
        any_tokens: it.any_tokens,
        wait_s: single(it.wait_s),
        prefill_s: single(it.prefill_s),
        restore_s: single(it.restore_s),
    }
}

fn place_terms(it: &wire::Terms) -> PlaceTerms {
    PlaceTerms {
        lane: it.lane,
        hbm_tokens: it.hbm_tokens,
        near_tokens: it.near_tokens,
        any_tokens: it.any_tokens,
        wait_s: seconds(it.wait_s),
        prefill_s: seconds(it.prefill_s),
        restore_s: seconds(it.restore_s),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "predictions need no more digits")]
fn single(seconds: f64) -> f32 {
    seconds as f32
}

/// A time that was told; what is no time is none.
fn seconds(told: f32) -> f64 {
    if told.is_finite() && told > 0.0 { f64::from(told) } else { 0.0 }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the range of u32")]
fn milliseconds(seconds: f64) -> u32 {
    (seconds * 1e3).clamp(0.0, f64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prompt_facts(blocks: u64) -> PromptFacts {
        PromptFacts {
            prompt_tokens: 100_000,
            output_tokens: 300,
            block_tokens: 128,
            exact: true,
            named: false,
            pool_asked: true,
            pool_tokens: 2_048,
            near: vec![HeldTokens { lane: 7 << 60, tokens: 512 }],
            told: vec![],
            chain: (0..blocks).map(|at| (at * 0x01_2345_6789) & 0xff_ffff_ffff).collect(),
            chain_tokens: 512,
            ttft_slo_s: (blocks > 0).then_some(0.75),
        }
    }

    fn every_message() -> Vec<Message> {
        let terms = PlaceTerms {
            lane: u64::MAX,
            hbm_tokens: 1,
            near_tokens: 2,
            any_tokens: 3,
            wait_s: 0.5,
            prefill_s: 0.25,
            restore_s: 2.0,
        };
        let request = RequestId { replica: ReplicaId(9), number: 1 << 63 };
        let reported = Reported { prompt_tokens: Some(5), cached_tokens: Some(0), estimate_tokens: None };
        vec![
            Message::Ask(Ask { number: 1 << 63, waited_s: 1.5, tried: vec![3], prompt: prompt_facts(195) }),
            Message::Queued(vec![request]),
            Message::Place(Place { request, terms, waiting: 4 }),
            Message::Commit(Commitment { number: 4, prompt: prompt_facts(0), terms }),
            Message::Ended { number: 4, end: Done::Computed(reported) },
            Message::Ended { number: 5, end: Done::Failed },
            Message::Ended { number: 6, end: Done::Unseen },
            Message::Left { number: 8 },
            Message::Beat(Beat {
                sent_s: 1.0 / 3.0,
                leads: true,
                waiting: 3,
                line_s: 0.75,
                decoders: vec![DecoderLoad { decoder: 5, requests: 2, tokens: 1 << 40 }],
            }),
            Message::Hello,
            Message::Anew,
        ]
    }

    fn numbered(messages: Vec<Message>) -> Vec<Numbered> {
        (41..).zip(messages).map(|(number, message)| Numbered { number, to: None, message }).collect()
    }

    /// The bytes of messages that all hear.
    fn encode_for_all(from: ReplicaId, messages: &[Numbered]) -> Vec<u8> {
        let mut all = encode(from, messages);
        let (to, bytes) = all.pop().unwrap();
        assert_eq!((all.len(), to), (0, None));
        bytes
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let all = numbered(every_message());
        let bytes = encode_for_all(ReplicaId(77), &all);
        assert_eq!(decode(&bytes).unwrap(), (ReplicaId(77), all));
    }

    #[test]
    fn each_gateway_gets_its_messages_in_their_order_after_those_for_all() {
        let to = |to: Option<u64>, number| Numbered {
            number,
            to: to.map(ReplicaId),
            message: Message::Left { number },
        };
        let sent = [to(Some(9), 1), to(None, 5), to(Some(3), 2), to(Some(9), 2), to(None, 6)];
        let read =
            encode(ReplicaId(77), &sent).into_iter().map(|(to, bytes)| (to, decode(&bytes).unwrap().1));
        let expected = [
            (None, vec![to(None, 5), to(None, 6)]),
            (Some(ReplicaId(3)), vec![to(Some(3), 2)]),
            (Some(ReplicaId(9)), vec![to(Some(9), 1), to(Some(9), 2)]),
        ];
        assert_eq!(read.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_prompt_of_100_000_tokens_takes_less_than_a_kibibyte_and_a_bit() {
        let ask = Message::Ask(Ask { number: 1, waited_s: 0.0, tried: vec![], prompt: prompt_facts(195) });
        let bytes = encode_for_all(ReplicaId(u64::MAX), &numbered(vec![ask])).len();
        assert!(bytes <= 1_064, "{bytes} bytes");
    }

    /// A field and a kind of message that only a later version has.
    #[test]
    fn fields_and_kinds_that_are_not_known_are_passed_over() {
        let left = numbered(vec![Message::Left { number: 3 }]);
        let mut bytes = encode_for_all(ReplicaId(1), &left);
        // Item (tag 2) with field 90, a number; and field 91 of the envelope, a number.
        bytes.extend([0x12, 3, 0xd0, 0x05, 1, 0xd8, 0x05, 1]);
        assert_eq!(decode(&bytes).unwrap(), (ReplicaId(1), left));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }
}
