//! Prompts of which the beginning alone is known: up to an image, up to a text that the tokenizer
//! refuses, or up to tools that an engine may leave out.

use super::chat::Chat;
use super::media::MediaForm;
use super::renderer::Rendered;
use super::{Context, Exactness, Prompt, Prompter, Reason};

impl Prompter {
    /// The prompt of a chat with images or the like, exact up to the first of them.
    ///
    /// # Errors
    /// The [`Reason`] for which not even a beginning is known.
    pub(super) fn before_items(&self, chat: &Chat, context: &Context<'_>) -> Result<Prompt, Reason> {
        let text = match self.render(chat.with_media(MediaForm::Items), context)? {
            Rendered::Beginning { pieces, rest_bytes } => {
                let tokens = self.encode_pieces(&pieces)?;
                return Ok(Prompt {
                    tokens,
                    exactness: Exactness::Prefix { reason: Reason::Media, rest_bytes },
                });
            }
            Rendered::Text(text) if !(chat.add_special_tokens && self.frames_texts()) => text,
            _ => return Err(Reason::Media),
        };
        let Rendered::Text(other) = self.render(chat.with_media(MediaForm::Text), context)? else {
            return Err(Reason::Media);
        };
        self.beginning(&text, shared_count(text.as_bytes(), other.as_bytes()), Reason::Media)
    }

    /// The prompt of a chat whose tools an engine may leave out: the tokens that it has with them
    /// and without them.
    ///
    /// # Errors
    /// The [`Reason`] for which one of the two is not known.
    pub(super) fn with_or_without_tools(&self, chat: &Chat, context: &Context<'_>) -> Result<Prompt, Reason> {
        let with = self.complete_chat(chat.with_tools(), context)?;
        let without = self.complete_chat(chat.without_tools(), context)?;
        if with.tokens == without.tokens {
            return Ok(with);
        }
        let shared = shared_count(&with.tokens, &without.tokens);
        let Some(tokens) = with.tokens.get(..shared).filter(|tokens| !tokens.is_empty()) else {
            return Err(Reason::Constraint);
        };
        // Most of the body is the conversation.
        let rest_bytes = chat.source_bytes / with.tokens.len() * (with.tokens.len() - shared);
        let exactness = Exactness::Prefix { reason: Reason::Constraint, rest_bytes };
        Ok(Prompt { tokens: tokens.into(), exactness })
    }

    /// The longest beginning of `text`, of at most `most_bytes` bytes, whose ids don't depend on
    /// what follows.
    fn beginning(&self, text: &str, most_bytes: usize, reason: Reason) -> Result<Prompt, Reason> {
        let end = self.cache.last_cut(text, most_bytes);
        let known = text.get(..end).unwrap_or_default();
        match self.encode(known, false) {
            Ok(tokens) if !tokens.is_empty() => Ok(Prompt {
                tokens,
                exactness: Exactness::Prefix { reason, rest_bytes: text.len() - known.len() },
            }),
            Ok(_) => Err(reason),
            Err(Reason::Tokenizer) => self.before_refusal(known, text.len()),
            Err(reason) => Err(reason),
        }
    }

    /// True if the tokenizer adds tokens to whole prompts, which may stand at their end.
    pub(super) fn frames_texts(&self) -> bool {
        let mut frame = Vec::new();
        let framed = self.tokenizer.as_ref().map(|tokenizer| tokenizer.encode_into("", true, &mut frame));
        !matches!(framed, Some(Ok(()))) || !frame.is_empty()
    }

    /// The beginning of a text that the tokenizer refuses, up to the last special token before the
    /// place. The prompt has `prompt_bytes` bytes in all.
    pub(super) fn before_refusal(&self, text: &str, prompt_bytes: usize) -> Result<Prompt, Reason> {
        let tokenizer = self.tokenizer.as_deref().ok_or(Reason::NoTokenizer)?;
        let known = self.cache.encode_beginning(tokenizer, text);
        if known.tokens.is_empty() {
            return Err(Reason::Tokenizer);
        }
        let rest_bytes = prompt_bytes - known.end;
        let exactness = Exactness::Prefix { reason: Reason::Tokenizer, rest_bytes };
        Ok(Prompt { tokens: known.tokens.into(), exactness })
    }
}

/// Number of items that both begin with.
fn shared_count<T: PartialEq>(one: &[T], other: &[T]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::*;
    use crate::codec::json::ScanLimits;

    /// Contents of parts, with what a model for images writes for them.
    const PARTS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}\
        {% else %}{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>\
        {% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}";
    const STRINGS: &str =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    const SPECIALS: [&str; 5] =
        ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"];

    /// One id for each special token and for each run of other bytes, which depends on all of it:
    /// a text that is cut elsewhere has other ids. It refuses texts with an exclamation mark.
    struct Runs;

    impl Tokenize for Runs {
        fn encode_into(&self, text: &str, framed: bool, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
            out.extend(framed.then_some(1));
            let mut rest = text;
            while !rest.is_empty() {
                let token = SPECIALS.iter().position(|token| rest.starts_with(token));
                let end = match token {
                    Some(at) => SPECIALS[at].len(),
                    None => SPECIALS.iter().filter_map(|token| rest.find(token)).min().unwrap_or(rest.len()),
                };
                let (run, after) = rest.split_at(end);
                if run.contains('!') {
                    return Err(TokenizerError::foreign("an exclamation mark"));
                }
                out.push(token.map_or(xxhash_rust::xxh3::xxh3_64(run.as_bytes()) as u32 | 1 << 31, |at| {
                    at as u32 + 10
                }));
                rest = after;
            }
            Ok(())
        }

        fn added_tokens(&self) -> Vec<AddedToken> {
            SPECIALS.map(|token| AddedToken { content: token.to_owned(), cuts: true }).to_vec()
        }
    }

    fn prompter(template: &str) -> Prompter {
        let files = TemplateFiles { chat_template: Some(template), ..Default::default() };
        let limits = CacheLimits { min_text_bytes: usize::MAX, tokens: 0 };
        Prompter::new(
            Some(ChatTemplate::new(files).unwrap()),
            Some(Arc::new(Runs)),
            PrefixCache::new(&Runs, limits, 1),
        )
    }

    fn read(prompter: &Prompter, body: &Value) -> Prompt {
        let object = Object::scan(Bytes::from(body.to_string()), ScanLimits::default()).unwrap();
        prompter.prompt(Api::Chat, &object, None)
    }

    fn ids(text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        Runs.encode_into(text, false, &mut ids).unwrap();
        ids
    }

    fn image() -> Value {
        json!({"type": "image_url", "image_url": {"url": "data:,"}})
    }

    #[test]
    fn a_chat_is_exact_up_to_its_first_image() {
        let text = |text: &str| json!({"type": "text", "text": text});
        let system = json!({"role": "system", "content": "Be brief."});
        let body = json!({"messages": [system, {"role": "user", "content": [text("See:"), image(), text("?"), image()]}]});
        let known = read(&prompter(PARTS), &body);
        let begin = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nSee:";
        assert_eq!(known.tokens[..], ids(begin), "{known:?}");
        assert_eq!(known.reason(), Some(Reason::Media));
        // A template of strings gets what stands for images in front of the text.
        let known = read(&prompter(STRINGS), &body);
        let begin = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>";
        assert_eq!((&known.tokens[..], known.reason()), (&ids(begin)[..], Some(Reason::Media)));
    }

    #[test]
    fn nothing_is_known_of_chats_with_what_engines_may_refuse_or_cut() {
        let chat = |part: Value, more: Value| {
            let mut body = json!({"messages": [{"role": "user", "content": ["a", part]}]});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            read(&prompter(PARTS), &body).exactness
        };
        let unknown = Exactness::Inexact;
        assert_eq!(chat(json!({"type": "file", "file": {}}), json!({})), unknown(Reason::Media));
        assert_eq!(chat(json!({"type": "prompt_embeds", "data": ""}), json!({})), unknown(Reason::Media));
        assert_eq!(chat(image(), json!({"add_special_tokens": true})), unknown(Reason::Media));
        assert_eq!(chat(image(), json!({"truncate_prompt_tokens": 9_999})), unknown(Reason::Truncation));
        let untold = prompter(PARTS);
        untold.set_rules(Rules {
            topics: Topics::ALL.without(Topics::NONE.with(Topic::Media)),
            ..Rules::OF_33
        });
        let body = json!({"messages": [{"role": "user", "content": ["a", image()]}]});
        assert_eq!(read(&untold, &body).exactness, unknown(Reason::Media), "no engine showed it");
    }

    #[test]
    fn a_text_that_the_tokenizer_refuses_is_exact_up_to_the_special_token_before() {
        let body =
            json!({"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b!"}]});
        let known = read(&prompter(STRINGS), &body);
        let begin = "<|im_start|>system\na<|im_end|>\n<|im_start|>";
        assert_eq!(known.tokens[..], ids(begin));
        let rest_bytes = "user\nb!<|im_end|>\n".len();
        assert_eq!(known.exactness, Exactness::Prefix { reason: Reason::Tokenizer, rest_bytes });
        let body = json!({"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "!"},
            {"role": "user", "content": [image()]}]});
        let known = read(&prompter(PARTS), &body);
        assert_eq!((&known.tokens[..], known.reason()), (&ids(begin)[..], Some(Reason::Tokenizer)));
    }

    #[test]
    fn tools_that_an_engine_may_leave_out_leave_what_is_the_same_with_them_and_without() {
        const TOOLS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
            {% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}<|im_start|>";
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
        let mut body =
            json!({"messages": [{"role": "user", "content": "Hi"}], "tools": [tool], "tool_choice": "none"});
        let known = read(&prompter(TOOLS), &body);
        let begin = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>";
        assert_eq!((&known.tokens[..], known.reason()), (&ids(begin)[..], Some(Reason::Constraint)));
        // A template that does not look at them.
        assert!(read(&prompter(STRINGS), &body).is_exact());
        body["messages"][0]["content"] = json!("!");
        assert_eq!(read(&prompter(TOOLS), &body).reason(), Some(Reason::Tokenizer));
        body["tool_choice"] = json!("auto");
        body["messages"][0]["content"] = json!("Hi");
        assert!(read(&prompter(TOOLS), &body).is_exact());
    }

    proptest! {
        /// Tokens before items don't depend on the tokens that engines make of the items.
        #[test]
        fn known_tokens_begin_every_prompt_that_an_engine_may_make(
            parts in proptest::collection::vec(proptest::option::of("[a-c\n <|]{0,6}"), 1..7),
            made in r"<\|vision_start\|>(<\|image_pad\|>){0,3}[a-c\n]{0,4}",
        ) {
            let contents: Vec<Value> =
                parts.iter().map(|part| part.as_ref().map_or_else(image, |text| Value::from(text.as_str()))).collect();
            let body = json!({"messages": [{"role": "user", "content": contents}]});
            let whole: String = parts.iter().map(|part| part.as_deref().unwrap_or(&made)).collect();
            let made_text = ids(&format!("<|im_start|>user\n{whole}<|im_end|>\n"));
            let known = read(&prompter(PARTS), &body);
            if parts.iter().all(Option::is_some) {
                prop_assert_eq!(&known.tokens[..], &made_text[..]);
            } else {
                prop_assert!(made_text.starts_with(&known.tokens), "{known:?} of {made_text:?}");
                prop_assert_eq!(known.reason(), Some(Reason::Media));
            }
        }
    }
}
