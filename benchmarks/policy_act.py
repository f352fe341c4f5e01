"""Token policies: deciding for a batch, against transformers' `generate` a sample at a time.

Both run the same network with the same weights and must choose the same tokens (greedy). The reference computes a
sample's prefix with this project's vision towers and decodes with transformers' LlamaForCausalLM.generate, as OpenVLA's
published code does (its generation is limited to one sample at a time). Times are CPU times of one thread, so that
other work on the machine disturbs them little; contenders are interleaved and medians shown.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from embodied_rl.benchmarks.timing import interleaved
from embodied_rl.errors import UserError
from embodied_rl.policies.openvla.config import OpenVLAModelConfig, nano, tiny
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Observation

INSTRUCTION = "pick up the black bowl between the plate and the ramekin and place it on the plate"
BATCHED, GENERATE = "act, one batch", "transformers generate, a sample at a time"
ROWS, REPEATS = 8, 5


@dataclass(frozen=True, slots=True)
class Row:
    """cpu_ms: median over the repeats for one decision; low, high: extremes."""

    network: str
    tokens: int
    contender: str
    cpu_ms: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Figures:
    """ratios: how many times as fast the batch is; `act_vs_generate` is the nano network's with a chunk of 8 steps.
    equal_tokens: share of tokens on which both agree.
    """

    rows: list[Row]
    ratios: dict[str, float]
    setup: dict[str, Any]


def act_figures(quick: bool) -> Figures:
    """Measure on one thread; quick: the smallest case, once."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(quick)
    finally:
        torch.set_num_threads(threads)


def _measure(quick: bool) -> Figures:
    cases: dict[str, tuple[str, OpenVLAModelConfig]] = {
        "act_vs_generate": ("nano", nano()),
        "act_vs_generate_7_tokens": ("nano", nano(chunk_len=1)),
        "act_vs_generate_tiny": ("tiny", tiny(chunk_len=1)),
    }
    if quick:
        cases = {"act_vs_generate": ("nano", nano(chunk_len=1))}
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    agreement = []
    for ratio, (name, config) in cases.items():
        # learned positions are this project's own: transformers' Llama has no place for them
        plain = replace(config, learned_positions=False, ordinal_init=False)
        times, equal = _compare(plain, 1 if quick else REPEATS)
        found = [
            Row(name, config.num_tokens, contender, statistics.median(each), min(each), max(each))
            for contender, each in times.items()
        ]
        rows += found
        ratios[ratio] = found[1].cpu_ms / found[0].cpu_ms
        agreement.append(equal)
    setup = {"batch": ROWS, "num_threads": 1, "repeats": 1 if quick else REPEATS, "equal_tokens": min(agreement)}
    return Figures(rows, ratios, setup)


def _compare(config: OpenVLAModelConfig, repeats: int) -> tuple[dict[str, list[float]], float]:
    """CPU milliseconds a decision of each contender, and the share of equal tokens."""
    policy = OpenVLAPolicy.fresh(config, [INSTRUCTION])
    llama = _llama(policy)
    draw = np.random.default_rng(0)
    shape = (ROWS, config.num_cameras, config.image_size, config.image_size, 3)
    obs = Observation.from_numpy(
        draw.integers(0, 256, shape, dtype=np.uint8),
        draw.normal(size=(ROWS, 8)).astype(np.float32),
        [INSTRUCTION] * ROWS,
    )
    zeros = np.zeros(ROWS, int)

    def batched() -> Tensor:
        return policy.act(obs, DecisionRng(zeros, zeros), "greedy").replay["tokens"].long()

    @torch.inference_mode()
    def generated() -> Tensor:
        rows = [slice(row, row + 1) for row in range(ROWS)]
        return torch.cat([_generate(policy, llama, obs, row) for row in rows])

    times, outputs = interleaved({BATCHED: batched, GENERATE: generated}, repeats, ROWS)
    return times, float((outputs[BATCHED] == outputs[GENERATE]).float().mean())


def _llama(policy: OpenVLAPolicy) -> Any:
    """transformers' Llama with the weights of `policy`."""
    try:
        import transformers
    except ImportError:
        raise UserError("this bench compares with transformers, which is missing: pip install transformers") from None
    config = policy.config.decoder
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.dim,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.mlp_dim,
            rms_norm_eps=config.norm_eps,
            tie_word_embeddings=False,
            bos_token_id=policy.tokenizer.bos_id,
            eos_token_id=None,
            pad_token_id=None,
            rope_theta=config.rope_theta,  # pyright: ignore[reportCallIssue] (taken among the keyword arguments)
        )
    ).eval()
    llama.load_state_dict(policy.model.language_model.state_dict())
    return llama


def _generate(policy: OpenVLAPolicy, llama: Any, obs: Observation, row: slice) -> Tensor:
    """Action tokens [1, L] of one sample; text tokens are forbidden, as `act` does not know them either."""
    prefix = policy._prefix(obs.images[row], obs.proprio[row])
    ids = policy._prompt(obs.instruction[row]).ids
    embedded = torch.cat([prefix, llama.get_input_embeddings()(ids)], dim=1)
    first = policy.model.action_rows.start
    out = llama.generate(
        inputs_embeds=embedded,
        attention_mask=torch.ones(embedded.shape[:2], dtype=torch.long),
        do_sample=False,
        max_new_tokens=policy.config.num_tokens,
        suppress_tokens=list(range(first)),
    )
    return out[:, -policy.config.num_tokens :] - first


def table(figures: Figures) -> Table:
    """The figures for a terminal."""
    out = Table("network", "tokens", "contender", title=f"token policy: {ROWS} decisions")
    for name in ("CPU ms/decision", "low", "high"):
        out.add_column(name, justify="right")
    for row in figures.rows:
        figures_of = (f"{value:.2f}" for value in (row.cpu_ms, row.low, row.high))
        out.add_row(row.network, str(row.tokens), row.contender, *figures_of)
    return out
