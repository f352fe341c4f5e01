"""OpenVLA's prompt, its tokenizer read from a local `tokenizer.json`, and a word tokenizer for small presets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.integrity import record
from embodied_rl.types import Array

_OPENING = "In: What action should the robot take to"
_CLOSING = "?\nOut:"
_BOS, _PAD, _UNKNOWN = "<s>", "<pad>", "<unk>"


def build_prompt(instruction: str) -> str:
    """OpenVLA's prompt; the instruction in lower case."""
    return f"{_OPENING} {instruction.lower()}{_CLOSING}"


def build_word_tokenizer(
    instructions: Iterable[str], max_size: int, fixed: tuple[str, ...] = (_OPENING, _CLOSING)
) -> Tokenizer:
    """A word-level tokenizer over the words of `instructions`.

    Lower case, punctuation split off, unknown words become `<unk>`. The `fixed` parts of the prompt (OpenVLA's) are one
    token each, which keeps a small model's sequence short. Ids are stable: words are sorted. UserError if more than
    `max_size` tokens would be needed.
    """
    words = sorted({word for text in instructions for word in re.findall(r"\w+|[^\w\s]", text.lower())})
    vocabulary = [_UNKNOWN, _BOS, _PAD, *fixed, *words]
    if len(vocabulary) > max_size:
        raise UserError(
            f"{len(words)} different words need {len(vocabulary)} text tokens, the model has {max_size}: "
            "raise the text vocabulary of the model config or use fewer tasks"
        )
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=_UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_BOS} $A", special_tokens=[(_BOS, vocabulary.index(_BOS))]
    )
    tokenizer.add_tokens([AddedToken(part, normalized=False) for part in fixed])
    return tokenizer


def with_words(tokenizer: Tokenizer, instructions: Iterable[str], max_size: int) -> Tokenizer:
    """A tokenizer of `build_word_tokenizer` that knows the words of `instructions` too; another one as it is.

    Raises:
        UserError: More than `max_size` tokens would be needed.
    """
    data = json.loads(tokenizer.to_str())
    if data["model"]["type"] != "WordLevel":
        return tokenizer
    vocabulary = data["model"]["vocab"]
    wanted = {word for text in instructions for word in re.findall(r"\w+|[^\w\s]", text.lower())}
    new = sorted(wanted - vocabulary.keys())
    if len(vocabulary) + len(new) > max_size:
        raise UserError(
            f"{len(new)} words that the checkpoint does not know need {len(vocabulary) + len(new)} text tokens, the "
            f"model has {max_size}: begin from a larger preset"
        )
    vocabulary |= {word: len(vocabulary) + number for number, word in enumerate(new)}
    return Tokenizer.from_str(json.dumps(data))


def load_tokenizer(path: Path) -> Tokenizer:
    """Read `tokenizer.json`; UserError when it is missing or no tokenizer."""
    if not path.is_file():
        raise UserError(f"{path} is missing: copy the tokenizer.json that belongs to the checkpoint there")
    record(path)
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"{path} is not a tokenizer file ({error}): restore it from the checkpoint's source") from error


class PromptTokenizer:
    """Instructions to prompt token ids, cached per instruction.

    `append_token`: id appended to a prompt that does not end with it (29871 for OpenVLA-7B, whose training
    data had it before the actions), or None.
    """

    def __init__(self, tokenizer: Tokenizer, append_token: int | None) -> None:
        self.tokenizer = tokenizer
        self.append_token = append_token
        self._cache: dict[str, list[int]] = {}
        bos = tokenizer.token_to_id(_BOS)
        if bos is None:
            raise UserError(f"the tokenizer has no '{_BOS}' token: use the tokenizer.json of the checkpoint")
        self.bos_id: int = bos

    def ids(self, instruction: str) -> list[int]:
        """Prompt ids of one instruction, without the leading BOS."""
        ids = self._cache.get(instruction)
        if ids is None:
            ids = self.tokenizer.encode(build_prompt(instruction)).ids
            if ids[0] != self.bos_id:
                ids = [self.bos_id, *ids]
            ids = ids[1:]
            if self.append_token is not None and ids[-1] != self.append_token:
                ids = [*ids, self.append_token]
            self._cache[instruction] = ids
        return ids

    def batch(self, instructions: list[str]) -> tuple[Array, Array]:
        """Prompt ids int64 [N, T], padded at the end with BOS, and lengths int64 [N]; BOS itself is not included."""
        rows = [self.ids(instruction) for instruction in instructions]
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        ids = np.full((len(rows), int(lengths.max())), self.bos_id, dtype=np.int64)
        for target, row in zip(ids, rows, strict=True):
            target[: len(row)] = row
        return ids, lengths
