"""What an environment needs of an arm, and resets and judgements by a human."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from embodied_rl.errors import UserError
from embodied_rl.types import Array, EpisodeSpec


class ArmFailedError(RuntimeError):
    """The arm cannot go on: it was e-stopped, or what it measures is missing. Its episode is lost."""


class ArmStoppedError(ArmFailedError):
    """A person stopped the arm, or left its episode out: nothing is wrong with either, and it is run again."""


class ArmBlockedError(ArmFailedError):
    """The arm did not follow where the policy pushed it, and holds: the policy failed, and the episode counts."""


@dataclass(frozen=True)
class ArmView:
    """What the policy is shown: images uint8 [V,H,W,3], proprio float32 [P]."""

    images: Array
    proprio: Array


@dataclass(frozen=True)
class ArmStep:
    """A control step that is over.

    Args:
        action: What was done, float32 [A].
        success: Whether the goal holds after it.
    """

    action: Array
    success: bool


class LiveArm(Protocol):
    """An arm in its own time. Every method returns when it is done, and raises `ArmFailedError` where it cannot be.

    Between calls the arm holds, unless a person has it: whoever decides may take as long as it likes. A person takes
    the arm over at any moment; `act` then says so, and `follow` gives what the person did, until the person lets go.
    """

    def begin(self, episode: EpisodeSpec) -> str:
        """Bring the scene to the episode's start, by a script or a human; the instruction."""
        ...

    def see(self) -> ArmView:
        """The newest pictures and the joints of their time; of a person's arm those as the step of `follow` began."""
        ...

    def glance(self) -> ArmView:
        """As `see`, in the middle of a chunk: what is there now. An arm that moves does not wait for newer pictures."""
        ...

    def act(self, action: Array) -> ArmStep | None:
        """Do one control step, through the safety gate.

        Args:
            action: float32 [A] in bounds.

        Returns:
            None where a person has the arm: the step was not done, or not to its end.
        """
        ...

    def follow(self) -> ArmStep | None:
        """Wait for the next control step of the person who has the arm; none of them is left out.

        Returns:
            None where the person let go, and the arm holds.
        """
        ...

    def resume(self) -> bool:
        """Let the policy go on after a person let go; False where the person ended the episode."""
        ...

    def judge(self) -> bool:
        """At the horizon, after a last step without success: whether the goal holds all the same."""
        ...

    def end(self, success: bool | None) -> None:
        """Bring the arm to rest and let nobody move it until `begin`; its record says how the episode ended.

        Args:
            success: None where the episode is lost.
        """
        ...

    def close(self) -> None:
        """Bring the arm to rest and let it go."""
        ...


@dataclass(frozen=True)
class HumanStep:
    """A human resets the scene and says how an episode ended.

    Args:
        instructions: What each task asks of the policy, by task.
        ask: Shows a line and returns what the human types; `input` in a terminal.

    Example:
        >>> HumanStep({"drawer": "open the drawer"}).reset(EpisodeSpec(0, "drawer", 3, seed=1))
        'open the drawer'
    """

    instructions: Mapping[str, str]
    ask: Callable[[str], str] = input

    def reset(self, episode: EpisodeSpec) -> str:
        """Wait until the human has put the scene into the episode's initial state.

        Raises:
            UserError: The task has no instruction.
            ArmStoppedError: The human typed 'skip'.
        """
        words = self.instructions.get(episode.task)
        if words is None:
            raise UserError(f"no instruction for task {episode.task}; there are {', '.join(self.instructions)}")
        shown = (
            f"episode {episode.episode_id}: {words}. Set up state {episode.init_state}, then Enter (skip: leave out) "
        )
        if self.ask(shown).strip() == "skip":
            raise ArmStoppedError("skipped by the human")
        return words

    def succeeded(self) -> bool:
        """Never before the horizon: nobody is asked while the arm moves."""
        return False

    def judge(self) -> bool:
        """Ask until the human says yes or no."""
        while True:
            answer = self.ask("did it succeed? (y/n) ").strip().lower()
            if answer in ("y", "yes", "n", "no"):
                return answer.startswith("y")
