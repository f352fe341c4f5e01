"""A GIF of a finished run: the same held-out episodes before and after training, side by side.

    python -m embodied_rl.benchmarks.lab.before_after runs/NAME --tasks 4 --out docs/images/before_after.gif

It joins the videos that `embodied-rl train` has written; nothing is simulated again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import av
import cv2
import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.jobs.videos import FRAME_SIZE
from embodied_rl.telemetry.video import captioned, write_gif
from embodied_rl.types import Array

FPS, WIDTH = 10, 160


def clips(run: Path, tasks: int) -> list[tuple[Array, Array]]:
    """Frames uint8 [T, H, W, 3] before and after training, of up to `tasks` tasks; UserError if there are none."""
    found = []
    for after in sorted((run / "videos").glob("*-after.mp4")):
        before = after.with_name(after.name.replace("-after.mp4", "-before.mp4"))
        if before.is_file():
            found.append((_read(before), _read(after)))
    if not found:
        raise UserError(f"{run} has no videos of before and after: train with --videos 4.")
    return found[:tasks]


def _read(path: Path) -> Array:
    """Every second frame of the first camera, without its caption, WIDTH pixels wide."""
    first = np.s_[-FRAME_SIZE:, :FRAME_SIZE]
    with av.open(str(path)) as container:
        images = [frame.to_ndarray(format="rgb24")[first] for frame in container.decode(video=0)][::2]
    size = (WIDTH, WIDTH * images[0].shape[0] // images[0].shape[1])
    return np.stack([cv2.resize(image, size, interpolation=cv2.INTER_AREA) for image in images])


def compose(pairs: Sequence[tuple[Array, Array]]) -> list[Array]:
    """One picture a time step: a column a task, before above after; a clip that ended shows its last frame."""
    length = max(len(clip) for pair in pairs for clip in pair)
    rows = []
    for index, label in enumerate(("before", "after")):
        columns = []
        for pair in pairs:
            clip = pair[index]
            columns.append(np.concatenate([clip, np.repeat(clip[-1:], length - len(clip), axis=0)]))
        row = np.concatenate(columns, axis=2)
        rows.append([captioned(image, label) for image in row])
    return [np.concatenate([above, below], axis=0) for above, below in zip(*rows, strict=True)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program: 0, or 2 and one line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m embodied_rl.benchmarks.lab.before_after", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(argv)
    try:
        write_gif(given.out, compose(clips(given.run, given.tasks)), FPS)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"wrote {given.out}, {given.out.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
