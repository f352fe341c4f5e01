"""OpenVLA-OFT as data: OpenVLA whose whole chunk is decoded in one pass (Kim et al. 2025, "Fine-Tuning
Vision-Language-Action Models: Optimizing Speed and Success")."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from embodied_rl.errors import UserError, suggest
from embodied_rl.policies.openvla.config import OpenVLAModelConfig, nano, openvla_7b, tiny

Head = Literal["tokens", "l1"]
STOP_ID = 2  # </s> of Llama's tokenizer


@dataclass(frozen=True)
class OFTModelConfig(OpenVLAModelConfig):
    """OpenVLA's config and what parallel decoding adds. FiLM is on where the towers have a `film_dim`."""

    head: Head = "tokens"
    """What reads the action slots: the 256 action rows of the language model's head, or a residual MLP that regresses
    each control step's action (trained with an L1 loss)."""
    stop_token: int | None = None
    """Id of a token after the action slots, which every other token attends to; None has none."""
    l1_scale: float = 0.05
    """Scale of the Laplace distribution around the action of the L1 head, in normalised units, at temperature 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.featurizer.film_dim != self.fused_featurizer.film_dim:
            raise ValueError("both vision towers have FiLM, or neither has")
        if self.featurizer.film_dim not in (None, self.decoder.dim):
            raise ValueError("film_dim must be the decoder's width: the language vector is a mean of its embeddings")

    @property
    def film(self) -> bool:
        """Whether the instruction modulates the vision towers."""
        return self.featurizer.film_dim is not None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What the files of a published OFT checkpoint do not say about its network."""

    head: Head
    """Tokens, or the L1 head."""
    keep_stop: bool
    """The stop token stays after the action slots."""
    num_cameras: int
    """Images in the input: third person, then wrist."""
    use_proprio: bool
    """One token from the proprio."""
    film: bool = False
    """The instruction modulates the vision towers."""
    chunk_len: int = 8
    """Control steps decided at once (LIBERO: 8; ALOHA and RoboTwin: 25; Bridge: 5)."""
    center_crop: float | None = 0.9
    """Share of the image's area that is kept: all of these were trained on random crops of 90 %."""


VARIANTS: dict[str, Variant] = {
    "official": Variant(head="l1", keep_stop=True, num_cameras=2, use_proprio=True),
    "simplevla": Variant(head="tokens", keep_stop=True, num_cameras=1, use_proprio=False),
    "rlinf": Variant(head="tokens", keep_stop=False, num_cameras=1, use_proprio=False),
}
"""openvla-oft's own LIBERO checkpoints; SimpleVLA-RL's; those that RLinf trained with its fork."""


def variant(name: str) -> Variant:
    """The variant `official`, `simplevla` or `rlinf`; UserError for another name."""
    if name not in VARIANTS:
        raise UserError(f"unknown OFT variant '{name}'.{suggest(name, VARIANTS)}")
    return VARIANTS[name]


def oft(base: OpenVLAModelConfig, **changes: Any) -> OFTModelConfig:
    """`base` decoded in parallel, with `changes` to the config."""
    values: dict[str, Any] = {field.name: getattr(base, field.name) for field in fields(OpenVLAModelConfig)}
    return OFTModelConfig(**(values | changes))


def with_variant(base: OpenVLAModelConfig, chosen: Variant, *, proprio_dim: int) -> OFTModelConfig:
    """`base` as `chosen` decodes it."""
    film_dim = base.decoder.dim if chosen.film else None
    return oft(
        base,
        head=chosen.head,
        stop_token=STOP_ID if chosen.keep_stop else None,
        num_cameras=chosen.num_cameras,
        use_proprio=chosen.use_proprio,
        proprio_dim=proprio_dim,
        proprio_norm="bounds",
        chunk_len=chosen.chunk_len,
        center_crop=chosen.center_crop,
        featurizer=replace(base.featurizer, film_dim=film_dim),
        fused_featurizer=replace(base.fused_featurizer, film_dim=film_dim),
    )


def preset(name: str, chosen: Variant | None = None) -> OFTModelConfig:
    """The preset `nano`, `tiny` or `7b` (as `chosen`, openvla-oft's own if not given); UserError for another name."""
    small = {"nano": nano, "tiny": tiny}
    if name in small:
        return oft(small[name]())
    if name != "7b":
        raise UserError(f"unknown OpenVLA-OFT preset '{name}'.{suggest(name, [*small, '7b'])}")
    return with_variant(openvla_7b(), chosen or VARIANTS["official"], proprio_dim=8)
