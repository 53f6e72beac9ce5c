"""Text to tokens, with tokenizers that are made here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from castiron import errors
from castiron.contract import steps
from castiron.contract.model import Entry
from castiron.server.steps import folder, inward, words
from tests.server.steps import contracts

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "iron", "cast", "##s", "hello")


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A folder with a tokenizer in both forms."""
    whole = tokenizers.Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token=WORDS[1])
    )
    whole.pre_tokenizer = pre_tokenizers.Whitespace()
    whole.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    (tmp_path / "broken.json").write_text("{}")
    return tmp_path


def test_a_tokenizer_cuts_and_fills_up(beside: Path) -> None:
    step = steps.Tokenize("tokenizer.json", 3, lowercase=True)
    found = words.Tokenizer(beside / step.file, step)("Hello what")
    assert found["ids"].tolist() == [[7, 1, 0]]
    assert found["mask"].tolist() == [[1, 1, 0]]
    assert words.Tokenizer(beside / step.file, step)("cast iron cast iron")["ids"].shape == (1, 3)


def test_a_vocabulary_is_berts(beside: Path) -> None:
    step = steps.Tokenize("vocab.txt", 8, pads=False, lowercase=True)
    found = words.Tokenizer(beside / step.file, step)("CAST irons")
    assert found["ids"].tolist() == [[2, 5, 4, 6, 3]]
    assert found["ids"].dtype == np.int64


def test_what_is_no_tokenizer_is_told_when_the_contract_is_opened(beside: Path) -> None:
    step = steps.Tokenize("broken.json", 8)
    with pytest.raises(errors.ContractError, match=r"expected a tokenizer in broken\.json"):
        words.Tokenizer(beside / step.file, step)


def test_all_inputs_of_a_language_model_are_made_of_one_text(beside: Path) -> None:
    step = steps.Tokenize("vocab.txt", 4, lowercase=True, mask="m", segments="s")
    contract = contracts.of(
        Entry("said", "text", "i", steps=(step,), languages=("en",)),
        tensors={"i": ("INT64", ("n", 4)), "m": ("INT32", ("n", 4)), "s": ("INT64", ("n", 4))},
    )
    made = inward.Inward(contract, folder.Folder(beside))
    found = made.run({"said": {"text": "Hello", "language": "en"}}).tensors
    assert {name: array.tolist() for name, array in found.items()} == {
        "i": [[2, 7, 3, 0]], "m": [[1, 1, 1, 0]], "s": [[0, 0, 0, 0]],
    }  # fmt: skip
    assert found["m"].dtype == np.int32
