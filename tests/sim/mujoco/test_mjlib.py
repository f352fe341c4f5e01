"""What importing the engine does to MuJoCo."""

import mujoco

from embodied_rl.sim.mujoco import mjlib  # noqa: F401 - its import is what is tested


def test_no_clock_times_the_stages_of_a_step() -> None:
    """Reading it for each stage took 5 % of a simulation."""
    body = "<body><freejoint/><geom size='1'/></body>"
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{body}</worldbody></mujoco>")
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data, 100)
    timer = data.timer[mujoco.mjtTimer.mjTIMER_STEP]
    assert timer.number > 0
    assert timer.duration == 0.0
