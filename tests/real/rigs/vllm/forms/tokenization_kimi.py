"""A tokenizer of the form of Kimi's models, for the rig: a rank file of tiktoken, and special tokens behind its ranks.

`make_form.py` puts it beside a tiny model. Pattern, limits and the numbers of special tokens are those of Moonshot's code; the rest is the rig's.
"""

import tiktoken
from tiktoken.load import load_tiktoken_bpe
from transformers import PreTrainedTokenizer


def runs(text, most):
    """Cuts where more than `most` characters in a row are all white space, or all none."""
    start = length = 0
    for at, char in enumerate(text):
        length = length + 1 if at and char.isspace() == text[at - 1].isspace() else 1
        if length > most:
            yield text[start:at]
            start, length = at, 1
    yield text[start:]


class TikTokenTokenizer(PreTrainedTokenizer):
    vocab_files_names = {"vocab_file": "tiktoken.model"}
    model_input_names = ["input_ids", "attention_mask"]
    num_reserved_special_tokens = 256
    pat_str = "|".join(
        [
            r"""[\p{Han}]+""",
            r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
            r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
            r"""\p{N}{1,3}""",
            r""" ?[^\s\p{L}\p{N}]+[\r\n]*""",
            r"""\s*[\r\n]+""",
            r"""\s+(?!\S)""",
            r"""\s+""",
        ]
    )

    def __init__(self, vocab_file, added_tokens_decoder=None, **kwargs):
        ranks = load_tiktoken_bpe(vocab_file)
        named = {int(at): getattr(token, "content", token) for at, token in (added_tokens_decoder or {}).items()}
        ids = range(len(ranks), len(ranks) + self.num_reserved_special_tokens)
        self.special = {named.get(at, f"<|reserved_token_{at}|>"): at for at in ids}
        self.model = tiktoken.Encoding("kimi", pat_str=self.pat_str, mergeable_ranks=ranks, special_tokens=self.special)
        # A token's text shows its bytes one by one, each as the character of its number.
        self.ids = {token.decode("latin-1"): rank for token, rank in ranks.items()} | self.special
        self.texts = {at: text for text, at in self.ids.items()}
        super().__init__(added_tokens_decoder=added_tokens_decoder, **kwargs)

    @property
    def vocab_size(self):
        return self.model.n_vocab

    def get_vocab(self):
        return dict(self.ids)

    def _tokenize(self, text, **_more):
        found = []
        for start in range(0, len(text), 400_000):
            for piece in runs(text[start : start + 400_000], 25_000):
                found += self.model.encode(piece, allowed_special="all")
        return [self.texts[at] for at in found]

    def _convert_token_to_id(self, token):
        return self.ids.get(token, self.unk_token_id)

    def _convert_id_to_token(self, index):
        return self.texts.get(index, self.unk_token)

    def convert_tokens_to_string(self, tokens):
        bytes_of = (token.encode() if token in self.special else token.encode("latin-1") for token in tokens)
        return b"".join(bytes_of).decode(errors="replace")

    def save_vocabulary(self, save_directory, filename_prefix=None):
        return ()
