"""The mark of options that only experts need; it stands at the field of a config's dataclass."""

from __future__ import annotations

from typing import Annotated, TypeVar

ValueT = TypeVar("ValueT")
EXPERT = "expert"
Expert = Annotated[ValueT, EXPERT]
"""`row_share: Expert[float | None] = None`: `--help` leaves the option out, `--help-all` and the reference have it. It
is accepted as all others are."""
