use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::codec::json::ScanLimits;

const CHATML: &str =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
const TODAY: Today = Today { year: 2026, month: 1, day: 2 };

/// One id per byte.
struct Bytewise;

impl Tokenize for Bytewise {
    fn encode_into(
        &self,
        text: &str,
        add_special_tokens: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        out.extend(add_special_tokens.then_some(1));
        out.extend(text.bytes().map(u32::from));
        Ok(())
    }

    fn added_tokens(&self) -> Vec<AddedToken> {
        Vec::new()
    }
}

fn template(source: &str) -> Result<ChatTemplate, TemplateError> {
    ChatTemplate::new(TemplateFiles { chat_template: Some(source), ..Default::default() })
}

fn prompter(source: &str) -> Prompter {
    Prompter::new(Some(template(source).unwrap()), Some(Arc::new(Bytewise)), PrefixCache::off())
}

fn ask(prompter: &Prompter, api: Api, body: &str) -> Result<String, Reason> {
    let object = Object::scan(Bytes::copy_from_slice(body.as_bytes()), ScanLimits::default()).unwrap();
    let prompt = prompter.prompt(api, &object, TODAY);
    match prompt.exactness {
        Exactness::Exact => {
            Ok(prompt.tokens.iter().map(|id| char::from(u8::try_from(*id).unwrap())).collect())
        }
        Exactness::Prefix { reason, .. } => panic!("{body}: known up to {reason:?}"),
        Exactness::Inexact(reason) => {
            assert!(prompt.tokens.is_empty(), "{body}");
            Err(reason)
        }
    }
}

fn chat(source: &str, body: &Value) -> Result<String, Reason> {
    ask(&prompter(source), Api::Chat, &body.to_string())
}

#[test]
fn a_chat_is_rendered_and_tokenised() {
    let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
    assert_eq!(chat(CHATML, &body).as_deref(), Ok("<|im_start|>user\nHi<|im_end|>\n"));
}

#[test]
fn prompts_are_read_from_where_each_api_has_them() {
    let prompter = prompter(CHATML);
    for (api, body, expect) in [
        (Api::Completions, r#"{"prompt":"ab"}"#, Ok("\u{1}ab")),
        (Api::Completions, r#"{"prompt":["ab"],"add_special_tokens":false}"#, Ok("ab")),
        (Api::Completions, r#"{"prompt":[97, 98]}"#, Ok("ab")),
        (Api::Completions, r#"{"prompt":[[97]]}"#, Ok("a")),
        (Api::Completions, r#"{"prompt":["a","b"]}"#, Err(Reason::Batch)),
        (Api::Completions, r#"{"prompt":[]}"#, Err(Reason::Shape)),
        (Api::Completions, r#"{"prompt":[-1]}"#, Err(Reason::Shape)),
        (Api::Completions, r#"{"prompt":"\ud800"}"#, Err(Reason::Json)),
        (Api::Completions, r#"{"prompt":null,"prompt_embeds":"x"}"#, Err(Reason::Embeds)),
        (Api::Completions, r#"{"prompt":"a","truncate_prompt_tokens":2}"#, Ok("\u{1}a")),
        (Api::Completions, r#"{"prompt":"a","truncate_prompt_tokens":1}"#, Err(Reason::Truncation)),
        (Api::Completions, r#"{"prompt":[97,98],"truncate_prompt_tokens":1}"#, Err(Reason::Truncation)),
        (Api::Completions, r#"{"prompt":"a","truncate_prompt_tokens":0}"#, Err(Reason::Truncation)),
        (Api::Completions, r#"{"prompt":"a","truncate_prompt_tokens":"5"}"#, Err(Reason::Truncation)),
        (Api::Completions, r#"{"prompt":"a","add_special_tokens":1}"#, Err(Reason::Shape)),
        (Api::Completions, r#"{"prompt":"a","suffix":"b"}"#, Err(Reason::Shape)),
        (Api::Completions, r#"{"prompt":[97],"suffix":""}"#, Err(Reason::Shape)),
        (Api::Completions, r#"{"prompt":[97],"suffix":null}"#, Ok("a")),
        (Api::Generate, r#"{"token_ids":[97]}"#, Ok("a")),
        (Api::Generate, r#"{"token_ids":[97],"features":{}}"#, Err(Reason::Media)),
        (Api::Responses, r#"{"input":"a"}"#, Ok("\u{1}<|im_start|>user\na<|im_end|>\n")),
        (Api::Responses, r#"{"input":"a","previous_response_id":"r"}"#, Err(Reason::Api)),
        (
            Api::Messages,
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}"#,
            Ok("<|im_start|>user\na<|im_end|>\n"),
        ),
        (Api::Messages, r#"{"messages":[]}"#, Err(Reason::Shape)),
    ] {
        assert_eq!(ask(&prompter, api, body).as_deref(), expect.as_ref().copied(), "{body}");
    }
}

#[test]
fn unknown_prompt_has_a_reason() {
    let user = json!({"role": "user", "content": "a"});
    for (body, reason) in [
        (json!({}), Reason::Shape),
        (json!({"messages": "a"}), Reason::Shape),
        (json!({"messages": [user], "chat_template": "x"}), Reason::ClientTemplate),
        (json!({"messages": [user], "chat_template_kwargs": {"tokenize": true}}), Reason::TemplateKwargs),
        // It would be the date that templates print.
        (
            json!({"messages": [user], "chat_template_kwargs": {"__pd_proxy_today": [1, 2, 3]}}),
            Reason::TemplateKwargs,
        ),
        (json!({"messages": [user], "chat_template_kwargs": {"x": 1e300}}), Reason::Json),
        (json!({"messages": [user], "reasoning_effort": "most"}), Reason::Shape),
        (json!({"messages": [user], "truncate_prompt_tokens": -1}), Reason::Truncation),
        (json!({"messages": [user], "tools": [{"type": "custom"}]}), Reason::Shape),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
            Reason::Media,
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "uuid": "x"}]}]}),
            Reason::Shape,
        ),
        (json!({"messages": [{"role": "user", "content": 5}]}), Reason::Shape),
    ] {
        assert_eq!(chat(CHATML, &body), Err(reason), "{body}");
    }
    let none = Prompter::new(None, Some(Arc::new(Bytewise)), PrefixCache::off());
    let body = json!({"messages": [user]}).to_string();
    assert_eq!(ask(&none, Api::Chat, &body), Err(Reason::NoTemplate));
    let none = Prompter::new(Some(template(CHATML).unwrap()), None, PrefixCache::off());
    assert_eq!(ask(&none, Api::Chat, &body), Err(Reason::NoTokenizer));
    assert_eq!(ask(&none, Api::Completions, r#"{"prompt":[97]}"#).as_deref(), Ok("a"));
}

#[test]
fn only_the_choice_of_no_tool_leaves_the_prompt_in_doubt() {
    let body = |tools: &Value, choice: &Value| json!({"messages": [{"role": "user", "content": "a"}], "tools": tools, "tool_choice": choice});
    let (tools, named) =
        (json!([{"function": {"name": "f"}}]), json!({"type": "function", "function": {"name": "none"}}));
    let expect = Ok("<|im_start|>user\na<|im_end|>\n".to_owned());
    for choice in [json!("auto"), json!("required"), named, Value::Null] {
        assert_eq!(chat(CHATML, &body(&tools, &choice)), expect, "{choice}");
    }
    assert_eq!(chat(CHATML, &body(&tools, &json!("none"))), expect, "this template does not look at tools");
    let looks = "{{ tools | length if tools else 'none' }}";
    assert_eq!(chat(looks, &body(&tools, &json!("none"))), Err(Reason::Constraint));
    assert_eq!(chat(looks, &body(&tools, &json!("auto"))).as_deref(), Ok("1"));
    assert_eq!(chat(CHATML, &body(&Value::Null, &json!("none"))), expect, "there are no tools to leave out");
}

#[test]
fn templates_that_fail_or_never_end_are_stopped() {
    let body = json!({"messages": [{"role": "user", "content": "a"}]});
    for (source, reason) in [
        ("{{ raise_exception('no') }}", Reason::Rejected),
        ("{{ messages[0].nothing.at_all }}", Reason::Template),
        ("{% for i in range(9000) %}{% for j in range(9000) %}{% endfor %}{% endfor %}", Reason::Limit),
        ("{% set x = 'x' * 3000000 %}{{ x }}", Reason::Limit),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", Reason::Template),
    ] {
        assert_eq!(chat(source, &body), Err(reason), "{source}");
    }
}

#[test]
fn templates_come_from_the_models_files() {
    let user = |tools: bool| {
        let mut body = json!({"messages": [{"role": "user", "content": "a"}]});
        if tools {
            body["tools"] = json!([{"function": {"name": "f"}}]);
        }
        body
    };
    let of = |config: &Value, tools: bool| {
        let files = TemplateFiles { tokenizer_config: Some(&config.to_string()), ..Default::default() };
        let prompter = Prompter::new(
            Some(ChatTemplate::new(files).unwrap()),
            Some(Arc::new(Bytewise)),
            PrefixCache::off(),
        );
        ask(&prompter, Api::Chat, &user(tools).to_string()).unwrap()
    };
    let one = json!({"chat_template": "{{ bos_token }}{{ eos_token }}.", "bos_token": {"content": "<b>"}, "eos_token": "<e>"});
    assert_eq!(of(&one, false), "<b><e>.");
    let named = json!({"chat_template": [
        {"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}, {"name": "rag", "template": "x"}
    ]});
    assert_eq!((of(&named, false), of(&named, true)), ("plain".to_owned(), "tools".to_owned()));
    assert!(matches!(ChatTemplate::new(TemplateFiles::default()), Err(TemplateError::Missing)));
    assert!(matches!(template("{% if %}"), Err(TemplateError::Syntax(_))));
    assert!(matches!(template("{{ a.items }}"), Err(TemplateError::Construct(_))));
    assert!(matches!(template(&" ".repeat(MAX_TEMPLATE_BYTES + 1)), Err(TemplateError::TooLong)));
}

#[test]
fn reasons_have_distinct_names() {
    let names: std::collections::BTreeSet<&str> = Reason::ALL.iter().map(|reason| reason.name()).collect();
    assert_eq!(names.len(), Reason::ALL.len());
}

/// As the templates of MiniMax-M2 and Nemotron-Nano-v2 look back at the message before.
#[test]
fn a_slice_that_is_walked_for_each_message_has_its_limit() {
    let source =
        "{% set rest = messages[1:] %}{% for m in rest %}{{ rest[loop.index0 - 1].role }}{% endfor %}";
    let files = TemplateFiles { chat_template: Some(source), ..TemplateFiles::default() };
    let template = ChatTemplate::new(files).unwrap();
    let render = |count: usize| {
        let messages: Vec<Value> = (0..count).map(|_| json!({"role": "user", "content": "x"})).collect();
        let body = json!({"model": "m", "messages": messages}).to_string();
        let body = Object::scan(Bytes::from(body), ScanLimits::default()).unwrap();
        Chat::read(&body).and_then(|chat| template.render(chat, None))
    };
    assert!(render(100).is_ok_and(|text| text.len() == 99 * 4));
    assert_eq!(render(10_000), Err(Reason::Limit));
}

fn render(source: &str, messages: &[Value], stop: &Stop) -> Result<String, Reason> {
    let body = json!({"model": "m", "messages": messages}).to_string();
    let body = Object::scan(Bytes::from(body), ScanLimits::default()).unwrap();
    Chat::read(&body).and_then(|chat| template(source).unwrap().render_until(chat, Edition::Of33, None, stop))
}

/// As the template of DeepSeek-V3.1 joins system messages, and others what they have said so far.
#[test]
fn a_text_that_grows_with_each_message_has_its_limit() {
    let message = json!({"role": "system", "content": "x".repeat(250)});
    for source in [
        "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t + m.content %}{% endfor %}{{ ns.t }}",
        "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ m.content %}{% endfor %}{{ ns.t }}",
        "{% set ns = namespace(t='') %}{% for m in messages %}{% set t %}{{ ns.t }}{{ m.content }}{% endset %}\
         {% set ns.t = t %}{% endfor %}{{ ns.t }}",
        "{% set ns = namespace(t='') %}{% macro more(m) %}{{ ns.t }}{{ m.content }}{% endmacro %}\
         {% for m in messages %}{% set ns.t = more(m) %}{% endfor %}{{ ns.t }}",
        "{% set ns = namespace(t=[]) %}{% for m in messages %}{% set ns.t = ns.t + [m.content] %}\
         {% set u = ns.t|join %}{% endfor %}{{ ns.t|join }}",
    ] {
        let of = |count| render(source, &vec![message.clone(); count], &Stop::default());
        assert_eq!(of(500).map(|text| text.len()), Ok(500 * 250), "{source}");
        assert_eq!(of(4_000), Err(Reason::Limit), "{source}");
    }
}

#[test]
fn a_rendering_that_nobody_waits_for_ends() {
    let messages = [json!({"role": "user", "content": "x"})];
    let stop = Stop::default();
    assert_eq!(render(CHATML, &messages, &stop.clone()).as_deref(), Ok("<|im_start|>user\nx<|im_end|>\n"));
    stop.now();
    assert_eq!(render(CHATML, &messages, &stop), Err(Reason::Limit));
}

#[test]
fn release_dependent_prompt_is_not_exact() {
    let prompter = prompter(CHATML);
    let chat = |message: Value| ask(&prompter, Api::Chat, &json!({"messages": [message]}).to_string()).err();
    let plain = || chat(json!({"role": "user", "content": "a"}));
    let reasoning = || chat(json!({"role": "assistant", "content": "a", "reasoning_content": "r"}));
    let developer = || chat(json!({"role": "developer", "content": "a"}));
    assert_eq!((plain(), reasoning(), developer()), (None, None, None));
    prompter.set_rules(Rules::SINCE_22);
    assert_eq!((plain(), reasoning(), developer()), (None, None, Some(Reason::Release)));
    prompter.set_rules(Rules::EVERY_RELEASE);
    assert_eq!((plain(), reasoning(), developer()), (None, Some(Reason::Release), Some(Reason::Release)));
    assert_eq!(ask(&prompter, Api::Completions, r#"{"prompt":"a"}"#).as_deref(), Ok("\u{1}a"));
    prompter.set_rules(Rules::OF_32);
    assert_eq!(developer(), None, "the last of them was upgraded");
}

/// Of a template that releases see differently, the chats are exact that come out the same.
#[test]
fn a_fleet_of_two_editions_is_exact_where_both_agree() {
    let source = "{% set ns = namespace(rest=messages) %}{% for m in ns.rest %}\
                  {% if m.content is string %}{{ m.content }}{% else %}\
                  {% for part in m.content %}[{{ part.text }}]{% endfor %}{% endif %}{% endfor %}\
                  {{ reasoning_effort }}";
    let efforts = EffortMap::from([("medium".to_owned(), "low".to_owned())]);
    let prompter = prompter(source).with_efforts(efforts.clone());
    let plain = r#"{"messages":[{"role":"user","content":"a"}]}"#;
    let odd = r#"{"messages":[{"role":"tool","content":"a","tool_call_id":"1"}]}"#;
    let asked = |rules| {
        prompter.set_rules(rules);
        [plain, odd].map(|body| ask(&prompter, Api::Chat, body))
    };
    assert_eq!(asked(Rules::OF_32), [Ok("a".to_owned()), Ok("a".to_owned())]);
    assert_eq!(asked(Rules::OF_33), [Ok("[a]".to_owned()), Ok("a".to_owned())]);
    assert_eq!(asked(Rules::ANY_EDITION), [Err(Reason::Release), Ok("a".to_owned())]);
    let same = self::prompter("{{ reasoning_effort }}").with_efforts(efforts);
    same.set_rules(Rules::ANY_EDITION);
    let effort = |effort: &str| {
        let body = json!({"messages": [{"role": "user", "content": "a"}], "reasoning_effort": effort});
        ask(&same, Api::Chat, &body.to_string())
    };
    assert_eq!((effort("medium"), effort("high")), (Err(Reason::Release), Ok("high".to_owned())));
    same.set_rules(Rules::OF_33);
    assert_eq!(effort("medium").as_deref(), Ok("low"));
}
