"""Makes legs.json: what both legs of a request must be, in every dialect, for every API, streamed and not.

Independent of the gateway: each rule is written down from a reference, named where it stands. `{name:kind}` in an expected text stands
for what is new with each request; the same name is the same text on both legs.
"""
import copy
import json

# --- what a client sends; the last members are none of a client's business -----------------------------------------------------
EVIL = {"kv_transfer_params": {"remote_host": "evil"}, "ec_transfer_params": {"evil": 1}, "bootstrap_host": "evil",
        "bootstrap_room": 1, "data_parallel_rank": 3}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "number"}}}}}]
BODIES = {
    "completions": ("/v1/completions", {"model": "sim", "prompt": "Grüße, 世界 \"x\"", "max_tokens": 16, "temperature": 0.7,
                                        "seed": 3, "n": 1, "stop": ["\n"], "user": "u", "unknown_member": [1.5, None, {"a": "b"}]}),
    "chat": ("/v1/chat/completions", {"model": "sim", "messages": [{"role": "system", "content": "be brief"},
                                                                   {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
                                      "max_completion_tokens": 16, "tools": TOOLS, "tool_choice": "auto", "logprobs": True,
                                      "top_logprobs": 2}),
    "messages": ("/v1/messages", {"model": "sim", "max_tokens": 16, "system": "be brief",
                                  "messages": [{"role": "user", "content": "hi"}]}),
    "responses": ("/v1/responses", {"model": "sim", "input": "hi", "max_output_tokens": 16, "store": True, "background": False}),
    "generate": ("/inference/v1/generate", {"model": "sim", "token_ids": [1, 2, 3],
                                            "sampling_params": {"max_tokens": 16, "temperature": 0.5}}),
}


def cleaned(body):
    """What no client may say: vLLM 0.32 would act on it."""
    return {key: value for key, value in body.items() if key not in EVIL}


def one_token(api, body):
    """vllm-ascend's load_balance_proxy_server_example.py, send_request_to_service: stream, max_tokens, min_tokens,
    max_completion_tokens, stream_options. For the other APIs the member that caps the answer there (vLLM 0.32, protocol.py of each);
    one choice and nothing that outlives the leg, which the example leaves to its clients."""
    body = cleaned(body)
    body["stream"] = False
    body.pop("stream_options", None)
    if api in ("completions", "chat"):
        body["max_tokens"] = body["min_tokens"] = 1
        if "max_completion_tokens" in body:
            body["max_completion_tokens"] = 1
        if "n" in body:
            body["n"] = 1
    elif api == "messages":
        body["max_tokens"] = 1
    elif api == "responses":
        body["max_output_tokens"] = 1
        body["store"] = False
        body.pop("background", None)
    else:
        body["sampling_params"] = {**body["sampling_params"], "max_tokens": 1, "min_tokens": 1, "n": 1}
    return body


def with_params(body, params):
    return {**body, "kv_transfer_params": params}


# The same example proxy; vLLM's toy_proxy_server.py of NIXL.
NIXL_ASK = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
            "remote_host": None, "remote_port": None}
# Recorded from vLLM 0.32.0, NixlConnector.
NIXL_WORD = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2, 3]],
             "remote_engine_id": "5b1f2a90-6d4e-4d0a-9df5-0b1c6a3b9f11", "remote_request_id": "cmpl-x-0-1a2b3c4d",
             "remote_host": "10.0.0.1", "remote_port": 5600, "tp_size": 1, "remote_num_tokens": 40}
# Recorded from vLLM 0.32.0, NixlPushConnector.
PUSH_WORD = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2]], "remote_engine_id": "e",
             "remote_request_id": "cmpl-a-0-11223344", "remote_host": "127.0.0.1", "remote_port": 5600, "tp_size": 1, "dcp_size": 1,
             "pp_size": 1, "remote_num_tokens": 40, "transfer_mode": "push", "remote_prefill_cached_tokens": 0}
# request_finished of vLLM 0.32.0's moriio_connector.py.
MORIIO_WORD = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2]], "remote_engine_id": "10.0.0.1:6301",
               "remote_host": "10.0.0.1", "remote_handshake_port": 6301, "remote_notify_port": 61005, "remote_dp_rank": 0,
               "remote_dp_rank_override": True, "remote_dp_size": 1, "remote_dp_size_local": 1, "tp_size": 8, "transfer_id": "tx-1"}


def kv_transfer(api, body):
    return {"prefill": with_params(one_token(api, body), NIXL_ASK), "decode": with_params(cleaned(body), NIXL_WORD), "word": NIXL_WORD}


def pool(api, body):
    """A store alone carries the KV: vllm-ascend's example proxy, whose prefiller answers null."""
    return {"prefill": one_token(api, body), "decode": cleaned(body), "word": None}


def mooncake(api, body):
    """vLLM 0.32's mooncake_connector_proxy.py."""
    ask = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "{transfer:hex32}"}
    told = {"do_remote_prefill": True, "do_remote_decode": False, "transfer_id": "{transfer:hex32}",
            "remote_engine_id": "{engine:any}", "remote_bootstrap_addr": "http://127.0.0.1:{bootstrap:port}"}
    return {"prefill": with_params(one_token(api, body), ask), "decode": with_params(cleaned(body), told), "word": None}


def nixl_push(api, body):
    """The first request to a prefiller: vLLM's disagg_proxy_pushconnector_demo.py, one leg after the other. APIs whose engine ids are
    not made of the header go to a decoder alone."""
    if api in ("responses", "generate"):
        return {"prefill": None, "decode": cleaned(body), "id": "golden"}
    return {"prefill": with_params(one_token(api, body), NIXL_ASK), "decode": with_params(cleaned(body), PUSH_WORD), "word": PUSH_WORD,
            "id": "{id:uuid}"}


def nixl_push_again(api, body):
    """Both legs at once, as that proxy does: the decoder is told only what is the same for all of a prefiller's requests."""
    if api in ("responses", "generate"):
        return nixl_push(api, body)
    known = {key: value for key, value in PUSH_WORD.items() if key not in ("remote_num_tokens", "remote_prefill_cached_tokens")}
    known.update(remote_request_id="", remote_block_ids=[])
    return {"prefill": with_params(one_token(api, body), NIXL_ASK), "decode": with_params(cleaned(body), known), "word": PUSH_WORD,
            "id": "{id:uuid}"}


def sglang(api, body):
    """SGLang's pd_router: the same room for both, else the client's body; the prefill is not streamed here, since nobody reads it. It drops the
    bootstrap fields of the other APIs (0.5.23), which are refused."""
    if api not in ("chat", "completions"):
        return {"status": 400, "prefill": None, "decode": None}
    meet = {"bootstrap_host": "127.0.0.1", "bootstrap_port": "{bootstrap:port}", "bootstrap_room": "{room:port}"}
    prefill = {**cleaned(body), **meet, "stream": False}
    prefill.pop("stream_options", None)
    return {"prefill": prefill, "decode": {**cleaned(body), **meet}, "word": None}


def layerwise(api, body):
    """vllm-ascend's load_balance_proxy_layerwise_server_example.py; the prefiller is told what the decoder said when it called.
    APIs whose names on the decoder are not known go to it alone."""
    if api in ("responses", "generate"):
        return {"prefill": None, "decode": cleaned(body), "id": "golden"}
    told = {"do_remote_decode": False, "do_remote_prefill": True, "metaserver": "http://127.0.0.1:{gateway:port}/v1/metaserver"}
    return {"prefill": with_params(one_token(api, body), "{called:object}"), "decode": with_params(cleaned(body), told),
            "id": "{id:hex32}"}


def moriio(api, body):
    """vLLM 0.32's moriio_toy_proxy_server.py in READ; the peer's address is in the hand-off instead of the id, as llm-d's sidecar
    has it, and the answer's length is the client's (the toy takes one token off). No client chooses an id where the toy writes addresses."""
    ask = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
           "transfer_id": "tx-{transfer:hex32}"}
    return {"prefill": with_params(one_token(api, body), ask), "decode": with_params(cleaned(body), MORIIO_WORD), "word": MORIIO_WORD,
            "id": "{id:uuid}"}


cases = []
for dialect in (kv_transfer, pool, mooncake, nixl_push, nixl_push_again, sglang, layerwise, moriio):
    for api, (path, plain) in BODIES.items():
        for stream in (False, True):
            body = {**copy.deepcopy(plain), "stream": stream}
            if stream and api in ("completions", "chat"):
                body["stream_options"] = {"include_usage": True}
            body.update(copy.deepcopy(EVIL))
            case = {"dialect": dialect.__name__, "api": api, "path": path, "stream": stream, "client": body, "id": "golden",
                    "status": 200}
            case.update(dialect(api, body))
            cases.append(case)
with open("legs.json", "w", encoding="utf-8") as out:
    out.write("[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]\n")
