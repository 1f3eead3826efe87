//! Facts of a request that routing is told.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::num::NonZeroUsize;
use std::ops::Range;

use http::HeaderMap;
use smallvec::SmallVec;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::codec::json::Object;
use crate::dialect::media::media_kinds;
use crate::fleet::Fleet;
use crate::prompt::Prompt;
use crate::relay::ask::ReceivedRequest;
use crate::relay::lookup::{Blocks, PromptLookup};
use crate::route::{History, Job, LaneId, PoolHits, estimate};

/// By this header a client, or a gateway in front, tells which requests belong together.
const SESSION_HEADER: &str = "x-session-id";
/// By these members a body tells it: the one made for it, then the one that names the user.
const SESSION_MEMBERS: [&str; 2] = ["prompt_cache_key", "user"];
/// Members that hold what a prompt begins with, in the order of templates.
const PROMPT_MEMBERS: [&str; 6] = ["tools", "system", "instructions", "messages", "prompt", "input"];

/// Blocks that nobody but the gateway names, of token ids, where the size of the engines' is not
/// known: the one that they have by default.
const OWN_BLOCK_TOKENS: usize = 16;
/// And of text, as many tokens as these bytes are estimated to be. Each block is written down for
/// the prefiller that gets the prompt, which costs more than all else of a long text
/// (benches/RESULTS.md); what is known to a quarter of a kilotoken is known well enough.
const TEXT_BLOCK_BYTES: usize = 1024;
/// Limit for the blocks of one prompt that media add to: those of the largest body of text.
const MOST_BLOCKS: usize = 65_536;

/// A prompt of which tokens are known.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownTokens<'a> {
    pub(super) prompt: &'a Prompt,
    /// Tokens of the engines' blocks, if they are known.
    pub(super) block_tokens: Option<NonZeroUsize>,
}

impl KnownTokens<'_> {
    fn are_all(&self) -> bool {
        self.prompt.is_exact()
    }
}

/// All that is known of a request whose prompt has these tokens, if some are `known`.
pub(super) fn of(
    ask: &ReceivedRequest,
    known: Option<KnownTokens<'_>>,
    found: Option<&PromptLookup>,
    fleet: &Fleet,
) -> Job {
    let count = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let whole = known.filter(KnownTokens::are_all);
    let named = found
        .map(|found| &found.blocks)
        .filter(|blocks| !blocks.hashes.is_empty() && blocks.tokens > 0)
        .cloned();
    let is_named = named.is_some();
    // Names reach as far as tokens are known: the rest of the way is remembered by the text.
    let own = || own_blocks(ask, whole);
    let history = (is_named && whole.is_none()).then(|| {
        let Blocks { hashes, tokens } = own();
        History { blocks: hashes, block_tokens: tokens }
    });
    let Blocks { hashes, tokens: block_tokens } = named.unwrap_or_else(own);
    Job {
        prompt_tokens: count(ask.shape.prompt_tokens),
        output_tokens: count(ask.shape.output_tokens),
        blocks: hashes,
        block_tokens,
        history,
        named: is_named,
        exact: whole.is_some(),
        prefix_tokens: known.filter(|_| whole.is_none()).map_or(0, |it| count(it.prompt.tokens.len() as u64)),
        pool: found.map(|found| pool_hits(found, fleet)).unwrap_or_default(),
        session: session_of(&ask.headers, &ask.body),
        ttft_slo_s: ask.ttft_slo.map(|slo| slo.as_secs_f64()),
    }
}

/// Names that serve the gateway alone, to know a prompt again that it has seen before: of its
/// tokens, or else of its text.
fn own_blocks(ask: &ReceivedRequest, whole: Option<KnownTokens<'_>>) -> Blocks {
    let mut chain = Chain::new(ask);
    if let Some(KnownTokens { prompt: Prompt { tokens, .. }, block_tokens }) = whole {
        let size = block_tokens.map_or(OWN_BLOCK_TOKENS, NonZeroUsize::get);
        let mut bytes = Vec::with_capacity(4 * size.min(tokens.len()));
        for block in tokens.chunks_exact(size) {
            bytes.clear();
            bytes.extend(block.iter().flat_map(|token| token.to_le_bytes()));
            chain.push(&bytes);
        }
        return chain.blocks(size as u64);
    }
    for member in PROMPT_MEMBERS {
        if let Some(value) = ask.body.get(member) {
            push_value(&mut chain, ask, value.range());
        }
    }
    chain.blocks(estimate::prompt_tokens(TEXT_BLOCK_BYTES))
}

/// Names the text of one member in blocks, and each medium in it as a whole: as many blocks as its
/// tokens are.
fn push_value(chain: &mut Chain, ask: &ReceivedRequest, value: Range<usize>) {
    let bytes = ask.body.bytes();
    let mut from = value.start;
    for (medium, kind) in media_kinds(&ask.body) {
        let range = medium.range();
        if range.start < from || range.end > value.end {
            continue;
        }
        let blocks = bytes[from..range.start].chunks_exact(TEXT_BLOCK_BYTES);
        let rest = blocks.remainder();
        blocks.for_each(|block| chain.push(block));
        from = range.end;
        let tokens = ask.shape.media.each[kind];
        chain.push_medium(rest, &bytes[range], medium_blocks(tokens));
    }
    // A list of messages grows at its end: what is in front of its closing bracket stays.
    let text = bytes[from..value.end].trim_ascii_end();
    let text = text.strip_suffix(b"]").unwrap_or(text);
    text.chunks_exact(TEXT_BLOCK_BYTES).for_each(|block| chain.push(block));
}

/// Blocks of a medium of so many tokens. The length is learned, and each change of the number
/// shifts all that follows: so it has two binary digits, and changes seldom.
fn medium_blocks(tokens: u32) -> u32 {
    let block_tokens = u32::try_from(estimate::prompt_tokens(TEXT_BLOCK_BYTES)).unwrap_or(u32::MAX);
    let blocks = (tokens + block_tokens / 2) / block_tokens;
    let digits = u32::BITS - blocks.leading_zeros();
    let dropped = digits.saturating_sub(2);
    blocks >> dropped << dropped
}

/// Hashes, each of all before it.
struct Chain {
    last: u64,
    hashes: Vec<u64>,
}

impl Chain {
    /// Prompts of different models, or kept apart by a salt, have nothing in common.
    fn new(ask: &ReceivedRequest) -> Self {
        let salt = ask.body.get("cache_salt").map_or(0, |salt| xxh3_64(salt.raw()));
        let model = ask.shape.model.as_deref().unwrap_or_default();
        Self { last: xxh3_64_with_seed(model.as_bytes(), salt), hashes: Vec::new() }
    }

    fn push(&mut self, block: &[u8]) {
        self.last = xxh3_64_with_seed(block, self.last);
        self.hashes.push(self.last);
    }

    /// A medium after the `rest` of the text before it, as so many blocks. What follows is chained
    /// to its data, not to that number.
    fn push_medium(&mut self, rest: &[u8], data: &[u8], blocks: u32) {
        self.last = xxh3_64_with_seed(data, xxh3_64_with_seed(rest, self.last));
        let room = u32::try_from(MOST_BLOCKS.saturating_sub(self.hashes.len())).unwrap_or(u32::MAX);
        self.hashes.extend((0..blocks.min(room)).map(|at| xxh3_64_with_seed(&at.to_le_bytes(), self.last)));
    }

    fn blocks(self, tokens: u64) -> Blocks {
        Blocks { hashes: self.hashes.into(), tokens: u32::try_from(tokens).unwrap_or(u32::MAX) }
    }
}

fn pool_hits(found: &PromptLookup, fleet: &Fleet) -> PoolHits {
    let answer = found.answer();
    let near = answer.into_iter().flat_map(|presence| &presence.near).flat_map(|near| {
        let tokens = near.tokens;
        fleet.scheduler().lanes_on(&near.host).into_iter().map(move |lane| (lane, tokens))
    });
    let mut near: SmallVec<[(LaneId, u32); 4]> = near.collect();
    near.sort_by_key(|(lane, tokens)| (*lane, Reverse(*tokens)));
    // A host that a pool knows by two names.
    near.dedup_by_key(|(lane, _)| *lane);
    PoolHits { asked: answer.is_some(), anywhere_tokens: found.fetchable_tokens(), near }
}

/// Hash of the session that a request belongs to, as its headers or its body tell it.
pub fn session_of(headers: &HeaderMap, body: &Object) -> Option<u64> {
    let header = headers.get(SESSION_HEADER).map(|value| xxh3_64(value.as_bytes()));
    let member = || {
        let text = |key: &&str| body.get(key).and_then(|value| value.as_str().map(Cow::into_owned));
        SESSION_MEMBERS.iter().find_map(text).filter(|text| !text.is_empty())
    };
    header.or_else(|| member().map(|text| xxh3_64(text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::HeaderMap;
    use http::uri::PathAndQuery;
    use tokio::time::Instant;

    use super::*;
    use crate::codec::json::{Object, ScanLimits};
    use crate::dialect::{Api, Shape};
    use crate::endpoint::Endpoint;
    use crate::fleet::Role;
    use crate::pool::{LoadableBy, Lookup, Near, Presence, Tier, Verdict};
    use crate::prompt::{Exactness, Reason};
    use crate::route::estimate::KINDS;
    use crate::route::{Hit, LaneId, Policy};

    /// Presence of 80 tokens that lie on the first of two prefillers' hosts, and the tokens that
    /// each prefiller could spare.
    fn told(reach: LoadableBy) -> (PoolHits, [Hit; 2]) {
        let fleet = Fleet::new(Policy::LeastWork);
        let lanes: [LaneId; 2] = ["p0", "p1"].map(|host| {
            assert!(fleet.add(Role::Prefill, Endpoint::new(host, 1)));
            fleet.scheduler().lanes_on(host)[0]
        });
        let near = [Near { host: "p0".into(), tier: Tier::Memory, tokens: 80 }].into_iter().collect();
        let presence = Presence { hit_tokens: 80, reach, near, ..Presence::default() };
        let pool = Some(Lookup { presence, verdict: Verdict::Answered });
        let pool = pool_hits(&PromptLookup { pool, ..PromptLookup::default() }, &fleet);
        let job = Job { prompt_tokens: 100, pool, ..Job::default() };
        let hits = lanes.map(|lane| Hit::of(&job, lane, 0, true));
        (job.pool, hits)
    }

    #[test]
    fn host_local_kv_does_not_help_other_hosts() {
        let here = Hit { hbm_tokens: 0, near_tokens: 80, any_tokens: 80 };
        let (pool, hits) = told(LoadableBy::All);
        assert_eq!((pool.asked, pool.anywhere_tokens), (true, 80));
        assert_eq!(hits, [here, Hit { any_tokens: 80, ..Hit::default() }]);
        let (pool, hits) = told(LoadableBy::Own { fetchable_tokens: 0 });
        assert_eq!((pool.asked, pool.anywhere_tokens), (true, 0));
        assert_eq!(hits, [here, Hit::default()]);
        let (_, hits) = told(LoadableBy::Own { fetchable_tokens: 48 });
        assert_eq!(hits, [here, Hit { any_tokens: 48, ..Hit::default() }]);
    }

    #[test]
    fn a_pool_that_gave_no_answer_was_not_asked() {
        let fleet = Fleet::new(Policy::LeastWork);
        let pool = Some(Lookup { presence: Presence::default(), verdict: Verdict::TimedOut });
        assert_eq!(pool_hits(&PromptLookup { pool, ..PromptLookup::default() }, &fleet), PoolHits::default());
    }

    fn received(text: &str, each: u32) -> ReceivedRequest {
        let body = Object::scan(text.to_owned().into(), ScanLimits::default()).unwrap();
        let mut shape = Shape::read(Api::Chat, &body);
        shape.estimate_media([each; KINDS]);
        ReceivedRequest {
            api: Api::Chat,
            id: "a".into(),
            name: None,
            target: PathAndQuery::from_static("/v1/chat/completions"),
            headers: HeaderMap::new(),
            body,
            shape,
            alias: None,
            resume: None,
            encodings: None,
            http2: false,
            arrived: Instant::now(),
            ttft_slo: None,
            trace: None,
        }
    }

    #[test]
    fn a_medium_is_named_as_a_whole_and_by_its_tokens() {
        let chat = |system: &str, data: &str, text: &str| {
            let url = format!("data:image/png;base64,{}", data.repeat(40_000));
            format!(
                r#"{{"messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{url}"}}}},{{"type":"text","text":"{text}"}}]}}]}}"#
            )
        };
        let (system, text) = ("You help. ".repeat(300), "Tell me more. ".repeat(300));
        let names = |body: &str, each: u32| own_blocks(&received(body, each), None).hashes.to_vec();
        let alike = |a: &[u64], b: &[u64]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let first = names(&chat(&system, "iVBORw0KGgo", &text), 1_024);
        // Three of the text before the image, four of the image, four of the text after it.
        assert_eq!(first.len(), 3 + 4 + 4);
        let other_text = names(&chat(&system, "iVBORw0KGgo", &"Why? ".repeat(900)), 1_024);
        let other_image = names(&chat(&system, "iVBORw0KGgx", &text), 1_024);
        assert_eq!([&other_text, &other_image].map(|it| alike(&first, it)), [3 + 4, 3]);
        // What follows has the same names, however long the image is taken to be.
        let longer = names(&chat(&system, "iVBORw0KGgo", &text), 2_100);
        assert_eq!((longer.len(), &longer[3 + 8..]), (3 + 8 + 4, &first[3 + 4..]));
        assert_eq!(names(&chat(&system, "iVBORw0KGgo", &text), 10).len(), 3 + 4);
    }

    #[test]
    fn a_prompt_that_is_known_in_part_is_named_up_to_there_and_remembered_by_its_text() {
        let fleet = Fleet::new(Policy::LeastWork);
        let body =
            format!(r#"{{"messages":[{{"role":"system","content":"{}"}}]}}"#, "Be brief. ".repeat(300));
        let ask = received(&body, 0);
        let exactness = Exactness::Prefix { reason: Reason::Media, rest_bytes: 9 };
        let prompt = Prompt { tokens: [7; 40].into(), exactness };
        let known = |prompt| Some(KnownTokens { prompt, block_tokens: NonZeroUsize::new(16) });
        let named = Blocks { hashes: [1, 2].into(), tokens: 16 };
        let found = PromptLookup { blocks: named.clone(), ..PromptLookup::default() };
        let job = of(&ask, known(&prompt), Some(&found), &fleet);
        assert_eq!((job.named, job.exact, job.prefix_tokens), (true, false, 40));
        assert_eq!((&job.blocks, job.block_tokens), (&named.hashes, named.tokens));
        let by_text = own_blocks(&ask, None);
        let history = History { blocks: by_text.hashes.clone(), block_tokens: by_text.tokens };
        assert_eq!(job.history, Some(history));
        // Less than a block is no name.
        let found =
            PromptLookup { blocks: Blocks { hashes: Arc::default(), tokens: 16 }, ..PromptLookup::default() };
        for found in [Some(&found), None] {
            let job = of(&ask, known(&prompt), found, &fleet);
            assert_eq!((job.named, &job.blocks, job.history), (false, &by_text.hashes, None));
        }
        let whole = Prompt { exactness: Exactness::Exact, ..prompt.clone() };
        let job = of(&ask, known(&whole), None, &fleet);
        assert_eq!((job.exact, job.blocks.len(), job.prefix_tokens), (true, 2, 0));
    }

    #[test]
    fn lengths_that_are_about_the_same_are_as_many_blocks() {
        let blocks = [1, 127, 128, 900, 1_024, 1_500, 1_600, 2_000, u32::MAX / 2].map(medium_blocks);
        assert_eq!(blocks, [0, 0, 1, 4, 4, 6, 6, 8, 8_388_608]);
    }
}
