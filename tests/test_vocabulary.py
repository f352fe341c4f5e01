"""The field's words: names that no paper or peer uses must not come back, in code, options or documents."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("embodied_rl", "sim", "policies", "configs", "benchmarks", "examples", "real_robot")
# What stands on the left was replaced by what stands on the right.
NAMES = {
    "Lane": "EnvGroup",
    "lane": "env_group",
    "lanes": "env_groups",
    "Crew": "Collectives",
    "LeadLearner": "Learner",
    "Ranks": "Collectives",
    "ALONE": "SINGLE_PROCESS",
    "Driver": "EnvRunner",
    "GroupStream": "GroupQueue",
    "Verdict": "GroupStatus",
    "Recording": "Trajectory",
    "RowStore": "ObservationPool",
    "Attempts": "RetryPolicy",
    "Ahead": "Lookahead",
    "worth": "ess_ratio",
    "Trouble": "BatchFault",
    "Outbox": "WeightDeltaEncoder",
    "FarWorker": "RemoteWorkerFactory",
    "far_worker": "remote_worker_factory",
    "Patience": "max_batch_delay_ms",
    "Cores": "CoreBudget",
    "PrefixStore": "PrefixCache",
    "Law": "OscGains",
    "Seen": "RenderState",
    "slots": "env_ids",
    "blind": "drop_action_history",
    "sim_threads": "num_threads",
    "minibatch_rows": "minibatch_size",
    "microbatch_rows": "microbatch_size",
    "expert_only": "train_expert_only",
    "denoise_steps": "num_inference_steps",
    "act_wait_ms": "max_batch_delay_ms",
    "ahead_groups": "max_lookahead",
    "max_sampling_factor": "max_oversampling",
    "recompute_log_probs": "recompute_old_log_probs",
    "push_rate": "dart_noise_rate",
    "film_episode": "record_video",
    "open_worlds": "open_envs",
}
OPTIONS = (
    r"--torch-threads|--env\.sim-threads|--env\.frames|--policy\.(method|recompute|precision|expert-only|denoise-steps)\b",
    r"--learner\.(ranks|sharding|minibatch-rows|microbatch-rows|warmup-updates|decay-updates|recompute-log-probs)",
    r"--scheduler\.(stages|overlap|ahead-groups|act-wait-ms)|--algorithm\.(keep|max-sampling-factor)\b",
    r"--speed\.|--push-rate|--blind\b",
)
METRICS = (
    r"(rollout/(kept_groups|dropped_groups|short|reissued_total)|train/(rows|ess_moved)|eval/success_(low|high))\b"
)


def sources() -> list[Path]:
    """Every Python file that is no test."""
    return [
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not any(parent.is_symlink() for parent in path.parents if parent != ROOT)
    ]


def documents() -> list[Path]:
    """Every page that users read."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def banned_names(text: str, *, cache_slots: bool = False) -> list[str]:
    """Old names among the identifiers of `text`, and what stands in their place.

    cache_slots: `slots` may be those of a key-value cache.
    """
    found = []
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for token, after in zip(tokens, [*tokens[1:], None], strict=True):
        slots_option = token.string == "slots" and (cache_slots or (after is not None and after.string == "="))
        if token.type == tokenize.NAME and token.string in NAMES and not slots_option:
            found.append(f"line {token.start[0]}: {token.string} is {NAMES[token.string]}")
    return found


def test_code_uses_the_fields_names() -> None:
    found = []
    for path in sources():
        name = str(path.relative_to(ROOT))
        found += [f"{name} {line}" for line in banned_names(path.read_text(), cache_slots=name.startswith("policies/"))]
    assert found == []


# What a rename of code made of sentences: left what it spoilt, or what it left behind.
PROSE = r"action envs|in an env id\b|env slots|\b[Dd]ecide for N slots|rows of `blind`|\ba env\b"


def test_no_rename_went_over_sentences() -> None:
    texts = [*sources(), *documents()]
    found = [f"{path.relative_to(ROOT)}: {word}" for path in texts for word in re.findall(PROSE, path.read_text())]
    assert found == []


@pytest.mark.parametrize("pattern", [*OPTIONS, METRICS])
def test_options_and_metrics_have_one_name(pattern: str) -> None:
    texts = [*sources(), *documents(), *sorted((ROOT / "tests").rglob("*.py"))]
    found = [
        str(path.relative_to(ROOT)) for path in texts if path != Path(__file__) and re.search(pattern, path.read_text())
    ]
    assert found == []


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


@pytest.mark.parametrize("name", ["Lane", "slots", "worth"])
def test_an_old_name_is_found(name: str) -> None:
    assert banned_names(f"x = {name}()\n")
    assert not banned_names("@dataclass(slots=True)\nclass A: ...\n")
