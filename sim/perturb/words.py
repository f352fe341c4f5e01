"""Other words for the same instruction, by rules: synonyms of verbs and prepositions, and a polite frame."""

from __future__ import annotations

import re

import numpy as np

# Each group is one meaning. In an instruction they appear as whole words; longer ones are looked for first.
_MEANINGS: tuple[tuple[str, ...], ...] = (
    ("pick up", "grab", "take", "lift", "grasp"),
    ("and place it", "and put it", "and set it down", "then put it"),
    ("put", "place", "set"),
    ("open", "pull open"),
    ("close", "shut", "push shut"),
    ("turn on", "switch on"),
    ("turn off", "switch off"),
    ("push", "slide", "move"),
    ("stack", "pile"),
    ("in front of", "just before"),
    ("next to", "beside"),
    ("on top of", "upon"),
)
_FRAMES = ("{}", "please {}", "could you {}", "your task is to {}", "i want you to {}", "now {}", "robot, {}")


def paraphrase(text: str, rng: np.random.Generator) -> str:
    """Another wording of `text`; never `text` itself.

    What can be said otherwise is, each with probability 1/2, but at least one thing changes; the nouns stay, since they
    name the objects.
    """
    for _ in range(100):
        said = _FRAMES[int(rng.integers(len(_FRAMES)))].format(_other_words(text, rng))
        if said != text:
            return said
    return _FRAMES[1].format(text)


def _other_words(text: str, rng: np.random.Generator) -> str:
    known = {words: group for group in _MEANINGS for words in group[:1]}
    pattern = "|".join(re.escape(words) for words in sorted(known, key=len, reverse=True))

    def swap(match: re.Match[str]) -> str:
        group = known[match.group(0)]
        return group[int(rng.integers(1, len(group)))] if rng.random() < 0.5 else match.group(0)

    return re.sub(rf"\b(?:{pattern})\b", swap, text)
