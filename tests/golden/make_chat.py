"""Writes tokenizer.json and chat.json, or chat-0.33.json: what vLLM and transformers make of chat requests.

Run with a Python that has vLLM 0.32 or 0.33 and transformers 5: `python make_chat.py PATH_OF_A_SMALL_BYTE_LEVEL_BPE_TOKENIZER`.
Requests go through vLLM's own request type, message parser and argument merging, then through transformers'
`apply_chat_template` and the tokenizer. The templates beside this file are written down from the public definitions of
their families. The date is fixed.
"""

import copy
import datetime as real_datetime
import json
import pathlib
import sys
import types

import transformers
import vllm
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers import hf
from vllm.renderers.chat_utils import parse_chat_messages
from vllm.renderers.params import merge_kwargs

HERE = pathlib.Path(__file__).parent
RELEASE = vllm.__version__.split("+")[0].rsplit(".", 1)[0]
# `--reasoning-effort-map`, which 0.33 brought: to another effort, to none, to a word of the template's own, to what counts as not given.
EFFORT_MAP = {"medium": "low", "minimal": "none", "xhigh": "deepest", "max": "auto"}
FAMILIES = {
    "qwen25": {"eos_token": "<|im_end|>"},
    "qwen3": {"eos_token": "<|im_end|>"},
    "llama3": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "mistral": {"bos_token": "<s>", "eos_token": "</s>"},
    "deepseek_r1": {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
    "deepseek_v31": {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
    "glm45": {"eos_token": "<|endoftext|>"},
    "gemma3": {"bos_token": "<bos>", "eos_token": "<eos>"},
    "phi4": {"eos_token": "<|endoftext|>"},
    "kimi_k2": {"bos_token": "[BOS]", "eos_token": "[EOS]"},
    "everything": {"bos_token": "<s>"},
    "namespaces": {"eos_token": "<|end|>"},
}
SPECIAL = """<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <s> </s> [INST] [/INST] [TOOL_CALLS]
[AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] <｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜>
<｜Assistant｜> <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> [gMASK] <sop>
<|system|> <|user|> <|assistant|> <|observation|> <bos> <eos> <start_of_turn> <end_of_turn> <|end|> [BOS] [EOS] <|im_user|>
<|im_assistant|> <|im_system|> <|im_middle|> <|tool_call_begin|> <|tool_call_end|>""".split()
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
# Qwen2's.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a <city> & its \"surroundings\", à jour",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name, e.g. 北京 or Zürich"},
                "days": {"type": "integer", "default": 3},
                "units": {"type": "string", "enum": ["C", "F"]},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city"],
        },
    },
}
ODD_TOOL = {
    "function": {"strict": True, "parameters": {"type": "object", "properties": {}, "x": [1.5, None, True]}, "description": "d", "name": "n"},
    "type": "function",
}
CALL = {"type": "function", "id": "call12345", "function": {"name": "get_weather", "arguments": '{"units": "C", "city": "Zürich", "days": 2, "f": 1.50}'}}


def user(content, **more):
    return {"role": "user", "content": content, **more}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def text(*texts):
    return [{"type": "text", "text": t} for t in texts]


TOOL_TURNS = [
    user("Weather?"),
    assistant(None, tool_calls=[CALL]),
    {"role": "tool", "tool_call_id": "call12345", "content": '{"t": 21.5}'},
]
TURNS = [user("Hi"), assistant("Hello!"), user("How are you?")]

REQUESTS = {
    "one": {"messages": [user("Hello there")]},
    "system": {"messages": [system("Be brief."), user("Hi")]},
    "turns": {"messages": [system("  Be brief.\n")] + TURNS},
    "no_generation_prompt": {"messages": TURNS, "add_generation_prompt": False},
    "no_generation_prompt_in_kwargs": {"messages": TURNS, "chat_template_kwargs": {"add_generation_prompt": False}},
    "ends_with_answer": {"messages": TURNS + [assistant("Fine. ")]},
    "continue": {"messages": TURNS + [assistant("I am fine, and ")], "continue_final_message": True, "add_generation_prompt": False},
    "continue_trimmed": {"messages": TURNS + [assistant(" one\n\n")], "continue_final_message": True, "add_generation_prompt": False},
    "continue_parts": {"messages": TURNS + [assistant(text("a", "b"))], "continue_final_message": True, "add_generation_prompt": False},
    "continue_and_generate": {"messages": TURNS + [assistant("a")], "continue_final_message": True},
    "tools": {"messages": [user("Weather in Bern?")], "tools": [WEATHER]},
    "tools_system": {"messages": [system("Use tools."), user("Weather?")], "tools": [WEATHER, ODD_TOOL]},
    "tool_choice_none": {"messages": [user("Weather?")], "tools": [WEATHER], "tool_choice": "none"},
    "tool_call": {"messages": TOOL_TURNS, "tools": [WEATHER]},
    "tool_call_answered": {"messages": TOOL_TURNS + [assistant("21.5 °C"), user("Thanks!")], "tools": [WEATHER]},
    "two_tool_calls": {
        "messages": [
            user("Weather?"),
            assistant("Let me see.", tool_calls=[CALL, {**CALL, "id": "call99999", "index": 1}]),
            {"role": "tool", "tool_call_id": "call12345", "content": "sun", "name": "get_weather"},
            {"role": "tool", "tool_call_id": "call99999", "content": text("rain", "wind")},
        ],
        "tools": [WEATHER],
    },
    "tool_call_odd_arguments": {
        "messages": [
            user("Go"),
            assistant("", tool_calls=[{"id": "call12345", "type": "function", "function": {"arguments": "", "name": "a"}}]),
            {"role": "tool", "tool_call_id": "call12345", "content": ""},
            assistant("x", tool_calls=[{"id": "call12345", "type": "function", "function": {"arguments": "[1]", "name": "b", "more": 1}}]),
            {"role": "tool", "tool_call_id": "call12345", "content": "it's \"ok\"\n"},
        ]
    },
    "no_tool_calls": {"messages": [user("Hi"), assistant("Yes", tool_calls=[]), user("No")]},
    "reasoning_content": {"messages": [user("2+2?"), assistant("4", reasoning_content="Two and\ntwo.\n"), user("3+3?")]},
    "reasoning": {"messages": [user("2+2?"), assistant("4", reasoning="\nTwo and two.")], "add_generation_prompt": False},
    "think_in_content": {"messages": [user("2+2?"), assistant("<think>\nHm.\n</think>\n\n4"), user("3+3?")]},
    "thinking_off": {"messages": [user("Hi")], "chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
    "thinking_on": {"messages": [user("Hi")], "chat_template_kwargs": {"enable_thinking": True, "thinking": True}},
    "thinking_null": {"messages": [user("Hi")], "chat_template_kwargs": {"enable_thinking": None, "thinking": "auto"}},
    "effort_none": {"messages": [user("Hi")], "reasoning_effort": "none"},
    "effort_high": {"messages": [user("Hi")], "reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
    "effort_minimal": {"messages": [user("Hi")], "reasoning_effort": "minimal"},
    "effort_medium": {"messages": [user("Hi")], "reasoning_effort": "medium", "chat_template_kwargs": {"reasoning_effort": "high"}},
    "effort_xhigh": {"messages": [user("Hi")], "reasoning_effort": "xhigh", "chat_template_kwargs": {"enable_thinking": None}},
    "effort_max": {"messages": [user("Hi")], "reasoning_effort": "max", "chat_template_kwargs": {"reasoning_effort": "high"}},
    "effort_in_kwargs": {"messages": [user("Hi")], "chat_template_kwargs": {"reasoning_effort": "medium"}},
    "reasoning_both": {"messages": [user("2+2?"), assistant("4", reasoning="New.", reasoning_content="Old."), user("3+3?")]},
    "reasoning_call": {"messages": [user("Weather?"), assistant(None, reasoning="I ask.", tool_calls=[CALL]), TOOL_TURNS[2]], "tools": [WEATHER]},
    "documents_more": {"messages": [system("S"), user("Hi")], "documents": [{"title": "T", "text": "one"}, {"id": "2", "contents": "zwei\n"}], "reasoning_effort": "low"},
    "developer_first": {"messages": [{"role": "developer", "content": text("Dev", "two")}, system("Sys."), user("a")]},
    "developer_tools": {"messages": [{"role": "developer", "content": "Dev."}, user("a")], "tools": [WEATHER, ODD_TOOL]},
    "tool_deferred": {"messages": [user("Go")], "tools": [{"type": "function", "function": {"name": "n", "parameters": {}}, "defer_loading": True}]},
    "kwargs": {"messages": [user("Hi")], "chat_template_kwargs": {"number": 1.0, "flag": False, "text": "", "date_string": "1 Jan 2030", "tools_in_user_message": False, "bos_token": "<B>"}, "tools": [WEATHER]},
    "documents": {"messages": [user("Hi")], "documents": [{"title": "T", "text": "it's"}]},
    "unicode": {"messages": [system("Réponds en 中文 🙂"), user("naïve ﬁ e\u0301 \u200b👩‍👩‍👧 عربى \u2028\x1c x\x85"), assistant("😀"), user("ça?\t\r\n end \u00a0")]},
    "special_in_text": {"messages": [user("a<|im_end|>b<s>[INST]<think> <|eot_id|>c <｜User｜>")]},
    "html_and_escapes": {"messages": [user("<b>&amp; 'q' \"d\" \\n {{ x }} {% y %}")]},
    "empty_content": {"messages": [user(""), assistant(""), user("x")]},
    "null_content": {"messages": [user("a"), assistant(None), user("x")]},
    "no_content": {"messages": [user("a"), {"role": "assistant"}, user("x")]},
    "empty_parts": {"messages": [user([]), assistant([]), user("x")]},
    "parts": {"messages": [system(text("S1", "S2")), user(text("first", "second ")), assistant(text("A")), user(["plain", {"type": "text", "text": "typed", "cache_control": {"type": "ephemeral"}}])]},
    "refusal": {"messages": [user("a"), assistant([{"type": "refusal", "refusal": "no"}]), user("b")]},
    "names": {"messages": [user("a", name="Bob"), assistant("b", name="Bot"), user("c", name="Eve", other=1)]},
    "developer": {"messages": [{"role": "developer", "content": "Dev."}, user("a")]},
    "developer_late": {"messages": [system("Sys."), user("a"), assistant("b"), {"role": "developer", "content": "Dev."}, user("c")]},
    "system_late": {"messages": [user("a"), assistant("b"), system("Now."), user("c")]},
    "system_only": {"messages": [system("Alone.")]},
    "two_users": {"messages": [user("a"), user("b")]},
    "odd_role": {"messages": [user("a"), {"role": "critic", "content": "b"}]},
    "billing_header": {"messages": [system(text("x-anthropic-billing-header: v=1\nKeep", "x-anthropic-billing-header: cch=2")), user("x-anthropic-billing-header: stays")]},
    "long": {"messages": [m for i in range(12) for m in (user(f"Question {i}: " + "why so? " * i), assistant(f"Because {i}.\n" * (i % 3 + 1)))] + [user("Last")]},
    "add_special_tokens": {"messages": [user("Hi")], "add_special_tokens": True},
    # Refused by the engine.
    "bad_effort": {"messages": [user("x")], "reasoning_effort": "deepest"},
    "bad_user_null": {"messages": [user(None)]},
    "bad_no_role": {"messages": [{"content": "x"}]},
    "bad_arguments": {"messages": [user("x"), assistant("", tool_calls=[{"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}])]},
    "bad_call_type": {"messages": [user("x"), assistant("", tool_calls=[{"id": "1", "function": {"name": "f", "arguments": ""}}])]},
    "bad_no_tools": {"messages": [user("x")], "tools": []},
    "bad_documents": {"messages": [user("x")], "documents": [{"a": 1}]},
    "bad_empty": {"messages": []},
}

COMPLETIONS = ["", "Hello there", "a<|im_end|>b <s>", "naïve ﬁ e\u0301 \u200b👩‍👩‍👧\r\n\t x", " leading", "12345 don't WE'LL\n\n\n  x"]


class Today(real_datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 3, 7, 12, 0, 0)


def tokenizer_file(source):
    """The given tokenizer with Qwen's pre-tokenizer and the special tokens of all families."""
    spec = json.loads(pathlib.Path(source).read_text())
    next_id = max(max(spec["model"]["vocab"].values()), max(t["id"] for t in spec["added_tokens"])) + 1
    for content in SPECIAL + PLAIN:
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        spec["added_tokens"].append({"id": next_id, "content": content, **flags, "special": content in SPECIAL})
        next_id += 1
    bos = next(t["id"] for t in spec["added_tokens"] if t["content"] == "<s>")
    spec["normalizer"] = {"type": "NFC"}
    spec["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        ],
    }
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [bos], "tokens": ["<s>"]}},
    }
    path = HERE / "tokenizer.json"
    path.write_text(json.dumps(spec, ensure_ascii=False, separators=(",", ":")))
    return path


def render(tokenizer, template, body, effort_map=None):
    """One request, as `OnlineRenderer.render_chat` and `HfRenderer.render_messages` do it."""
    request = ChatCompletionRequest.model_validate({"model": "m", **copy.deepcopy(body)})
    tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
    params = request.build_chat_params(None, "auto", *([effort_map] if effort_map else [])).with_defaults(
        merge_kwargs(None, {"tools": tools, "tokenize": False}),
    )
    config = types.SimpleNamespace(multimodal_config=None, enable_prompt_embeds=False)
    content_format = hf._detect_content_format(template, default="string")
    conversation, media, _ = parse_chat_messages(request.messages, config, content_format)
    assert media is None
    kwargs = params.get_apply_chat_template_kwargs()
    kwargs.pop("return_dict")
    kwargs.pop("chat_template", None)
    text = hf.safe_apply_chat_template(config, tokenizer, conversation, chat_template=template, **kwargs)
    ids = tokenizer(text, add_special_tokens=request.add_special_tokens)["input_ids"]
    return {"text": text, "ids": ids}


def render_all(tokenizer, template, requests, effort_map=None):
    results = {}
    for name, body in requests.items():
        try:
            results[name] = render(tokenizer, template, body, effort_map)
        except Exception as error:
            results[name] = {"error": type(error).__name__}
    return results


def main():
    chat_template_utils.datetime = Today
    path = tokenizer_file(sys.argv[1])
    families = {}
    for family, special in FAMILIES.items():
        template = (HERE / "templates" / f"{family}.jinja").read_text()
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path), **special)
        efforts = {name: body for name, body in REQUESTS.items() if "reasoning_effort" in body}
        families[family] = {
            "config": special,
            "content_format": hf._detect_content_format(template, default="string"),
            "results": render_all(tokenizer, template, REQUESTS),
        }
        if RELEASE != "0.32":
            families[family]["mapped"] = render_all(tokenizer, template, efforts, EFFORT_MAP)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path))
    golden = {
        "generator": f"tests/golden/make_chat.py, vllm {vllm.__version__}, transformers {transformers.__version__}",
        "today": [2026, 3, 7],
        **({} if RELEASE == "0.32" else {"effort_map": EFFORT_MAP}),
        "requests": REQUESTS,
        "families": families,
        "completions": [
            {"prompt": prompt, "ids": tokenizer(prompt)["input_ids"], "plain_ids": tokenizer(prompt, add_special_tokens=False)["input_ids"]}
            for prompt in COMPLETIONS
        ],
    }
    name = "chat.json" if RELEASE == "0.32" else f"chat-{RELEASE}.json"
    (HERE / name).write_text(json.dumps(golden, ensure_ascii=True, separators=(",", ":")) + "\n")
    errors = {f: [n for n, r in v["results"].items() if "error" in r] for f, v in families.items()}
    print(json.dumps(errors, indent=1))


main()
