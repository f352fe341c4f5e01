"""No test depends on how long something takes: hypothesis' deadline would fail one on a loaded machine."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
