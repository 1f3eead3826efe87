//! What a request is taken to cost where its engine does not say.

use crate::dialect::Shape;
use crate::route::estimate;

/// Told from the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    /// The prompt's length, estimated.
    pub(super) prompt_tokens: u64,
    output_tokens: u64,
    /// No more can come.
    most_tokens: u64,
    event_tokens: u64,
    background: bool,
}

impl Default for Expected {
    fn default() -> Self {
        Expected { prompt_tokens: 0, output_tokens: 0, most_tokens: 0, event_tokens: 1, background: false }
    }
}

impl Expected {
    pub(super) fn of(shape: &Shape) -> Expected {
        Expected {
            prompt_tokens: shape.prompt_tokens,
            output_tokens: shape.output_tokens,
            most_tokens: shape.most_tokens.unwrap_or(estimate::BELIEVED_OUTPUT_TOKENS),
            event_tokens: shape.event_tokens,
            background: shape.background,
        }
    }

    /// Whether events of its stream may be of several tokens.
    pub(super) fn packs(&self) -> bool {
        self.event_tokens > 1
    }

    /// Output tokens to charge for where `counted` came by, an event for one. Who has several put into an event could otherwise have all for a
    /// few, and a response that goes on in the background (`goes_on`) is paid for when it begins: nobody follows it.
    pub(super) fn output(&self, counted: u64, goes_on: bool) -> u64 {
        let packed = counted.saturating_mul(self.event_tokens).min(self.most_tokens);
        let unseen = if self.background && goes_on { self.output_tokens } else { 0 };
        counted.max(packed).max(unseen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::json::{Object, ScanLimits};
    use crate::dialect::Api;

    fn expected(api: Api, body: &'static str) -> Expected {
        Expected::of(&Shape::read(api, &Object::scan(body.into(), ScanLimits::default()).unwrap()))
    }

    #[test]
    fn an_event_is_a_token_unless_the_client_wants_more_in_it() {
        let plain = expected(Api::Chat, r#"{"max_tokens":8000}"#);
        assert_eq!((plain.output(7, true), plain.packs()), (7, false));
        for odd in [r#"{"stream_interval":1}"#, r#"{"stream_interval":0}"#, r#"{"stream_interval":"9"}"#] {
            assert_eq!(expected(Api::Chat, odd).output(7, true), 7, "{odd}");
        }
        let packed = expected(Api::Chat, r#"{"stream_interval":100,"max_tokens":8000}"#);
        assert_eq!([0, 2, 79, 81].map(|events| packed.output(events, true)), [0, 200, 7_900, 8_000]);
        let limitless = expected(Api::Completions, r#"{"stream_interval":18446744073709551615}"#);
        assert_eq!([2, 5_000].map(|events| limitless.output(events, true)), [1_024, 5_000]);
    }

    #[test]
    fn a_response_in_the_background_costs_what_was_set_aside() {
        let background = expected(Api::Responses, r#"{"background":true,"max_output_tokens":600}"#);
        assert_eq!(
            [(0, true), (700, true), (0, false)].map(|(n, on)| background.output(n, on)),
            [600, 700, 0]
        );
    }
}
