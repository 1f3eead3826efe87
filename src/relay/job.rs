//! What routing is told of a request.

use std::borrow::Cow;

use xxhash_rust::xxh3::xxh3_64;

use crate::relay::ask::Ask;
use crate::route::Job;

/// By this header a client, or a gateway in front, tells which requests belong together.
const SESSION_HEADER: &str = "x-session-id";
/// By these members a body tells it: the one made for it, then the one that names the user.
const SESSION_MEMBERS: [&str; 2] = ["prompt_cache_key", "user"];

/// A request of which no more is known than its body's size.
pub(super) fn of(ask: &Ask) -> Job {
    let tokens = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    Job {
        prompt_tokens: tokens(ask.shape.prompt_tokens),
        output_tokens: tokens(ask.shape.output_tokens),
        session: session(ask),
        ..Job::default()
    }
}

fn session(ask: &Ask) -> Option<u64> {
    let header = ask.headers.get(SESSION_HEADER).map(|value| xxh3_64(value.as_bytes()));
    let member = || {
        let text = |key: &&str| ask.body.get(key).and_then(|value| value.as_str().map(Cow::into_owned));
        SESSION_MEMBERS.iter().find_map(text).filter(|text| !text.is_empty())
    };
    header.or_else(|| member().map(|text| xxh3_64(text.as_bytes())))
}
