"""Prompts of pi0 and pi0.5 as token ids (openpi's formats), and a word tokenizer for small presets."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from tokenizers import Tokenizer

from embodied_rl.errors import UserError
from embodied_rl.policies.preprocessing.text import build_word_tokenizer
from embodied_rl.types import Array

_STATE_EDGES = np.linspace(-1.0, 1.0, 257)[:-1]
_BOS = ("<bos>", "<s>")  # PaliGemma's, and that of our word tokenizer


def word_tokenizer(instructions: Iterable[str], max_size: int, *, with_state: bool) -> Tokenizer:
    """A tokenizer over the words of `instructions` and, `with_state`, of pi0.5's prompt and its numbers."""
    extra = [state_prompt("", np.arange(-1, 256))] if with_state else []
    return build_word_tokenizer([*instructions, *extra], max_size, fixed=())


def clean(instruction: str) -> str:
    """One line without underscores or outer blanks."""
    return instruction.strip().replace("_", " ").replace("\n", " ")


def state_bins(state: Array) -> Array:
    """Normalised state [..., P] -> bins int64: -1 below -1, else 0..255 (256 bins over [-1, 1])."""
    return np.digitize(state, _STATE_EDGES) - 1


def state_prompt(instruction: str, bins: Array) -> str:
    """pi0.5's prompt with the state in words; bins int64 [P]."""
    return f"Task: {clean(instruction)}, State: {' '.join(map(str, bins))};\nAction: "


class Pi0Prompt:
    """Instructions (and states) to token ids."""

    def __init__(self, tokenizer: Tokenizer, max_size: int) -> None:
        if tokenizer.get_vocab_size() > max_size:
            raise UserError(
                f"the tokenizer has {tokenizer.get_vocab_size()} tokens, the model {max_size}: use the tokenizer.json "
                "that belongs to the checkpoint"
            )
        self.tokenizer = tokenizer
        self._bos = self._find_bos()
        self._cache: dict[str, list[int]] = {}

    def _find_bos(self) -> int:
        found = [self.tokenizer.token_to_id(token) for token in _BOS]
        for token in found:
            if token is not None:
                return token
        raise UserError(f"the tokenizer has none of {', '.join(_BOS)}: use PaliGemma's tokenizer.json")

    def batch(self, instructions: list[str], state: Array | None) -> tuple[Array, list[int]]:
        """Ids int64 [N,T], padded at the end, and the lengths of the N rows.

        state: normalised float32 [N,P] where it is part of the prompt (pi0.5), else None.
        """
        if state is None:
            rows = [self._plain(instruction) for instruction in instructions]
        else:
            prompts = map(state_prompt, instructions, state_bins(state))
            rows = [[self._bos, *self._encode(prompt)] for prompt in prompts]
        lengths = [len(row) for row in rows]
        ids = np.full((len(rows), max(lengths)), self._bos, dtype=np.int64)
        for target, row in zip(ids, rows, strict=True):
            target[: len(row)] = row
        return ids, lengths

    def _plain(self, instruction: str) -> list[int]:
        """pi0's prompt: the instruction, then a line end that is a token of its own."""
        ids = self._cache.get(instruction)
        if ids is None:
            ids = [self._bos, *self._encode(clean(instruction)), *self._encode("\n")]
            self._cache[instruction] = ids
        return ids

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids
