"""Families of make_encoded.py: a function each, from a request's body to `{"text": …}` or `{"pieces": …}`.

`tests/real/chat_forms.py` takes the same renderers for the text or the token ids alone (`text_by`, `harmony_ids`, `mistral_ids`).
"""

import json
import os
import pathlib
import types
from importlib.metadata import version as version_of

import mistral_common
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers.params import merge_kwargs

CONFIG = types.SimpleNamespace(multimodal_config=None, enable_prompt_embeds=False)
TODAY = "2026-03-07"
VERSIONS = ", ".join(f"{package} {version_of(package)}" for package in ("transformers", "oss-harmony", "mistral-common"))
os.environ["VLLM_SYSTEM_START_DATE"] = TODAY


def tools_of(request):
    return None if request.tools is None else [tool.model_dump() for tool in request.tools]


def params_of(request, tokenize=False):
    """As `OnlineRenderer.preprocess_chat` builds them."""
    return request.build_chat_params(None, "auto").with_defaults(merge_kwargs(None, {"tools": tools_of(request), "tokenize": tokenize}))


class Vocabulary:
    """What the encoders wrap: they use nothing of a tokenizer unless they are told to tokenise."""

    def get_added_vocab(self):
        return {}


def text_by(renderer_module, renderer_class, wrap):
    """The text that a renderer of DeepSeek's chats makes of a request, with its model's tokenizer replaced."""
    cls = getattr(__import__(f"vllm.renderers.{renderer_module}", fromlist=[renderer_class]), renderer_class)
    renderer = object.__new__(cls)
    renderer.model_config = CONFIG
    tokenizer = wrap(Vocabulary())
    renderer.get_tokenizer = lambda: tokenizer

    def render(body):
        request = ChatCompletionRequest.model_validate({"model": "m", **body})
        _, prompt = renderer.render_messages(request.messages, params_of(request))
        return prompt["prompt"]

    return render


def deepseek(*renderer):
    text = text_by(*renderer)
    return lambda body: {"text": text(body)}


def harmony_ids():
    """The token ids of gpt-oss's chats, by the vocabulary that comes with the package."""
    from vllm.renderers.online_renderer import OnlineRenderer

    renderer = object.__new__(OnlineRenderer)
    renderer.supports_browsing = renderer.supports_code_interpreter = False
    renderer.reasoning_effort_map = {}
    renderer.renderer = types.SimpleNamespace()

    def render(body):
        request = ChatCompletionRequest.model_validate({"model": "m", **body})
        _, (prompt,) = renderer._make_request_with_harmony(request, tools_of(request) is not None)
        return prompt["prompt_token_ids"]

    return render


def harmony():
    """gpt-oss's chats: pieces, special tokens as `["<|start|>"]` and texts as strings."""
    from vllm.entrypoints.openai.parser.harmony_utils import get_encoding

    encoding = get_encoding()
    special = {encoding.encode(token, allowed_special="all")[0]: token for token in encoding.special_tokens_set}
    ids_of = harmony_ids()

    def pieces(ids):
        found = []
        for token in ids:
            if token in special:
                found.append([special[token]])
            elif found and isinstance(found[-1], list) and found[-1] and isinstance(found[-1][0], int):
                found[-1].append(token)
            else:
                found.append([token])
        return [piece if isinstance(piece[0], str) else encoding.decode(piece) for piece in found]

    def render(body):
        ids = ids_of(body)
        return {"pieces": pieces(ids), "tokens": len(ids)}

    return render


def without_images(message):
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    return {**message, "content": [{"type": "text", "text": "-"} if isinstance(part, dict) and part.get("type") == "image_url" else part for part in parts]}


def mistral_file(version, base_tokens, sees=False):
    """A tekken.json of this version: mistral-common's own vocabulary up to a size, and all special tokens. The model sees images, or not."""
    from mistral_common.tokens.tokenizers.base import SpecialTokens

    data = pathlib.Path(mistral_common.__file__).parent / "data/tekken_240911.json"
    spec = json.loads(data.read_text())
    names = [token.value for token in SpecialTokens]
    spec["special_tokens"] = [{"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(names)]
    spec["vocab"] = spec["vocab"][:base_tokens]
    spec["config"] |= {"version": version, "default_vocab_size": base_tokens + 256, "default_num_special_tokens": 256}
    if version == "v15":
        efforts = {"type": "enum", "accepts_none": True, "default": "none", "values": ["none", "low", "high"]}
        spec["model_settings_builder"] = {"reasoning_effort": efforts}
    if sees:
        spec["multimodal" if version in ("v3", "v7") else "image"] = {"image_patch_size": 16, "max_image_size": 64, "spatial_merge_size": 1}
    return json.dumps(spec)


def mistral_ids(version, base_tokens, sees=False):
    """Mistral's chats by a tokenizer of this version: the token ids of a request, and the tokenizer."""
    import logging
    import tempfile
    import warnings

    from vllm.renderers import mistral
    from vllm.tokenizers import mistral as vllm_mistral

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as root:
        (pathlib.Path(root) / "tekken.json").write_text(mistral_file(version, base_tokens, sees))
        tokenizer = vllm_mistral.MistralTokenizer.from_pretrained(root)
    renderer = object.__new__(mistral.MistralRenderer)
    if sees:
        parse = mistral.parse_chat_messages
        # It loads images for the model, which is not here, and reads calls in place.
        mistral.parse_chat_messages = lambda messages, config, **more: parse([without_images(message) for message in messages], config, **more)
    renderer.model_config = CONFIG
    renderer.get_tokenizer = lambda: tokenizer

    def render(body):
        request = ChatCompletionRequest.model_validate({"model": "m", **body})
        # As `OnlineRenderer.render_chat` does before.
        vllm_mistral.maybe_serialize_tool_calls(request)
        vllm_mistral.truncate_tool_call_ids(request)
        vllm_mistral.validate_request_params(request)
        _, prompt = renderer.render_messages(request.messages, params_of(request, tokenize=True))
        return prompt["prompt_token_ids"]

    return render, tokenizer


def mistral(version):
    ids_of, tokenizer = mistral_ids(version, 2048 - 256)
    special = tokenizer.tokenizer.num_special_tokens

    def pieces(ids):
        found = []
        for token in ids:
            if token < special:
                found.append([tokenizer.tokenizer.id_to_piece(token)])
            elif found and isinstance(found[-1][0], int):
                found[-1].append(token)
            else:
                found.append([token])
        return [piece if isinstance(piece[0], str) else tokenizer.tokenizer.decode(piece) for piece in found]

    return lambda body: {"pieces": pieces(ids_of(body))}


def deepseek_renderers():
    """By family, where vLLM has its renderer, and what wraps a tokenizer."""
    from vllm.renderers import deepseek_v4
    from vllm.tokenizers.deepseek_v4 import get_deepseek_v4_tokenizer
    from vllm.tokenizers.deepseek_v32 import get_deepseek_v32_tokenizer
    from vllm.tokenizers.deepseek_v41 import get_deepseek_v41_tokenizer

    # 0.32 renders V4.1 by V4's renderer.
    v41 = "DeepseekV41Renderer" if hasattr(deepseek_v4, "DeepseekV41Renderer") else "DeepseekV4Renderer"
    return {
        "deepseek_v32": ("deepseek_v32", "DeepseekV32Renderer", get_deepseek_v32_tokenizer),
        "deepseek_v4": ("deepseek_v4", "DeepseekV4Renderer", get_deepseek_v4_tokenizer),
        "deepseek_v41": ("deepseek_v4", v41, get_deepseek_v41_tokenizer),
    }


def families():
    return {
        **{name: deepseek(*renderer) for name, renderer in deepseek_renderers().items()},
        "gpt_oss": harmony(),
        **{f"mistral_{version}": mistral(version) for version in ("v3", "v7", "v11", "v13", "v15")},
    }
