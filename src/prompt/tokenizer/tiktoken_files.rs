//! Models that ship a rank file of tiktoken and code of their own around it: Kimi, and Qwen's
//! first.
//!
//! The steps of that code are known for these two families; their configuration says the rest.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::rank_tokenizer::{LongTexts, RankParts, TextRules};
use super::ranks::Ranks;
use super::{RankTokenizer, TokenizerError};

/// Pattern of Kimi's models (`pat_str` of `tokenization_kimi.py`).
pub(super) const KIMI_PATTERN: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Pattern of Qwen's first models (`PAT_STR` of `tokenization_qwen.py`).
const QWEN_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Special tokens of Kimi's models beyond those of the rank file.
const KIMI_RESERVED: u32 = 256;
/// Limits of Kimi's code: characters of a text, and of a run of spaces or of anything else.
const KIMI_CHARS: usize = 400_000;
const KIMI_RUN_CHARS: usize = 25_000;
/// Special tokens that Kimi's code has where the configuration names none.
const KIMI_ADDITIONAL: [&str; 8] = [
    "<|im_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "[EOT]",
    "<|im_system|>",
    "<|im_middle|>",
];

/// Place of the first special token of Qwen's first models, and the number of nameless ones.
const QWEN_SPECIAL: u32 = 151_643;
const QWEN_EXTRAS: u32 = 205;

/// The files of a model of Kimi's form.
#[derive(Clone, Copy, Debug)]
pub struct KimiFiles<'a> {
    /// `tiktoken.model`.
    pub ranks: &'a [u8],
    /// `tokenizer_config.json`.
    pub config: &'a str,
    /// `tokenization_kimi.py`, if it is there: what it says of the limits below is compared.
    pub class: Option<&'a str>,
}

/// The tools that a model's own code hands to its chat template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolsForm {
    /// As the client has them.
    #[default]
    Given,
    /// With the members of every object in the order of their names.
    Sorted,
    /// In another form, or in one that is not known.
    Other,
}

/// The parts of `tokenizer_config.json` that say where special tokens are.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    added_tokens_decoder: BTreeMap<String, Added>,
    additional_special_tokens: Option<Vec<NamedToken>>,
    extra_special_tokens: Option<ExtraTokens>,
    bos_token: Option<NamedToken>,
    eos_token: Option<NamedToken>,
    unk_token: Option<NamedToken>,
    pad_token: Option<NamedToken>,
}

/// One of `added_tokens_decoder`.
#[derive(Deserialize)]
struct Added {
    content: String,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
}

/// A special token by its text, or by an object that has it.
#[derive(Deserialize)]
#[serde(untagged)]
enum NamedToken {
    Text(String),
    Object { content: String },
}

/// Tokens of `extra_special_tokens`, which newer configurations have in place of the additional.
#[derive(Deserialize)]
#[serde(untagged)]
enum ExtraTokens {
    List(Vec<NamedToken>),
    Named(BTreeMap<String, NamedToken>),
}

impl NamedToken {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Object { content: text } => text,
        }
    }
}

impl Config {
    fn read(text: &str) -> Result<Self, TokenizerError> {
        serde_json::from_str(text).map_err(|why| TokenizerError(format!("tokenizer_config.json: {why}")))
    }

    /// Special tokens that it names by their role, or among the additional ones.
    fn named(&self) -> Vec<&str> {
        let roles = [&self.bos_token, &self.eos_token, &self.unk_token, &self.pad_token];
        let mut names: Vec<&str> = roles.into_iter().flatten().map(NamedToken::text).collect();
        match (&self.additional_special_tokens, &self.extra_special_tokens) {
            (Some(tokens), _) | (None, Some(ExtraTokens::List(tokens))) => {
                names.extend(tokens.iter().map(NamedToken::text));
            }
            (None, Some(ExtraTokens::Named(tokens))) => names.extend(tokens.values().map(NamedToken::text)),
            (None, None) => names.extend(KIMI_ADDITIONAL),
        }
        names
    }

    /// Names by id. A token that takes of the text around it is refused.
    fn added(&self) -> Result<BTreeMap<u32, &str>, TokenizerError> {
        let mut added = BTreeMap::new();
        for (id, token) in &self.added_tokens_decoder {
            let wrong = |why: &str| {
                TokenizerError(format!("tokenizer_config.json: added_tokens_decoder: {id:?}: {why}"))
            };
            let id: u32 = id.parse().map_err(|_| wrong("it is no token id"))?;
            if token.lstrip || token.rstrip || token.single_word {
                return Err(wrong("it has lstrip, rstrip or single_word, which is not done here"));
            }
            added.insert(id, token.content.as_str());
        }
        Ok(added)
    }
}

/// Facts that the code of a Kimi model says of itself.
struct KimiClass {
    reserved: u32,
    /// True if every added token parts texts, and not those alone that have a role.
    parts_by_all: bool,
}

impl KimiClass {
    /// Looks for what differs between releases of the code, and for what is taken for granted.
    fn read(class: Option<&str>) -> Result<Self, TokenizerError> {
        let Some(text) = class else { return Ok(Self { reserved: KIMI_RESERVED, parts_by_all: true }) };
        let facts = ["num_reserved_special_tokens = 256", "400_000", "25_000", "allowed_special=\"all\""];
        let arms = KIMI_ARMS.iter().chain(&facts);
        if let Some(missing) = arms.copied().find(|fact| !text.contains(fact)) {
            return Err(TokenizerError(format!(
                "tokenization_kimi.py is another than the known ones: it lacks {missing}"
            )));
        }
        let two_more = text.contains("self.num_reserved_special_tokens + 2");
        Ok(Self {
            reserved: KIMI_RESERVED + if two_more { 2 } else { 0 },
            parts_by_all: text.contains("added_tokens_decoder=added_tokens_decoder"),
        })
    }
}

/// The alternatives of [`KIMI_PATTERN`] as the code spells them.
const KIMI_ARMS: [&str; 8] = [
    r#"r"""[\p{Han}]+""""#,
    r#"r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""""#,
    r#"r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""""#,
    r#"r"""\p{N}{1,3}""""#,
    r#"r""" ?[^\s\p{L}\p{N}]+[\r\n]*""""#,
    r#"r"""\s*[\r\n]+""""#,
    r#"r"""\s+(?!\S)""""#,
    r#"r"""\s+""""#,
];

impl ToolsForm {
    /// Reads from a Kimi model's code what its `apply_chat_template` makes of tools.
    pub fn of_kimi(class: Option<&str>) -> Self {
        match class {
            Some(text) if text.contains("encode_tools") || text.contains("build_chat_segments") => {
                Self::Other
            }
            Some(text) if text.contains("tools = deep_sort_dict(tools)") => Self::Sorted,
            Some(text) if !text.contains("def apply_chat_template") => Self::Given,
            _ => Self::Other,
        }
    }
}

/// Variables that a Kimi model's own code hands to its template where requests don't set them.
pub fn kimi_variables(class: Option<&str>) -> Map<String, Value> {
    let text = class.unwrap_or_default();
    let known = [
        ("thinking: bool = True", "thinking", true),
        ("preserve_thinking: bool = False", "preserve_thinking", false),
    ];
    let set = known.into_iter().filter(|(code, ..)| text.contains(code));
    set.map(|(_, name, value)| (name.to_owned(), Value::Bool(value))).collect()
}

/// Reads a model of Kimi's form: K2 and what followed it.
///
/// # Errors
/// A file that is malformed, or whose code is another than the known releases of it.
pub fn kimi(files: KimiFiles<'_>) -> Result<RankTokenizer, TokenizerError> {
    let ranks = Ranks::parse(files.ranks)?;
    let config = Config::read(files.config)?;
    let class = KimiClass::read(files.class)?;
    let added = config.added()?;
    let base = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
    // A file that was cut has fewer ranks, and every token behind them another id.
    if let Some(first) = added.keys().next().filter(|first| **first != base) {
        return Err(TokenizerError(format!(
            "tiktoken.model has {base} ranks, and in tokenizer_config.json added_tokens_decoder begins at {first}: is the file whole?"
        )));
    }
    let mut special = BTreeMap::new();
    for id in base..base.saturating_add(class.reserved) {
        let name =
            added.get(&id).map_or_else(|| format!("<|reserved_token_{id}|>"), |name| (*name).to_owned());
        if special.insert(name, id).is_some() {
            return Err(TokenizerError(format!(
                "tokenizer_config.json: added_tokens_decoder: {id}: it has the name of another"
            )));
        }
    }
    let mut parted_by = special.clone();
    if class.parts_by_all {
        parted_by.retain(|name, id| added.get(id) == Some(&name.as_str()));
    } else {
        let named = config.named();
        parted_by.retain(|name, _| named.contains(&name.as_str()));
    }
    let cuts = LongTexts { parted_by, chars: KIMI_CHARS, run_chars: KIMI_RUN_CHARS };
    RankTokenizer::new(RankParts {
        ranks,
        offset: 0,
        pattern: KIMI_PATTERN.to_owned(),
        special,
        rules: TextRules { finds_special: true, cuts: Some(cuts), ..TextRules::default() },
    })
}

/// Reads the rank file of Qwen's first models.
///
/// # Errors
/// It is malformed, or has other tokens in place of the special ones.
pub fn qwen(ranks: &[u8]) -> Result<RankTokenizer, TokenizerError> {
    let ranks = Ranks::parse(ranks)?;
    if ranks.last() >= QWEN_SPECIAL {
        return Err(TokenizerError(format!(
            "it has the rank {}, and special tokens begin at {QWEN_SPECIAL}",
            ranks.last()
        )));
    }
    let named = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned);
    let extras = (0..QWEN_EXTRAS).map(|extra| format!("<|extra_{extra}|>"));
    RankTokenizer::new(RankParts {
        ranks,
        offset: 0,
        pattern: QWEN_PATTERN.to_owned(),
        special: named.into_iter().chain(extras).zip(QWEN_SPECIAL..).collect(),
        rules: TextRules { finds_special: true, nfc: true, ..TextRules::default() },
    })
}

/// True if a `tokenizer_config.json` names the class of Qwen's first models.
pub fn names_qwen(config: &str) -> bool {
    let config: serde_json::Value = serde_json::from_str(config).unwrap_or_default();
    config.get("tokenizer_class").is_some_and(|class| class == "QWenTokenizer")
}

#[cfg(test)]
mod tests {
    use super::super::Tokenize;
    use super::super::ranks::tests::file;
    use super::*;

    const CONFIG: &str = r#"{"bos_token": "[BOS]", "additional_special_tokens": ["<|im_end|>"],
        "added_tokens_decoder": {"258": {"content": "[BOS]"}, "259": {"content": "<|im_end|>"}, "260": {"content": "<think>"}}}"#;

    fn class() -> String {
        let facts = "num_reserved_special_tokens = 256\n400_000 25_000 allowed_special=\"all\"\n";
        format!("{}\n{facts}", KIMI_ARMS.join(",\n"))
    }

    fn model<'a>(ranks: &'a str, class: Option<&'a str>) -> KimiFiles<'a> {
        KimiFiles { ranks: ranks.as_bytes(), config: CONFIG, class }
    }

    fn ids(tokenizer: &RankTokenizer, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        tokenizer.encode_into(text, true, &mut out).unwrap();
        out
    }

    #[test]
    fn kimi_pattern_is_that_of_its_code() {
        let arms =
            KIMI_ARMS.map(|arm| arm.trim_start_matches(r#"r""""#).trim_end_matches(r#"""""#).to_owned());
        assert_eq!(arms.join("|"), KIMI_PATTERN);
    }

    #[test]
    fn kimi_special_tokens_follow_the_ranks() {
        let ranks = file(&["ab", "中文"]);
        let tokenizer = kimi(model(&ranks, None)).unwrap();
        assert_eq!(ids(&tokenizer, "ab<|im_end|>中文<think>[BOS]"), [256, 259, 257, 260, 258]);
        assert_eq!(ids(&tokenizer, "<|reserved_token_513|>"), [513]);
        assert_ne!(ids(&tokenizer, "<|reserved_token_514|>"), [514]);
        let mut plain = Vec::new();
        tokenizer.encode_plain_into("ab<think>", &mut plain).unwrap();
        assert_eq!((plain[0], plain.len()), (256, 8));
        let two_more = format!("{}self.num_reserved_special_tokens + 2", class());
        assert_eq!(ids(&kimi(model(&ranks, Some(&two_more))).unwrap(), "<|reserved_token_515|>"), [515]);
    }

    #[test]
    fn kimi_ranks_that_are_not_whole_are_refused() {
        let cut = file(&["ab"]);
        let why = kimi(model(&cut, None)).err().unwrap().to_string();
        assert!(why.contains("has 257 ranks") && why.contains("begins at 258"), "{why}");
        let none = CONFIG.replace("added_tokens_decoder", "other");
        assert!(kimi(KimiFiles { config: &none, ..model(&cut, None) }).is_ok());
    }

    #[test]
    fn kimi_code_that_is_not_known_is_refused() {
        let ranks = file(&["ab", "中文"]);
        let refuses = |class: &str, says: &str| {
            let error = kimi(model(&ranks, Some(class))).err().unwrap().to_string();
            assert!(error.contains(says), "{error}");
        };
        assert!(kimi(model(&ranks, Some(&class()))).is_ok());
        refuses(&class().replace("25_000", "30_000"), "it lacks 25_000");
        refuses(&class().replace(r"\p{N}{1,3}", r"\p{N}{1,2}"), r"it lacks r");
        let strips = CONFIG.replace(r#""<think>""#, r#""<think>", "lstrip": true"#);
        let files = KimiFiles { config: &strips, ..model(&ranks, None) };
        assert!(kimi(files).err().unwrap().to_string().contains("lstrip"));
    }

    #[test]
    fn kimi_texts_are_cut_where_its_code_cuts_them() {
        let ranks = file(&["aa", "ab"]);
        let tokenizer = kimi(model(&ranks, None)).unwrap();
        let run = "a".repeat(KIMI_RUN_CHARS + 1);
        // An odd letter is left over at the cut, and not behind it.
        let mut text = "b".to_owned() + &run;
        assert_eq!(ids(&tokenizer, &text)[12_500..], [u32::from(b'a'), 256]);
        // A special token begins the count anew.
        text.insert_str(1, "<|im_end|>");
        assert_eq!(ids(&tokenizer, &text)[12_500..], [256, 256, u32::from(b'a')]);
    }

    #[test]
    fn tools_are_in_the_form_of_the_code() {
        let code = "def apply_chat_template(self):\n    tools = deep_sort_dict(tools)\n";
        assert_eq!(ToolsForm::of_kimi(Some(code)), ToolsForm::Sorted);
        assert_eq!(
            ToolsForm::of_kimi(Some(&format!("{code}encode_tools_to_typescript_style(tools)"))),
            ToolsForm::Other
        );
        assert_eq!(ToolsForm::of_kimi(Some("def apply_chat_template(self):")), ToolsForm::Other);
        assert!(kimi_variables(Some(code)).is_empty() && kimi_variables(None).is_empty());
        let newer = kimi_variables(Some("thinking: bool = True, preserve_thinking: bool = False"));
        assert_eq!(Value::Object(newer).to_string(), r#"{"thinking":true,"preserve_thinking":false}"#);
        assert_eq!(
            (ToolsForm::of_kimi(Some("")), ToolsForm::of_kimi(None)),
            (ToolsForm::Given, ToolsForm::Other)
        );
    }

    #[test]
    fn qwen_texts_are_composed_before_special_tokens_are_found() {
        let tokenizer = qwen(file(&["é"]).as_bytes()).unwrap();
        assert_eq!(ids(&tokenizer, "e\u{301}<|im_end|><|extra_204|>"), [256, 151_645, 151_850]);
        let mut out = Vec::new();
        assert!(
            tokenizer.encode_into("a\u{16121}", true, &mut out).is_err(),
            "newer than some engines' Unicode"
        );
        assert!(names_qwen(r#"{"tokenizer_class": "QWenTokenizer"}"#) && !names_qwen("{}"));
    }
}
