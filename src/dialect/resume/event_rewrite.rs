//! Events of one stream as events of another: values are replaced where they stand, all other bytes
//! stay.

use bytes::Bytes;

use crate::dialect::patch::Patch;
use crate::dialect::resume::event::{Event, Part};
use crate::dialect::usage::TokenCounts;

/// Values that fill a template's event, each as JSON.
pub(super) struct Filling<'a> {
    pub(super) text: &'a [u8],
    /// `null` where the client did not ask for them.
    pub(super) ids: &'a [u8],
    pub(super) finish: &'a [u8],
    /// Written where there is a `finish` only, as vLLM does in chats.
    pub(super) stop: &'a [u8],
    /// Prompt and output tokens, for a template that counts.
    pub(super) counts: TokenCounts,
    /// Engines write it into the last event.
    pub(super) fingerprint: Option<&'a [u8]>,
}

const NULL: &[u8] = b"null";

/// Takes out of an event what the client did not ask for: as vLLM writes it when nobody asks, with
/// nulls.
pub(super) fn hide_ids(event: &Event, patch: &mut Patch) {
    hide_prompt(event, patch);
    if let Some(choice) = &event.choice {
        patch.set(choice.span("token_ids"), NULL);
    }
}

/// The same for the prompt's ids alone.
pub(super) fn hide_prompt(event: &Event, patch: &mut Patch) {
    patch.set(event.top.span("prompt_token_ids"), NULL);
    if let Some(choice) = &event.choice {
        patch.set(choice.span("prompt_token_ids"), NULL);
    }
}

/// Sets the counts of a `usage` to those of the whole answer, of which this stream has only the
/// end.
pub(super) fn recount(event: &Event, prompt: u64, carried: u64, patch: &mut Patch) {
    if let Some(usage) = event.top.part("usage") {
        let own = usage.object.get("completion_tokens").and_then(|count| count.as_u64());
        count(&usage, prompt, own.unwrap_or(0) + carried, patch);
        // Its prompt had what was generated before, too.
        let details = usage.part("prompt_tokens_details");
        let cached = details.as_ref().and_then(|details| details.object.get("cached_tokens")?.as_u64());
        if let Some(details) = details.filter(|_| cached > Some(prompt)) {
            patch.set(details.span("cached_tokens"), prompt.to_string());
        }
    }
}

fn count(usage: &Part, prompt: u64, output: u64, patch: &mut Patch) {
    patch.set(usage.span("prompt_tokens"), prompt.to_string());
    patch.set(usage.span("completion_tokens"), output.to_string());
    patch.set(usage.span("total_tokens"), (prompt + output).to_string());
}

/// Moves the offsets of log probabilities on by the text that came before.
pub(super) fn shift_offsets(event: &Event, by: u64, patch: &mut Patch) {
    let logprobs = event.choice.as_ref().and_then(|choice| choice.part("logprobs"));
    let Some(logprobs) = logprobs else { return };
    if let Some(offsets) = logprobs.numbers::<u64>("text_offset") {
        let moved: Vec<String> = offsets.iter().map(|offset| (offset + by).to_string()).collect();
        patch.set(logprobs.span("text_offset"), format!("[{}]", moved.join(",")));
    }
}

/// An event like `template`, one with text of the same stream, with other contents.
pub(super) fn fill(template: &Event, with: &Filling<'_>) -> Bytes {
    let mut patch = Patch::default();
    hide_prompt(template, &mut patch);
    if let Some(choice) = &template.choice {
        fill_choice(choice, with, &mut patch);
    }
    if let Some(usage) = template.top.part("usage") {
        count(&usage, with.counts.prompt, with.counts.output, &mut patch);
    }
    if let Some(fingerprint) = with.fingerprint {
        add_fingerprint(template, fingerprint, &mut patch);
    }
    patch.apply(template.data())
}

fn fill_choice(choice: &Part, with: &Filling<'_>, patch: &mut Patch) {
    match choice.part("delta") {
        Some(delta) => {
            patch.set(delta.span("content"), with.text);
            // What else the client was told in that event it was told once: the end of the
            // reasoning, as it may be.
            let texts = delta.object.members().filter(|(_, value)| value.is_string());
            for (key, _) in texts.filter(|(key, _)| key != "role" && key != "content") {
                patch.set(delta.span(&key), NULL);
            }
        }
        None => patch.set(choice.span("text"), with.text),
    }
    patch.set(choice.span("token_ids"), with.ids);
    patch.set(choice.span("logprobs"), NULL);
    let finish = choice.span("finish_reason");
    patch.set(finish.clone(), with.finish);
    match (choice.span("stop_reason"), finish) {
        (Some(stop), _) => patch.set(Some(stop), with.stop),
        (None, Some(finish)) if with.finish != NULL => {
            patch.insert(finish.end, &[b",\"stop_reason\":", with.stop].concat());
        }
        _ => {}
    }
}

fn add_fingerprint(template: &Event, fingerprint: &[u8], patch: &mut Patch) {
    match template.top.span("system_fingerprint") {
        Some(span) => patch.set(Some(span), fingerprint),
        None => {
            let end = template.data().trim_ascii_end().len().saturating_sub(1);
            patch.insert(end, &[b",\"system_fingerprint\":", fingerprint].concat());
        }
    }
}

/// The event that ends a stream with its counts, like `template` otherwise.
pub(super) fn usage_event(template: &Event, counts: TokenCounts, cached: Option<u64>) -> Bytes {
    let TokenCounts { prompt, output } = counts;
    let details =
        cached.map_or(String::new(), |c| format!(",\"prompt_tokens_details\":{{\"cached_tokens\":{c}}}"));
    let total = prompt + output;
    let usage = format!(
        "{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\"completion_tokens\":{output}{details}}}"
    );
    let mut patch = Patch::default();
    hide_prompt(template, &mut patch);
    patch.set(template.top.span("choices"), "[]");
    match template.top.span("usage") {
        Some(span) => patch.set(Some(span), usage),
        None => {
            if let Some(choices) = template.top.span("choices") {
                patch.insert(choices.end, format!(",\"usage\":{usage}").as_bytes());
            }
        }
    }
    patch.apply(template.data())
}
