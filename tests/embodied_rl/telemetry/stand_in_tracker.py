"""A package that takes the calls of wandb or trackio, by the names of their parameters, and notes them.

`python -m tests.embodied_rl.telemetry.stand_in_tracker` compares the names with the packages that are installed: they
are those of wandb 0.31.0 and trackio 0.43.0.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PARAMETERS = {
    "wandb": {
        "init": "entity project dir id name notes tags config config_exclude_keys config_include_keys allow_val_change "
        "group job_type mode force reinit resume resume_from fork_from save_code tensorboard sync_tensorboard "
        "monitor_gym settings anonymous",
        "Run.log": "data step commit",
        "Run.finish": "exit_code",
        "Video": "data_or_path caption fps format",
        "Html": "data inject data_is_not_path",
    },
    "trackio": {
        "init": "project name group space_id server_url dataset_id bucket_id config resume settings private embed "
        "auto_log_gpu gpu_log_interval auto_log_cpu cpu_log_interval webhook_url webhook_min_level",
        "Run.log": "metrics step",
        "Run.finish": "",
        "Video": "value caption fps format",
        "Html": "data inject data_is_not_path caption",
    },
}


class StandIn(ModuleType):
    """Either package. calls: those of `init` and of its run. fails: name of the call that raises `error`."""

    def __init__(self, name: str, fails: str = "-", error: type[BaseException] = ConnectionError) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._fails, self._error = fails, error
        self.Video, self.Html = self._takes("Video"), self._takes("Html")

    def init(self, *args: Any, **kwargs: Any) -> StandIn:
        return self._call("init", *args, **kwargs)

    def log(self, *args: Any, **kwargs: Any) -> StandIn:
        return self._call("Run.log", *args, **kwargs)

    def finish(self, *args: Any, **kwargs: Any) -> StandIn:
        return self._call("Run.finish", *args, **kwargs)

    def _call(self, call: str, /, *args: Any, **kwargs: Any) -> StandIn:
        if call.endswith(self._fails):
            raise self._error("no route\nto the server")
        self.calls.append((call.removeprefix("Run."), self._takes(call)(*args, **kwargs)))
        return self

    def _takes(self, name: str) -> Callable[..., dict[str, Any]]:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = PARAMETERS[self.__name__][name].split()
        signature = inspect.Signature([inspect.Parameter(one, kind, default=None) for one in names])
        return lambda *args, **kwargs: signature.bind(*args, **kwargs).arguments


def differences(track: str) -> list[str]:
    """Calls of the installed package that have other parameters."""
    package, found = importlib.import_module(track), []
    for name, names in PARAMETERS[track].items():
        call: Any = package
        for part in name.split("."):
            call = getattr(call, part)
        own = [one for one in inspect.signature(call).parameters if one != "self"]
        if own != names.split():
            found.append(f"{track}.{name}: {' '.join(own)}")
    return found


if __name__ == "__main__":
    for track in PARAMETERS:
        print(track, importlib.import_module(track).__version__, differences(track) or "as noted")
