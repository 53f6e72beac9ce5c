"""Text to the numbers of its tokens: the one door to the tokenizers package.

It is imported when a contract with a tokenizer is first used, in a step process.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from castiron import errors
from castiron.contract import steps

_UNKNOWN = "[UNK]"
_PADS = ("[PAD]", "<pad>", "<PAD>", "<|endoftext|>")


class Tokenizer:
    """The tokenizer of one step, ready to use."""

    __slots__ = ("_inner", "_step")

    def __init__(self, path: Path, step: steps.Tokenize) -> None:
        """Read a tokenizer.json, or a vocabulary of BERT. Raises ContractError."""
        self._step = step
        try:
            inner = _read(path, step)
            inner.no_padding()
            inner.enable_truncation(step.max_tokens)
            if step.pads:
                pad = _pad(inner)
                inner.enable_padding(length=step.max_tokens, pad_id=pad[0], pad_token=pad[1])
        except Exception as fault:  # noqa: BLE001  the package raises no other
            problem = f"expected a tokenizer in {path.name}: {fault}"
            raise errors.ContractError(str(path), [problem]) from None
        self._inner = inner

    def __call__(self, text: str) -> dict[str, np.ndarray]:
        """``ids``, ``mask`` and ``segments`` as int64 of shape [1, tokens]."""
        coded = self._inner.encode(text.lower() if self._step.lowercase else text)
        rows = {"ids": coded.ids, "mask": coded.attention_mask, "segments": coded.type_ids}
        return {name: np.array([row], np.int64) for name, row in rows.items()}


def _read(path: Path, step: steps.Tokenize) -> tokenizers.Tokenizer:
    if path.suffix == ".json":
        return tokenizers.Tokenizer.from_file(str(path))
    # A vocabulary alone is BERT's: one token in each line.
    inner = tokenizers.Tokenizer(models.WordPiece.from_file(str(path), unk_token=_UNKNOWN))
    inner.normalizer = normalizers.BertNormalizer(lowercase=step.lowercase)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    begin, end = (_known(inner, token) for token in ("[CLS]", "[SEP]"))
    inner.post_processor = processors.BertProcessing(end, begin)
    return inner


def _known(inner: tokenizers.Tokenizer, token: str) -> tuple[str, int]:
    number = inner.token_to_id(token)
    if number is None:
        raise ValueError(f"the vocabulary has no {token}")
    return token, number


def _pad(inner: tokenizers.Tokenizer) -> tuple[int, str]:
    for token in _PADS:
        number = inner.token_to_id(token)
        if number is not None:
            return number, token
    return 0, "[PAD]"
