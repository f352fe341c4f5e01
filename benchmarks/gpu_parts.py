"""The parts of `bench gpu`, each run as `python -m embodied_rl.benchmarks.gpu_parts PART FILE [--quick]`."""

from __future__ import annotations

import sys

from embodied_rl.benchmarks import gpu_maniskill, gpu_pictures, gpu_policy, gpu_render, gpu_schedule
from embodied_rl.benchmarks.parts import Work, serve

WORKS: dict[str, Work] = {
    "act": gpu_policy.act,
    "update": gpu_policy.update,
    "render": gpu_render.render,
    "pictures": gpu_pictures.pictures,
    "maniskill": gpu_maniskill.maniskill,
    "nano": gpu_schedule.nano,
    "compiled": gpu_schedule.compiled,
    "loaded": gpu_schedule.loaded,
}

if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:], WORKS))
