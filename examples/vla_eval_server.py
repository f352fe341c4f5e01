"""Let vla-eval evaluate what `embodied-rl serve` serves, in any of its benchmarks.

embodied-rl serve shipped --port 8001
python examples/vla_eval_server.py --args.address=ws://127.0.0.1:8001 --port=8000
"""

from __future__ import annotations

import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vla_eval.model_servers.base import SessionContext
from vla_eval.model_servers.predict import PredictModelServer
from vla_eval.model_servers.serve import run_server
from vla_eval.types import Action, Observation

from embodied_rl.real_robot.client import PolicyClient


class ServedPolicy(PredictModelServer):
    """A model server that asks a policy server.

    Args:
        address: Of `embodied-rl serve`.
        token: Its token; None where it has none.
        timeout: Seconds for a chunk; the evaluator waits for `server.timeout` of its config, 30 if that says nothing.
        options: vla-eval's own. chunk_size: how many actions of a chunk are executed, None for all of them.
            max_batch_size: how many shards are answered at the same time.
    """

    def __init__(
        self, address: str = "ws://127.0.0.1:8001", *, token: str | None = None, timeout: float = 30.0, **options: Any
    ) -> None:
        super().__init__(**options)
        opened = (PolicyClient(address, None, token=token, timeout=timeout) for _ in range(self.max_batch_size))
        self._clients = list(opened)
        self._threads = ThreadPoolExecutor(self.max_batch_size)
        self._policy = self._clients[0].metadata
        self.chunk_size = self.chunk_size or self._policy["chunk_len"]
        self._seeds: dict[str, int] = {}

    def get_observation_params(self) -> dict[str, Any]:
        """What a benchmark shows: frames as our simulators draw them where the policy learned from these."""
        about = self._policy
        upright = about["image_pipeline"] == "as_rendered" and not about["mirror"]
        shown = {"send_wrist_image": about["cameras"] > 1, "send_state": about["proprio_dim"] > 0, "upright": upright}
        return shown | ({"image_size": about["image_size"]} if upright else {})

    async def on_episode_start(self, config: dict[str, Any], ctx: SessionContext) -> None:
        """A benchmark that takes whole chunks gets them; what is drawn follows from the episode's task and number."""
        await super().on_episode_start(config, ctx)
        task, sizes = config["task"], self._session_chunk_sizes
        sizes[ctx.session_id] = None if task.get("takes_chunks") else self.chunk_size  # type: ignore[assignment]
        self._seeds[ctx.session_id] = zlib.crc32(json.dumps(task, sort_keys=True).encode())

    def predict_batch(self, obs_batch: list[Observation], ctx_batch: list[SessionContext]) -> list[Action]:
        """One chunk for each observation."""
        return list(self._threads.map(self._ask, self._clients, obs_batch, ctx_batch))

    def _ask(self, client: PolicyClient, obs: Observation, ctx: SessionContext) -> Action:
        request = {
            "images": list(obs["images"].values())[: self._policy["cameras"]],
            "proprio": obs.get("states", obs.get("state")),
            "instruction": obs["task_description"],
            "seed": obs.get("seed", self._seeds[ctx.session_id]),
            "decision": ctx.step,
        }
        return {"actions": client.infer(request)["actions"][: self.chunk_size]}


if __name__ == "__main__":
    run_server(ServedPolicy)
