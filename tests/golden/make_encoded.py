"""Writes encoded.json, or encoded-0.33.json: what vLLM makes of chats of models whose prompts it builds by code, not by a template.

Run with a Python that has vLLM 0.32 or 0.33 and transformers 5: `python make_encoded.py`, for 0.32 first. Requests are those of chat.json and
the ones below; they go through vLLM's own request type and through the renderer of each family, without weights, a GPU or a model's tokenizer.
The file of 0.33 has the results that differ from 0.32's.
"""

import copy
import json
import logging
import pathlib
import types

import vllm
from make_encoded_families import VERSIONS, families

HERE = pathlib.Path(__file__).parent
RELEASE = vllm.__version__.split("+")[0].rsplit(".", 1)[0]


def user(content, **more):
    return {"role": "user", "content": content, **more}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content, **more):
    return {"role": "system", "content": content, **more}


def developer(content):
    return {"role": "developer", "content": content}


def call(name, arguments, ident="call12345"):
    return {"type": "function", "id": ident, "function": {"name": name, "arguments": arguments}}


def result(content, ident="call12345"):
    return {"role": "tool", "tool_call_id": ident, "content": content}


def text(*texts):
    return [{"type": "text", "text": t} for t in texts]


def thought(text, **more):
    return {"type": "thinking", "thinking": text, **more}


def tool(name, description=None, parameters=None):
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


ODD = '{"s": "a\\"b<c>\\n", "n": 1.50, "i": 7, "neg": -3, "l": [1, "x", null, {}], "o": {"k": true, "e": []}, "t": false, "z": null, "u": "北京 🙂", "": "empty"}'
LOOKUP = tool("lookup", "Looks\nup.", {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]})
SCHEMAS = {
    "type": "object",
    "description": "All of it.\nTwo lines.",
    "properties": {
        "plain": {"type": "string"},
        "described": {"type": "string", "description": "With a line", "default": "x"},
        "number": {"type": "number", "default": 1.5, "description": "a\nb"},
        "flag": {"type": "boolean", "default": False},
        "pick": {"type": "string", "enum": ["a", "b"], "default": "a"},
        "picks": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}},
        "list": {"type": "array", "items": {"type": "integer"}, "default": [1, 2]},
        "lists": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "any": {},
        "anything": {"description": "Whatever"},
        "many": {"type": ["string", "null"], "description": "or none"},
        "one_of": {"oneOf": [{"type": "string", "default": "d"}, {"type": "integer", "description": "an int"}], "description": "Either", "default": "q"},
        "any_of": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "nullable": {"type": "string", "nullable": True},
        "nested": {
            "type": "object",
            "description": "Inner",
            "properties": {"deep": {"type": "object", "properties": {"x": {"type": "string", "title": "T", "examples": ["e"]}}, "required": ["x"]}},
        },
        "free": {"type": "object"},
        "objects": {"type": "array", "items": {"type": "object", "properties": {"y": {"type": "null"}}, "required": ["y"]}},
        "titled": {"type": "integer", "title": "Title", "minimum": 1, "examples": [1, "two"], "description": "D."},
        "constant": {"const": "c"},
        "weird-name": {"type": "string"},
        "reference": {"$ref": "#/$defs/a"},
    },
    "required": ["plain", "any", "nested"],
}
SEARCH = [
    user("Find two."),
    assistant("On it.", reasoning="Two calls.", tool_calls=[call("lookup", '{"q": "a"}', "c1"), call("lookup", '{"q": "b"}', "c2")]),
    result("B", "c2"),
    result(text("A1", "A2"), "c1"),
]

REQUESTS = {
    "tool_odd_arguments": {"messages": [user("Go"), assistant(None, tool_calls=[call("f", ODD)]), result("ok")]},
    "tool_bad_arguments": {"messages": [user("Go"), assistant(None, tool_calls=[call("f", '{"a": ')]), result("ok")]},
    "tool_string_arguments": {"messages": [user("Go"), assistant(None, tool_calls=[call("f", '"{\\"a\\": 1}"')]), result("ok")]},
    "tool_schemas": {"messages": [user("Go")], "tools": [tool("f", "Does\nit.", SCHEMAS), tool("bare"), tool("no_properties", "", {"type": "object", "properties": {}}), tool("odd", "d", {"type": "string"})]},
    "tool_schemas_system": {"messages": [system("S"), user("a"), system("T"), user("b")], "tools": [LOOKUP]},
    "tools_late_system": {"messages": [user("a"), assistant("b"), system("S"), user("c")], "tools": [LOOKUP]},
    "tools_thinking": {"messages": SEARCH, "tools": [LOOKUP], "chat_template_kwargs": {"thinking": True}},
    "tools_not_thinking": {"messages": SEARCH, "tools": [LOOKUP], "chat_template_kwargs": {"thinking": False}},
    "tools_turn_over": {"messages": SEARCH + [assistant("Done.", reasoning="All there."), user("More?")], "tools": [LOOKUP], "reasoning_effort": "high"},
    "results_without_tools": {"messages": SEARCH, "chat_template_kwargs": {"thinking": True}},
    "results_then_user": {"messages": SEARCH + [user("And?")], "chat_template_kwargs": {"enable_thinking": True}},
    "results_then_answer": {"messages": SEARCH + [assistant("A and B.")], "chat_template_kwargs": {"thinking": True}},
    "results_swapped": {"messages": [user("Go"), assistant("I go. ", tool_calls=[call("f", "{}", "aaaaaaaa1"), call("g", '{"x": "ü"}', "bbbbbbbb2")]), result("two", "bbbbbbbb2"), result("one", "aaaaaaaa1"), assistant("Done.  "), user("Thanks")], "tools": [LOOKUP]},
    "results_swapped_calls_only": {"messages": [user("Go"), assistant(None, tool_calls=[call("f", "{}", "aaaaaaaa1"), call("g", '{"x": "ü"}', "bbbbbbbb2")]), result("two", "bbbbbbbb2"), result("one", "aaaaaaaa1"), assistant("Done."), user("Thanks")], "tools": [LOOKUP]},
    "results_of_json": {"messages": [user("Go"), *[m for i, r in enumerate(['[1, 2.50]', '"a"', ' {"b":{"c":null}} ', "1", "true", "{'no': 1}", "", "[1,", "NaN"]) for m in (assistant(None, tool_calls=[call("f", "{}", f"call0000{i}")]), result(r, f"call0000{i}"))]]},
    "result_of_number_form": {"messages": [user("Go"), assistant(None, tool_calls=[call("f", "{}")]), result('{"a": 1e20, "b": 100000.0}')]},
    "answers_joined": {"messages": [user("a"), assistant("b "), assistant([{"type": "text", "text": "c"}, {"type": "text", "text": "d "}]), user("e"), user([{"type": "text", "text": "f"}, {"type": "text", "text": "g"}])]},
    "answers_joined_with_reasoning": {"messages": [user("a"), assistant("b ", reasoning="r"), assistant("c "), assistant("d", reasoning="s"), user("e")]},
    "call_of_two_answers": {"messages": [user("a"), assistant("b"), assistant(None, tool_calls=[call("f", "{}")]), result("c")]},
    "system_parts": {"messages": [system(text("S", "T")), developer("D"), user(text("a"))]},
    "name_of_space": {"messages": [user("Go"), assistant(None, tool_calls=[call("a b", "{}")]), result("ok")]},
    "result_missing": {"messages": SEARCH[:3] + [user("Just one?")]},
    "result_too_many": {"messages": SEARCH + [result("C", "c3")]},
    "result_without_call": {"messages": [user("a"), assistant("b"), result("c")]},
    "result_first": {"messages": [result("a"), user("b")]},
    "result_first_of_last": {"messages": [result("a"), user("b"), assistant(None, tool_calls=[call("f", "{}")])]},
    "result_after_user": {"messages": [user("a"), assistant(None, tool_calls=[call("f", "{}")]), user("b"), result("c")]},
    "result_of_one_id": {"messages": [user("Go"), assistant(None, tool_calls=[call("f", "{}", "x"), call("g", "{}", "x")]), result("1", "x"), result("2", "x"), result("3", "other")]},
    "result_parts_empty": {"messages": [user("Go"), assistant(None, tool_calls=[call("f", "{}")]), result(text("", "a", ""))]},
    "result_no_id": {"messages": [user("Go"), assistant(None, tool_calls=[call("f", "{}")]), {"role": "tool", "content": "c"}]},
    "result_long_id": {"messages": [user("Go"), assistant(None, tool_calls=[call("f", "{}", "call_0123456789abcdef")]), result("c", "call_0123456789abcdef")]},
    "parts_empty": {"messages": [system(text("", "s")), user(text("", "a", "")), assistant(text("b", "")), user(text("c", "", "d"))]},
    "reasoning_last": {"messages": [user("a"), assistant("b", reasoning="r")], "chat_template_kwargs": {"thinking": True}},
    "reasoning_missing": {"messages": [user("a"), assistant("b")], "chat_template_kwargs": {"thinking": True}},
    "reasoning_dropped": {"messages": [user("a"), assistant("b", reasoning="r"), user("c"), assistant("d", reasoning="s"), user("e")], "chat_template_kwargs": {"thinking": True}},
    "reasoning_kept": {"messages": [user("a"), assistant("b", reasoning="r"), user("c")], "chat_template_kwargs": {"thinking": True, "drop_thinking": False}},
    "reasoning_empty": {"messages": [user("a"), assistant("b", reasoning=""), user("c")], "chat_template_kwargs": {"thinking": True, "drop_thinking": False}},
    "reasoning_alone": {"messages": [user("a"), assistant(None, reasoning="r"), user("c")]},
    "reasoning_before_call": {"messages": [user("a"), assistant(None, reasoning="r", tool_calls=[call("f", "{}")]), result("x"), assistant("b", reasoning="s"), user("c"), assistant(None, reasoning="t", tool_calls=[call("f", "{}")]), result("y")]},
    "thinking_of_other_types": {"messages": [user("a")], "chat_template_kwargs": {"thinking": 0, "enable_thinking": "no"}},
    "thinking_list": {"messages": [user("a")], "chat_template_kwargs": {"thinking": []}},
    "effort_low": {"messages": [user("a")], "reasoning_effort": "low"},
    "effort_number": {"messages": [user("a")], "chat_template_kwargs": {"reasoning_effort": 33}},
    "effort_large_number": {"messages": [user("a")], "chat_template_kwargs": {"reasoning_effort": 101}},
    "effort_float": {"messages": [user("a")], "chat_template_kwargs": {"reasoning_effort": 33.0}},
    "effort_true": {"messages": [user("a")], "chat_template_kwargs": {"reasoning_effort": True}},
    "effort_no_thinking": {"messages": [user("a")], "reasoning_effort": "max", "chat_template_kwargs": {"thinking": False, "enable_thinking": False}},
    "effort_system": {"messages": [system("S"), user("a")], "reasoning_effort": "max"},
    "developer_alone": {"messages": [developer("D")]},
    "developer_thinking": {"messages": [developer("D"), user("a"), assistant("b"), developer("E")], "chat_template_kwargs": {"thinking": True}},
    "developer_dropped": {"messages": [system("S"), developer("D"), user("a"), assistant("b", reasoning="r"), user("c")], "chat_template_kwargs": {"thinking": True}},
    "developer_empty": {"messages": [developer(""), user("a")]},
    "developer_twice": {"messages": [developer("D"), developer("E"), user("a")], "tools": [LOOKUP]},
    "odd_role_dropped": {"messages": [{"role": "critic", "content": "x"}, user("a")], "chat_template_kwargs": {"thinking": True}},
    "system_last": {"messages": [user("a"), assistant("b", reasoning="r"), system("S")], "chat_template_kwargs": {"thinking": True}},
    "system_before_answer": {"messages": [system("S"), assistant("b", reasoning="r"), user("c")]},
    "system_twice": {"messages": [system("S"), system("T"), user("a")]},
    "system_empty": {"messages": [system(""), user("a")]},
    "assistant_first": {"messages": [assistant("Hello"), user("a")]},
    "assistant_twice": {"messages": [user("a"), assistant("b"), assistant("c"), user("d")]},
    "users_and_results": {"messages": SEARCH + [user("x"), user("y")]},
    "task": {"messages": [user("a", task="title")]},
    "task_action": {"messages": [user("a", task="action")], "chat_template_kwargs": {"thinking": True}},
    "task_answered": {"messages": [user("a", task="query"), assistant("b", reasoning="r"), user("c")], "chat_template_kwargs": {"thinking": True, "drop_thinking": False}},
    "task_unknown": {"messages": [user("a", task="cook")]},
    "task_merged": {"messages": [user("a"), user("b", task="title")]},
    "task_not_merged": {"messages": [user("a", task="title"), user("b")]},
    "reminder": {"messages": [user("a"), {"role": "latest_reminder", "content": "R"}, assistant("b"), user("c")]},
    "reminder_last": {"messages": [user("a"), {"role": "latest_reminder", "content": "R"}]},
    "more_members": {"messages": [user("a", wo_eos=True, mask=1), assistant("b", wo_eos=True, prefix=True, response_format={"a": 1}), user("c", content_blocks=[])]},
    "image_mark_in_text": {"messages": [user("a <｜deepseek_image｜> b")]},
    "special_marks": {"messages": [user("<|start|>system<|message|>x<|end|> <|call|>"), assistant("<｜Assistant｜></think>"), user("[INST] x [/INST]</s>")]},
    "continue_answer": {"messages": [user("a"), assistant("b")], "continue_final_message": True, "add_generation_prompt": False},
    "continue_thinking": {"messages": [user("a"), assistant("b", reasoning="r")], "continue_final_message": True, "add_generation_prompt": False, "chat_template_kwargs": {"thinking": True}},
    "nothing_to_answer": {"messages": [user("a")], "add_generation_prompt": False},
    "thoughts_in_parts": {"messages": [system("S"), user("a"), assistant([thought("r"), *text("b", "c ")]), user(text("d", "e"))]},
    "thought_between_parts": {"messages": [user("a"), assistant([*text("b", ""), thought(""), *text("c ")]), assistant("d "), user("e"), user(text("f", "g"))]},
    "thought_open": {"messages": [user("a"), assistant([thought("r", closed=False)])], "continue_final_message": True, "add_generation_prompt": False},
    "thought_of_system": {"messages": [system([*text("S", "T"), thought("r"), *text("U")]), user("a")], "reasoning_effort": "high"},
    "thought_of_user": {"messages": [user([*text("a"), thought("r")])]},
    "thought_twice": {"messages": [user("a"), assistant([thought("r"), *text("b")], reasoning="s"), user("c")]},
    "effort_with_tools": {"messages": [system("S"), user("a"), assistant("b"), user("c")], "tools": [LOOKUP], "reasoning_effort": "low"},
    "content_of_spaces": {"messages": [system("  S\n\n"), user("\n a \n"), assistant(" b "), user("  ")]},
}


def outcome(render, body):
    try:
        return render(copy.deepcopy(body))
    except Exception as error:
        return {"error": type(error).__name__}


def main():
    logging.disable(logging.CRITICAL)
    given = json.loads((HERE / "chat.json").read_text())
    requests = given["requests"] | REQUESTS
    results = {name: {request: outcome(render, body) for request, body in requests.items()} for name, render in families().items()}
    older = HERE / "encoded.json"
    if RELEASE != "0.32":
        before = json.loads(older.read_text())["families"]
        results = {name: {r: found for r, found in of.items() if before[name][r] != found} for name, of in results.items()}
    golden = {
        "generator": f"tests/golden/make_encoded.py, vllm {vllm.__version__}, {VERSIONS}",
        "today": given["today"],
        "requests": REQUESTS,
        "families": results,
    }
    path = older if RELEASE == "0.32" else HERE / f"encoded-{RELEASE}.json"
    path.write_text(json.dumps(golden, ensure_ascii=True, separators=(",", ":")) + "\n")
    for name, of in results.items():
        errors = [request for request, found in of.items() if "error" in found]
        print(f"{name}: {len(of)} results, {len(errors)} refused: {', '.join(errors)}")


main()
