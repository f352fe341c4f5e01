"""How near two arms come to each other: capsules around their links, at poses and on the way between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embodied_rl.real_robot.core.kinematics import Chain


@dataclass(frozen=True)
class Capsule:
    """All points within `radius` of a line that a joint carries: a hull of a link.

    Args:
        name: For people, such as 'forearm'.
        joint: Number of the joint in whose frame it is fixed, from 0; -1 for the base.
        start: One end of the line, m, in the joint's frame.
        end: The other; the same for a sphere.
        radius: m.
        finger: Whether it may come near what the other arm's last joint carries: hands that pass things on meet.
    """

    name: str
    joint: int
    start: tuple[float, float, float]
    end: tuple[float, float, float]
    radius: float
    finger: bool = False


class Clearance:
    """The smallest distance between two arms' capsules.

    Args:
        chains: Both arms' kinematics in one frame.
        capsules: Each arm's hull.
        names: The arms', for people.

    Example:
        >>> clearance = Clearance((left, right), (left_capsules, right_capsules), ("left", "right"))
        >>> clearance.between(path).min() >= 0.05
        True
    """

    def __init__(
        self, chains: tuple[Chain, Chain], capsules: tuple[Sequence[Capsule], Sequence[Capsule]], names: tuple[str, str]
    ) -> None:
        self._chains, self._capsules, self._names = chains, capsules, names
        self._split = len(chains[0].origins)
        self._joints = [[one.joint for one in arm for _ in range(2)] for arm in capsules]
        self._points = [np.array([end for one in arm for end in (one.start, one.end)], np.float64) for arm in capsules]
        pairs = [
            (i, j)
            for i, left in enumerate(capsules[0])
            for j, right in enumerate(capsules[1])
            if not (left.finger and right.joint == len(chains[1].origins) - 1)
            and not (right.finger and left.joint == len(chains[0].origins) - 1)
        ]
        self._left, self._right = np.array(pairs, np.intp).reshape(-1, 2).T
        radii = [np.array([one.radius for one in arm]) for arm in capsules]
        self._radii = radii[0][self._left] + radii[1][self._right]
        self._reach = np.concatenate([_reach(*arm) for arm in zip(chains, capsules, strict=True)])

    def at(self, angles: np.ndarray) -> np.ndarray:
        """The distance at poses.

        Args:
            angles: Both arms' joint angles, one arm's after the other's [..., n], rad.

        Returns:
            Distances [...], m; negative where capsules overlap.
        """
        return self._pairs(angles).min(-1)

    def between(self, path: np.ndarray) -> np.ndarray:
        """A distance that the arms keep on the way from each pose to the next, where joints turn one way between them.

        No point of an arm goes further than each joint's turn times its reach. With distances a and b at the ends of a
        way on which the arms' points go w together, the distance is never below (a + b - w) / 2: it changes by no
        more than they go.

        Args:
            path: Poses in order [T, n], rad; the last is also a way of its own, of no length.

        Returns:
            Lower bounds [T], m.
        """
        distance = self.at(path)
        way = np.abs(np.diff(path, axis=0, append=path[-1:])) @ self._reach
        return (distance + np.append(distance[1:], distance[-1:]) - way) / 2

    def nearest(self, angles: np.ndarray) -> tuple[str, str, float]:
        """Which two links are nearest at a pose [n], such as 'left forearm', and their distance, m."""
        pairs = self._pairs(angles)
        nearest = int(pairs.argmin())
        left = self._capsules[0][self._left[nearest]].name
        right = self._capsules[1][self._right[nearest]].name
        return f"{self._names[0]} {left}", f"{self._names[1]} {right}", float(pairs[nearest])

    def _pairs(self, angles: np.ndarray) -> np.ndarray:
        """The distance of each pair of capsules [..., pairs], m."""
        arms = (angles[..., : self._split], angles[..., self._split :])
        ends = [
            chain.carried(own, joints, points)
            for chain, own, joints, points in zip(self._chains, arms, self._joints, self._points, strict=True)
        ]
        left, right = ends[0][..., self._left * 2, :], ends[1][..., self._right * 2, :]
        to_left, to_right = ends[0][..., self._left * 2 + 1, :], ends[1][..., self._right * 2 + 1, :]
        return line_distance(left, to_left, right, to_right) - self._radii


def line_distance(a: np.ndarray, to_a: np.ndarray, b: np.ndarray, to_b: np.ndarray) -> np.ndarray:
    """The distance between straight lines from a to to_a and from b to to_b.

    The nearest points lie either within both lines, where the difference is at right angles to both, or one of them is
    an end of its line.

    Args:
        a: [..., 3], as the other ends.
        to_a: The first line's other end.
        b: The second line's end.
        to_b: The second line's other end.

    Returns:
        [...].
    """
    ends = np.stack([_to_line(a, b, to_b), _to_line(to_a, b, to_b), _to_line(b, a, to_a), _to_line(to_b, a, to_a)]).min(
        0
    )
    along_a, along_b, apart = to_a - a, to_b - b, b - a
    aa, ab, bb = _dot(along_a, along_a), _dot(along_a, along_b), _dot(along_b, along_b)
    on_a, on_b = _dot(along_a, apart), _dot(along_b, apart)
    square = aa * bb - ab * ab
    across = np.maximum(square, 1e-12 * aa * bb + 1e-30)  # parallel lines: an end is among their nearest points
    share_a, share_b = (on_a * bb - on_b * ab) / across, (on_a * ab - on_b * aa) / across
    within = (share_a >= 0) & (share_a <= 1) & (share_b >= 0) & (share_b <= 1)
    gap = apart + share_b[..., None] * along_b - share_a[..., None] * along_a
    return np.where(within, np.minimum(np.sqrt(_dot(gap, gap)), ends), ends)


def _to_line(point: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    along, apart = end - start, point - start
    share = np.clip(_dot(apart, along) / np.maximum(_dot(along, along), 1e-30), 0, 1)
    gap = apart - share[..., None] * along
    return np.sqrt(_dot(gap, gap))


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a[..., 0] * b[..., 0] + a[..., 1] * b[..., 1] + a[..., 2] * b[..., 2]


def _reach(chain: Chain, capsules: Sequence[Capsule]) -> np.ndarray:
    """The furthest that a point on a capsule's line can be from each joint [n], m."""
    steps = np.array([np.linalg.norm(origin.xyz) for origin in chain.origins])
    count = len(steps)
    found = np.zeros(count)
    for one in capsules:
        own = max(float(np.linalg.norm(one.start)), float(np.linalg.norm(one.end)))
        for joint in range(one.joint + 1):
            found[joint] = max(found[joint], own + steps[joint + 1 : one.joint + 1].sum())
    return found
