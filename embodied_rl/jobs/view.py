"""Shows episodes of a policy in a browser, where a person may take over. Imports torch and the simulator."""

from __future__ import annotations

import time
import webbrowser
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embodied_rl.errors import UserError
from embodied_rl.jobs.eval_request import BenchmarkCommand
from embodied_rl.jobs.evaluation_setup import evaluation_env, make_plan, prepare
from embodied_rl.jobs.serve import bind, is_local
from embodied_rl.jobs.viewer import Viewer
from embodied_rl.utils.console import LastingConsole

if TYPE_CHECKING:
    from embodied_rl.jobs.view_page import Page


@dataclass(frozen=True, slots=True)
class Address:
    """Where the page is. browser: whether it is opened."""

    host: str
    port: int
    browser: bool


def run(benchmark: str, command: BenchmarkCommand, address: Address) -> None:
    """Show episodes of the evaluation that `command` asks for, until Ctrl-C.

    Raises:
        UserError: The policy does not fit the suite, the page's library is missing, or the address cannot be had.
    """
    page_class = _page_class()
    console = LastingConsole()
    with bind(address.host, address.port) as free:  # what is taken is said before a policy is loaded
        port = free.getsockname()[1]
    plan = make_plan(benchmark, command, console)
    ready = prepare(plan, command)
    horizons = {task.name: plan.protocol.horizon(task) for task in plan.tasks.scenes}
    with evaluation_env(plan, ready.policy, ready.renderer) as env:
        viewer = Viewer(env, ready.policy, plan.specs, command.mode)
        viewer.step()  # what is compiled at the first step keeps nobody waiting at the page
        viewer.reset()
        page = page_class(viewer, address.host, port, env.info.cameras, horizons)
        try:
            console.say(f"ready: {page.url}  (Ctrl-C ends it)")
            if not is_local(address.host):
                console.say(f"ANYBODY who reaches port {port} may watch and move the arm: it asks for no password")
            if address.browser and not webbrowser.open(page.url):
                console.say("no browser could be opened: open that address in one")
            serve(viewer, page, env.info.control_hz)
        finally:
            page.close()


def serve(viewer: Viewer, page: Page, control_hz: float) -> None:
    """Do what the page asks for, and step while it plays, at `page.speed` times the robot's own speed; for ever."""
    due = time.monotonic()
    while True:
        page.show(viewer)
        asked = page.next(max(0.0, due - time.monotonic()) if viewer.playing else None)
        if asked is not None:
            asked(viewer)
        elif viewer.playing:
            due = time.monotonic() + 1 / (control_hz * page.speed)
            viewer.step()


def _page_class() -> type[Page]:
    try:
        from embodied_rl.jobs.view_page import Page
    except ModuleNotFoundError as error:
        if error.name not in ("viser", "trimesh", "PIL"):
            raise
        raise UserError(f"view needs {error.name}: pip install 'embodied-rl[view]'") from error
    return Page
