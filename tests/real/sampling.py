#!/usr/bin/env python3
"""Members of sampling through gateways, against one plain engine: chats and completions with prompts of three lengths, each with one set of members.

usage: sampling.py REFERENCE GATEWAY…   (base URLs); exit status 1 when an answer differs. All are asked one request at a time, then eight. Compared are
status, text, reasoning, calls of tools, token ids, reasons and usage. The reference is asked once more at the end: what differs there says nothing of a gateway.
"""
import concurrent.futures
import json
import sys
import urllib.error
import urllib.request

REFERENCE, *GATEWAYS = sys.argv[1:]
PARA = "The import statement combines two operations; it searches for the named module, then it binds the results of that search to a name. "
TEXTS = {"short": "What is a module?", "long": PARA * 5, "longer": "Section. " + PARA * 36}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "n": {"type": "integer"}}, "required": ["city", "n"],
          "additionalProperties": False}
TOOL = {"name": "get_weather", "description": "Weather of a city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": TOOL}]
MEMBERS = {
    "nothing": {},
    "one token": {"logit_bias": {"42": 100}},
    "none of a range": {"logit_bias": {str(n): -100 for n in range(100, 600)}},
    "a little": {"logit_bias": {"50": 1.5, "60": -3, "70": 2}},
    "many": {"logit_bias": {str(n): n * 7919 % 11 - 5 for n in range(5, 300)}},
    "bias, seed": {"logit_bias": {"50": 3, "60": -3, "70": 4}, "temperature": 1, "seed": 7},
    "bias, min_tokens": {"logit_bias": {"2": 50}, "min_tokens": 12},
    "bias, penalties": {"logit_bias": {"50": 3}, "presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.2},
    "bias, logprobs": {"logit_bias": {"50": 3}, "logprobs": True, "top_logprobs": 3},
    "bias, stop": {"logit_bias": {"50": 4, "51": 4}, "stop": ["a"]},
    "bias, n": {"logit_bias": {"50": 3}, "n": 2, "temperature": 1, "seed": 3},
    "bias beyond the vocabulary": {"logit_bias": {"99999999": 1}},
    "seed": {"temperature": 1, "seed": 11, "top_p": 0.8, "top_k": 40},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5},
    "bad_words": {"bad_words": ["a", "the"]},
    "allowed_token_ids": {"allowed_token_ids": list(range(40, 120))},
    "stop_token_ids": {"stop_token_ids": list(range(50, 90))},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    "a choice": {"structured_outputs": {"choice": ["yes", "no", "perhaps"]}},
}
OF_CHATS = {
    "tools": {"tools": TOOLS, "tool_choice": "auto"},
    "tools, bias": {"tools": TOOLS, "tool_choice": "auto", "logit_bias": {"50": 3}},
    "a forced tool": {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": TOOL["name"]}}},
    "no thinking, bias": {"chat_template_kwargs": {"enable_thinking": False}, "logit_bias": {"50": 3}},
}


def cases():
    for length, text in TEXTS.items():
        same = {"model": "tiny", "temperature": 0, "max_tokens": 24, "return_token_ids": True}
        for name, members in {**MEMBERS, **OF_CHATS}.items():
            messages = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": text}]
            yield f"chat, {length}: {name}", "/v1/chat/completions", same | members | {"messages": messages}
        for name, members in MEMBERS.items():
            body = same | members | {"prompt": text}
            if body.pop("top_logprobs", None):
                body["logprobs"] = 3
            yield f"completion, {length}: {name}", "/v1/completions", body


def answer(base, path, body):
    """What is compared of an answer."""
    request = urllib.request.Request(base + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            whole = json.loads(reply.read())
    except urllib.error.HTTPError as refused:
        return refused.code
    choices = []
    for choice in whole["choices"]:
        message = choice.get("message") or {}
        calls = [call["function"] for call in message.get("tool_calls") or []]
        choices.append([choice.get("text"), message.get("content"), message.get("reasoning"), calls, choice["finish_reason"],
                        choice.get("stop_reason"), choice.get("token_ids")])
    return choices, whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]


def main():
    asked, wrong = list(cases()), False
    for parallel in (1, 8):
        with concurrent.futures.ThreadPoolExecutor(parallel) as pool:
            def answers(base):
                return list(pool.map(lambda case: answer(base, case[1], case[2]), asked))

            expected = answers(REFERENCE)
            for base in [*GATEWAYS, REFERENCE]:
                different = [case[0] for case, one, other in zip(asked, expected, answers(base)) if one != other]
                print(f"{parallel} at a time, {base}: equal {len(asked) - len(different)}, different {len(different)}", *different, sep="\n  ", flush=True)
                wrong |= bool(different)
    sys.exit(wrong)


main()
