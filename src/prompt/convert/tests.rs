use proptest::prelude::*;
use serde_json::json;

use super::*;

/// The messages that are made of a body.
fn messages(api: Api, body: &Value) -> Result<Value, Reason> {
    let body = scan(body.to_string().into()).unwrap();
    read(api, &body).map(|chat| Value::Array(chat.messages))
}

fn of_blocks(role: &str, blocks: Value) -> Result<Value, Reason> {
    messages(Api::Messages, &json!({"messages": [{"role": role, "content": blocks}]}))
}

fn of_items(items: Value) -> Result<Value, Reason> {
    messages(Api::Responses, &json!({"input": items}))
}

fn called(name: &str, arguments: &str) -> Value {
    json!({"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}})
}

// All expectations are those of vLLM 0.33's `to_chat_completion_request` and
// `construct_input_messages`.

#[test]
fn blocks_become_one_message_after_the_results_in_them() {
    let call = json!({"type": "tool_use", "id": "c", "name": "f", "input": {"a": "ü\u{7f}"}});
    let result = |content: Value| json!({"type": "tool_result", "tool_use_id": "c", "content": content});
    let text = |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
    let tool = |text: &str| json!({"role": "tool", "tool_call_id": "c", "content": text});
    for (role, blocks, expect) in [
        (
            "assistant",
            json!([{"type": "thinking", "thinking": "r"}, text("a"), call]),
            json!([{"role": "assistant", "reasoning": "r", "content": "a",
                "tool_calls": [called("f", r#"{"a": "\u00fc\u007f"}"#)]}]),
        ),
        (
            "user",
            json!([text("a"), result(json!([text("s"), text("w")])), text("")]),
            json!([tool("s\nw"), {"role": "user", "content": "a"}]),
        ),
        ("user", json!([result(json!(null))]), json!([tool("")])),
        (
            "user",
            json!([result(json!([text("s"), {"type": "image", "source": {"data": "AA=="}}]))]),
            json!([tool("s"), {"role": "user", "content":
                [{"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,AA=="}}]}]),
        ),
        (
            "user",
            json!([text("a"), {"type": "image", "source": {"type": "url", "url": "http://a"}}]),
            json!([{"role": "user", "content":
                [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "http://a"}}]}]),
        ),
        (
            "assistant",
            json!([result(json!("s"))]),
            json!([{"role": "assistant", "content": "Tool result: s"}]),
        ),
        ("assistant", json!([]), json!([{"role": "assistant"}])),
    ] {
        assert_eq!(of_blocks(role, blocks.clone()), Ok(expect), "{blocks}");
    }
    for (role, blocks) in [
        ("user", json!([{"type": "document"}])),
        ("tool", json!([])),
        ("user", json!({})),
        // The engine makes an id of the time, and prints the list as Python does.
        ("assistant", json!([{"type": "tool_use", "name": "f"}])),
        ("assistant", json!([result(json!([text("s")]))])),
    ] {
        assert_eq!(of_blocks(role, blocks.clone()), Err(Reason::Shape), "{blocks}");
    }
}

#[test]
fn system_messages_lose_the_line_for_billing() {
    let user = json!({"role": "user", "content": "a"});
    let header = "x-anthropic-billing-header: 1";
    let text = |text: &str| json!({"type": "text", "text": text});
    for (system, inline, expect) in [
        (json!("s"), json!("t"), json!([["system", "s"], ["user", "a"], ["system", "t"]])),
        (
            json!([text("s"), text(header), text("t")]),
            json!(header),
            json!([["system", "st"], ["user", "a"]]),
        ),
        (json!(header), json!([text(header)]), json!([["system", header], ["user", "a"]])),
    ] {
        let body = json!({"system": system, "messages": [user, {"role": "system", "content": inline}]});
        let made = messages(Api::Messages, &body).unwrap();
        let made: Value = made.as_array().unwrap().iter().map(|m| json!([m["role"], m["content"]])).collect();
        assert_eq!(made, expect, "{body}");
    }
}

#[test]
fn items_of_an_answer_become_one_message() {
    let user = json!({"role": "user", "content": "a"});
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
    let answer = |text: &str| {
        json!({"type": "message", "role": "assistant", "content":
        [{"type": "output_text", "text": text}, {"type": "output_text", "text": "more"}]})
    };
    let reasoning = |text: &str| json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]});
    let custom = json!({"type": "custom_tool_call", "call_id": "c", "name": "g", "input": "é\""});
    for (items, expect) in [
        (
            json!([call("c"), reasoning("r"), answer("x"), custom]),
            json!([{"role": "assistant", "tool_calls": [called("f", "{}"), called("g", r#"{"input": "é\""}"#)],
                "reasoning": "r", "content": "x"}]),
        ),
        (
            json!([user, answer("x"), answer("y"), reasoning("r"), reasoning("s")]),
            json!([user, {"role": "assistant", "content": "x"}, {"role": "assistant", "content": "y", "reasoning": "r"},
                {"role": "assistant", "reasoning": "s"}]),
        ),
        (
            json!([{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "o"}]}]),
            json!([{"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "o"}]}]),
        ),
        (
            json!([{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}]),
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}, "detail": "auto"}]}]),
        ),
    ] {
        assert_eq!(of_items(items.clone()), Ok(expect), "{items}");
    }
    for items in [
        json!([{"type": "item_reference", "id": "x"}]),
        json!([{"type": "reasoning", "summary": [], "encrypted_content": "x"}]),
        json!([{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]),
        json!([{"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}]),
    ] {
        assert_eq!(of_items(items.clone()), Err(Reason::Shape), "{items}");
    }
}

#[test]
fn parts_that_the_engine_alone_has_are_unknown() {
    for (more, reason) in [
        (json!({"previous_response_id": "r"}), Reason::Api),
        (json!({"previous_input_messages": []}), Reason::Api),
        (json!({"truncation": "auto"}), Reason::Truncation),
        (json!({"truncation": null}), Reason::Truncation),
        (json!({"prompt": {"id": "p"}}), Reason::Shape),
    ] {
        let mut body = json!({"input": "a"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(messages(Api::Responses, &body), Err(reason), "{body}");
    }
}

#[test]
fn templates_see_functions_alone() {
    let body = json!({"input": "a", "tools": [{"type": "web_search"}, {"type": "custom", "name": "c"},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f", "strict": null}]}]});
    let chat = read(Api::Responses, &scan(body.to_string().into()).unwrap()).unwrap();
    let names: Vec<&Value> = chat.tools.iter().flatten().map(|tool| &tool["function"]["name"]).collect();
    assert_eq!(names, ["c", "n__f"]);
    assert!(chat.add_special_tokens && chat.add_generation_prompt);
    let body = json!({"messages": [{"role": "user", "content": "a"}], "tools": [{"name": "f", "input_schema": {"x": 1}}]});
    let chat = read(Api::Messages, &scan(body.to_string().into()).unwrap()).unwrap();
    let parameters = &chat.tools.as_ref().unwrap()[0]["function"]["parameters"];
    assert_eq!(parameters.to_string(), r#"{"x":1,"type":"object"}"#);
    assert!(!chat.add_special_tokens);
}

#[test]
fn templates_that_refuse_inline_system_messages_are_found() {
    for (source, expect) in [
        ("{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}", Some(false)),
        (
            "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}{% endfor %}",
            Some(true),
        ),
        ("{{ strftime_now('%Y') }}", Some(true)),
        ("{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% endif %}", Some(false)),
        ("{{ bos_token }}", Some(false)),
        ("{{ bos_token + 'a' }}", Some(true)),
        ("{% generation %}a{% endgeneration %}", Some(true)),
        ("{{ tools.x }}", Some(true)),
        ("{{ 'a'.unknown() }}", None),
    ] {
        assert_eq!(refuses_inline_system(source), expect, "{source}");
    }
}

const TEXTS: [&str; 10] =
    ["text", "system", "assistant", "user", "tool_use", "tool_result", "message", "function", "none", ""];
const KEYS: [&str; 21] = [
    "type",
    "role",
    "content",
    "text",
    "id",
    "name",
    "input",
    "tool_use_id",
    "source",
    "thinking",
    "output",
    "call_id",
    "arguments",
    "summary",
    "tools",
    "messages",
    "status",
    "input_schema",
    "system",
    "reasoning",
    "effort",
];

/// Values of all kinds under the names that are read.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::sample::select(&TEXTS[..]).prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 5, |inner| {
        let pairs = (prop::sample::select(&KEYS[..]), inner.clone());
        let members = prop::collection::vec(pairs, 0..6);
        let object =
            members.prop_map(|members| members.into_iter().map(|(k, v)| (k.to_owned(), v)).collect());
        prop_oneof![prop::collection::vec(inner, 0..4).prop_map(Value::Array), object.prop_map(Value::Object)]
    })
}

proptest! {
    #[test]
    fn no_body_panics(list in any_value(), other in any_value(), tools in any_value()) {
        let body = json!({"messages": [list], "input": [list], "system": other, "reasoning": other, "instructions": other,
            "thinking": other, "tools": [tools], "tool_choice": tools});
        for api in [Api::Messages, Api::Responses] {
            if let Ok(made) = messages(api, &body) {
                prop_assert!(made.as_array().is_some_and(|made| made.iter().all(|message| message["role"].is_string())));
            }
        }
    }
}
