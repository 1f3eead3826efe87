"""Families of make_encoded.py: a function each, from a request's body to `{"text": …}` or `{"pieces": …}`."""

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


def deepseek(renderer_module, renderer_class, wrap):
    """A renderer of DeepSeek's chats, with its model's tokenizer replaced."""
    cls = getattr(__import__(f"vllm.renderers.{renderer_module}", fromlist=[renderer_class]), renderer_class, None)
    if cls is None:
        return None
    renderer = object.__new__(cls)
    renderer.model_config = CONFIG
    tokenizer = wrap(Vocabulary())
    renderer.get_tokenizer = lambda: tokenizer

    def render(body):
        request = ChatCompletionRequest.model_validate({"model": "m", **body})
        _, prompt = renderer.render_messages(request.messages, params_of(request))
        return {"text": prompt["prompt"]}

    return render


def harmony():
    """gpt-oss's chats: pieces, special tokens as `["<|start|>"]` and texts as strings."""
    from openai_harmony import Message  # noqa: F401  (the vocabulary comes with the package)
    from vllm.entrypoints.openai.parser.harmony_utils import get_encoding
    from vllm.renderers.online_renderer import OnlineRenderer

    encoding = get_encoding()
    special = {encoding.encode(token, allowed_special="all")[0]: token for token in encoding.special_tokens_set}
    renderer = object.__new__(OnlineRenderer)
    renderer.supports_browsing = renderer.supports_code_interpreter = False
    renderer.reasoning_effort_map = {}
    renderer.renderer = types.SimpleNamespace()

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
        request = ChatCompletionRequest.model_validate({"model": "m", **body})
        _, (prompt,) = renderer._make_request_with_harmony(request, tools_of(request) is not None)
        ids = prompt["prompt_token_ids"]
        return {"pieces": pieces(ids), "tokens": len(ids)}

    return render


def mistral(version):
    """Mistral's chats by a tokenizer of this version: mistral-common's own vocabulary, and all special tokens."""
    import logging
    import tempfile
    import warnings

    from mistral_common.tokens.tokenizers.base import SpecialTokens
    from vllm.renderers.mistral import MistralRenderer
    from vllm.tokenizers import mistral as vllm_mistral

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    data = pathlib.Path(mistral_common.__file__).parent / "data/tekken_240911.json"
    spec = json.loads(data.read_text())
    names = [token.value for token in SpecialTokens]
    spec["special_tokens"] = [{"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(names)]
    spec["config"]["version"] = version
    spec["vocab"] = spec["vocab"][: 2048 - 256]
    spec["config"] |= {"default_vocab_size": 2048, "default_num_special_tokens": 256}
    with tempfile.TemporaryDirectory() as root:
        (pathlib.Path(root) / "tekken.json").write_text(json.dumps(spec))
        tokenizer = vllm_mistral.MistralTokenizer.from_pretrained(root)
    renderer = object.__new__(MistralRenderer)
    renderer.model_config = CONFIG
    renderer.get_tokenizer = lambda: tokenizer
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

    def render(body):
        request = ChatCompletionRequest.model_validate({"model": "m", **body})
        # As `OnlineRenderer.render_chat` does before.
        vllm_mistral.maybe_serialize_tool_calls(request)
        vllm_mistral.truncate_tool_call_ids(request)
        vllm_mistral.validate_request_params(request)
        _, prompt = renderer.render_messages(request.messages, params_of(request, tokenize=True))
        return {"pieces": pieces(prompt["prompt_token_ids"])}

    return render


def families():
    from vllm.tokenizers.deepseek_v4 import get_deepseek_v4_tokenizer
    from vllm.tokenizers.deepseek_v32 import get_deepseek_v32_tokenizer
    from vllm.tokenizers.deepseek_v41 import get_deepseek_v41_tokenizer

    v41 = deepseek("deepseek_v4", "DeepseekV41Renderer", get_deepseek_v41_tokenizer)
    # 0.32 renders V4.1 by V4's renderer.
    v41 = v41 or deepseek("deepseek_v4", "DeepseekV4Renderer", get_deepseek_v41_tokenizer)
    return {
        "deepseek_v32": deepseek("deepseek_v32", "DeepseekV32Renderer", get_deepseek_v32_tokenizer),
        "deepseek_v4": deepseek("deepseek_v4", "DeepseekV4Renderer", get_deepseek_v4_tokenizer),
        "deepseek_v41": v41,
        "gpt_oss": harmony(),
        **{f"mistral_{version}": mistral(version) for version in ("v3", "v7", "v11", "v13")},
    }


FAMILIES = families()
