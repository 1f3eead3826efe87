//! Reason for which a streamed chat or completion ends: vLLM and SGLang name one for each choice
//! (`finish_reason`) before `[DONE]`, unless they have written an error. A request that was aborted
//! before its first token ends with `[DONE]` alone (vLLM 0.8 to 0.33). The module is pure.

use std::sync::LazyLock;

use crate::dialect::Api;
use crate::dialect::member::MemberName;

/// The end of the names `finish_reason` and `stop_reason`.
static MEMBER: LazyLock<MemberName> = LazyLock::new(|| MemberName::new("_reason\""));

/// Tells if some choice of a stream has named its reason yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishWatch {
    named: bool,
}

impl FinishWatch {
    /// Watches a stream of `api`; those without `finish_reason` count as named.
    pub fn new(api: Api) -> FinishWatch {
        FinishWatch { named: !matches!(api, Api::Chat | Api::Completions) }
    }

    /// Notes that an event names a reason, or has passed in pieces and may have named one.
    pub fn note(&mut self) {
        self.named = true;
    }

    /// True if some choice has named its reason.
    pub fn is_named(self) -> bool {
        self.named
    }
}

/// True if events name a reason: events before a choice's last have nulls there, or nothing.
pub fn names_a_reason(events: &[u8]) -> bool {
    MEMBER.find_value(events, 0, |value| value.starts_with(b"\"")).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: &str =
        "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null,\"stop_reason\":null}]}\n\n";

    fn named(api: Api, pieces: &[&str]) -> bool {
        let mut watch = FinishWatch::new(api);
        for piece in pieces {
            if names_a_reason(piece.as_bytes()) {
                watch.note();
            }
        }
        watch.is_named()
    }

    #[test]
    fn a_reason_is_seen_in_any_spelling() {
        for reason in [
            "data: {\"choices\":[{\"finish_reason\":\"stop\",\"stop_reason\":null}]}\n\n",
            "data: {\"choices\": [{\"finish_reason\": \"stop\"}]}\n\n",
            "data: {\"choices\":[{\"finish_reason\" :\t\"length\"}]}\n\n",
            "data: {\"choices\":[{\"finish_reason\":\r\ndata:\"stop\"}]}\r\n\r\n",
            "data: {\"choices\":[{\"finish_reason\":null},{\"finish_reason\":\"stop\"}]}\n\n",
        ] {
            for before in ["", OPEN, ": a comment\n\n"] {
                assert!(named(Api::Chat, &[before, reason, "data: [DONE]\n\n"]), "{before}{reason}");
            }
        }
    }

    #[test]
    fn text_and_null_are_no_reasons() {
        let text = "data: {\"choices\": [{\"text\": \"\\\"finish_reason\\\": \\\"stop\\\"\", \"finish_reason\": null}]}\n\n";
        for pieces in [&[OPEN, OPEN][..], &[text, text], &[OPEN, "data: [DONE]\n\n"], &["data: [DONE]\n\n"]] {
            assert!(!named(Api::Completions, pieces), "{pieces:?}");
        }
        assert!(named(Api::Generate, &[OPEN]) && named(Api::Responses, &[]), "these have none");
    }
}
