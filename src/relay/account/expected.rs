//! Assumed cost of a request where its engine does not say.

use crate::dialect::Shape;
use crate::route::estimate;

/// Told from the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Expected {
    /// The prompt's length, estimated.
    pub(super) prompt_tokens: u64,
    output_tokens: u64,
    /// No more can come as answers to one prompt.
    most_tokens: u64,
    prompts: u64,
    /// Answers to one prompt.
    answers: u64,
    /// None where an event is of one.
    event_tokens: Option<u64>,
    background: bool,
}

impl Expected {
    pub(super) fn of(shape: &Shape) -> Expected {
        let most_tokens = shape.most_tokens.unwrap_or(estimate::BELIEVED_OUTPUT_TOKENS);
        Expected {
            prompt_tokens: shape.prompt_tokens,
            output_tokens: shape.output_tokens,
            most_tokens: most_tokens.saturating_mul(shape.answers),
            prompts: shape.prompts,
            answers: shape.answers,
            event_tokens: Some(shape.event_tokens).filter(|tokens| *tokens > 1),
            background: shape.background,
        }
    }

    /// Of a part of the request, which has one of its prompts.
    pub(super) fn of_part(self) -> Expected {
        Expected { prompts: 1, ..self }
    }

    /// True if tokens of several answers to one prompt come side by side.
    pub(super) fn has_several_answers(&self) -> bool {
        self.answers > 1
    }

    /// True if events of its stream may be of several tokens.
    pub(super) fn packs(&self) -> bool {
        self.event_tokens.is_some()
    }

    /// Tokens in so many events: as many as there may be, or who has several put into one would
    /// have all for a few.
    pub(super) fn in_events(&self, events: u64) -> u64 {
        let Some(event_tokens) = self.event_tokens else { return events };
        let most_tokens = self.most_tokens.saturating_mul(self.prompts);
        events.saturating_mul(event_tokens).min(most_tokens).max(events)
    }

    /// Output tokens of a response that goes on in the background, of which `told` have been seen:
    /// it is paid for when it begins, for nobody follows it.
    pub(super) fn unseen(&self, told: u64) -> u64 {
        if self.background { told.max(self.output_tokens) } else { told }
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
        assert_eq!((plain.in_events(7), plain.packs()), (7, false));
        for odd in [r#"{"stream_interval":1}"#, r#"{"stream_interval":0}"#, r#"{"stream_interval":"9"}"#] {
            assert_eq!(expected(Api::Chat, odd).in_events(7), 7, "{odd}");
        }
        // Generate has no such member.
        assert_eq!(expected(Api::Generate, r#"{"stream_interval":9}"#).in_events(7), 7);
        let packed = expected(Api::Chat, r#"{"stream_interval":100,"max_tokens":8000}"#);
        assert_eq!([0, 2, 79, 81].map(|events| packed.in_events(events)), [0, 200, 7_900, 8_000]);
        let limitless = expected(Api::Completions, r#"{"stream_interval":18446744073709551615}"#);
        assert_eq!([2, 5_000].map(|events| limitless.in_events(events)), [1_024, 5_000]);
    }

    #[test]
    fn expected_tokens_grow_with_answers_and_prompts() {
        let body = r#"{"prompt":["a","b"],"n":8,"max_tokens":1000,"stream_interval":100}"#;
        let whole = expected(Api::Completions, body);
        assert_eq!([80, 160, 200].map(|events| whole.in_events(events)), [8_000, 16_000, 16_000]);
        assert_eq!(whole.of_part().in_events(200), 8_000);
    }

    #[test]
    fn a_response_in_the_background_costs_what_was_set_aside() {
        let background = expected(Api::Responses, r#"{"background":true,"max_output_tokens":600}"#);
        assert_eq!([0, 700].map(|told| background.unseen(told)), [600, 700]);
        assert_eq!(expected(Api::Responses, r#"{"max_output_tokens":600}"#).unseen(0), 0);
    }
}
