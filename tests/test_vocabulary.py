"""Rules for what is written: no history, few numbers in the README, and no words that belong to nobody's field."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("embodied_rl", "sim", "policies", "configs", "benchmarks", "examples", "integrations", "real_robot")


def documents() -> list[Path]:
    """Every page that users read."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def sources() -> list[Path]:
    """Every Python file that is no test."""
    found = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return [path for path in found if not any(parent.is_symlink() for parent in path.parents if parent != ROOT)]


def test_documents_carry_no_history() -> None:
    """No commit hashes and no dates of measurements: what is true now."""
    hashes = r"\b(code|commit) [0-9a-f]{7}\b|\([0-9a-f]{7}\)"
    pattern = re.compile(hashes + r"|\b2026-\d\d-\d\d\b|tried and not kept|were not kept")
    assert [str(path.relative_to(ROOT)) for path in documents() if pattern.search(path.read_text())] == []


def test_the_readme_has_few_numbers() -> None:
    text = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    prose = "\n".join(line for line in text.split("\n") if not line.startswith("|"))
    numbers, words = re.findall(r"\d[\d.,]*", prose), re.findall(r"[A-Za-z]{2,}", prose)
    assert 100 * len(numbers) <= 3 * len(words)


def test_no_rename_went_over_sentences() -> None:
    """What a script that renames leaves in prose: an article that does not fit the new word, another thing's name."""
    spoilt = r"\b[Aa] env\b|\b[Aa] image\b|\b[Aa]n world\b|\b[Aa]n video\b|\baction envs\b|\benv slots\b"
    texts = [*sources(), *documents()]
    found = [f"{path.relative_to(ROOT)}: {word}" for path in texts for word in re.findall(spoilt, path.read_text())]
    assert found == []


def test_no_text_names_a_place_of_its_writer() -> None:
    """Nothing of the machine that a file was written on: its folders and its people's branches."""
    places = re.compile(r"(?<![\w.])/work/|/home/\w|/root/")
    assert [str(path.relative_to(ROOT)) for path in [*sources(), *documents()] if places.search(path.read_text())] == []
