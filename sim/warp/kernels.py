"""The arm's controller, the gripper and what an observation shows, for all worlds of a batch: one thread a world.

The same numbers as `sim/mujoco/osc.py` (`torque_fast`), in float64 from MuJoCo Warp's float32 arrays. One launch a
substep, so a CUDA graph of a control step holds only launches.
"""

# pyright: reportInvalidTypeForm=false, reportIndexIssue=false, reportOperatorIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
import warp as wp

wp.config.log_level = wp.LOG_WARNING  # it greets on stdout
wp.set_module_options({"enable_backward": False, "max_unroll": 1})

ARM = wp.constant(7)
DIM = wp.constant(6)
GOAL_ORI, POSTURE, GRIP, CONTROL_WIDTH = 3, 12, 19, 21
"""Columns of the controller's state: goal position 3, goal orientation 9, posture 7, gripper commands 2."""
EEF_QUAT, FINGERS, SEEN_QPOS = 3, 7, 9
"""Columns of what an observation shows: eef position 3, eef quaternion 4, fingers 2, and qpos when it was seen."""
STALE_ORI, STALE_VEL, STALE_Q, STALE_QD, STALE_JAC, STALE_MASS, STALE_WIDTH = 4, 13, 19, 26, 33, 75, 124
"""Columns of a stale measurement: whether there is one 1, position 3, orientation 9, velocity 6, q 7, qd 7, Jacobian
42, inertia 49."""

_ORI, _POSTURE, _GRIP = wp.constant(GOAL_ORI), wp.constant(POSTURE), wp.constant(GRIP)
_S_ORI, _S_VEL, _S_Q = wp.constant(STALE_ORI), wp.constant(STALE_VEL), wp.constant(STALE_Q)
_S_QD, _S_JAC, _S_MASS = wp.constant(STALE_QD), wp.constant(STALE_JAC), wp.constant(STALE_MASS)
_QUAT, _FINGERS, _QPOS = wp.constant(EEF_QUAT), wp.constant(FINGERS), wp.constant(SEEN_QPOS)

f64 = wp.float64
vec3d = wp.types.vector(3, wp.float64)
vec6d = wp.types.vector(6, wp.float64)
vec7d = wp.types.vector(7, wp.float64)
mat33d = wp.types.matrix((3, 3), wp.float64)
mat66d = wp.types.matrix((6, 6), wp.float64)
mat67d = wp.types.matrix((6, 7), wp.float64)
mat77d = wp.types.matrix((7, 7), wp.float64)


@wp.struct
class Arm:
    """Where the robot is in a model, and its constants, as `sim.mujoco.kernel.Robot`."""

    site: int
    hand: int
    root: int
    qpos: wp.array(dtype=int)
    dof: wp.array(dtype=int)
    motor: wp.array(dtype=int)
    finger_qpos: wp.array(dtype=int)
    finger_motor: wp.array(dtype=int)
    mass: wp.array2d(dtype=int)
    low: wp.array(dtype=float)
    high: wp.array(dtype=float)
    finger_middle: wp.array(dtype=float)
    finger_half: wp.array(dtype=float)
    kp: wp.float64
    kd: wp.float64
    null_kp: wp.float64
    null_kd: wp.float64
    position_scale: float
    rotation_scale: float
    grip_speed: float


@wp.struct
class Measured:
    """What the controller knows of the arm."""

    pos: vec3d
    ori: mat33d
    velocity: vec6d
    q: vec7d
    qd: vec7d
    jac: mat67d
    mass: mat77d


@wp.func
def _measure(
    w: int,
    arm: Arm,
    qpos: wp.array2d(dtype=float),
    qvel: wp.array2d(dtype=float),
    inertia: wp.array2d(dtype=float),
    site_xpos: wp.array2d(dtype=wp.vec3),
    site_xmat: wp.array2d(dtype=wp.mat33),
    cdof: wp.array2d(dtype=wp.spatial_vector),
    subtree_com: wp.array2d(dtype=wp.vec3),
) -> Measured:
    m = Measured()
    point = site_xpos[w, arm.site]
    offset = point - subtree_com[w, arm.root]
    m.pos = vec3d(f64(point[0]), f64(point[1]), f64(point[2]))
    for i in range(3):
        for j in range(3):
            m.ori[i, j] = f64(site_xmat[w, arm.site][i, j])
    for c in range(ARM):
        m.q[c] = f64(qpos[w, arm.qpos[c]])
        m.qd[c] = f64(qvel[w, arm.dof[c]])
        screw = cdof[w, arm.dof[c]]
        turn = wp.vec3(screw[0], screw[1], screw[2])
        shift = wp.vec3(screw[3], screw[4], screw[5]) + wp.cross(turn, offset)
        for i in range(3):
            m.jac[i, c] = f64(shift[i])
            m.jac[3 + i, c] = f64(turn[i])
        for j in range(ARM):
            m.mass[c, j] = f64(inertia[w, arm.mass[c, j]])
    for i in range(DIM):
        for c in range(ARM):
            m.velocity[i] += m.jac[i, c] * m.qd[c]
    return m


@wp.func
def _recall(w: int, stale: wp.array2d(dtype=float)) -> Measured:
    m = Measured()
    for i in range(3):
        m.pos[i] = f64(stale[w, 1 + i])
        for j in range(3):
            m.ori[i, j] = f64(stale[w, _S_ORI + 3 * i + j])
    for i in range(DIM):
        m.velocity[i] = f64(stale[w, _S_VEL + i])
        for j in range(ARM):
            m.jac[i, j] = f64(stale[w, _S_JAC + ARM * i + j])
    for i in range(ARM):
        m.q[i] = f64(stale[w, _S_Q + i])
        m.qd[i] = f64(stale[w, _S_QD + i])
        for j in range(ARM):
            m.mass[i, j] = f64(stale[w, _S_MASS + ARM * i + j])
    return m


@wp.func
def _set_goal(w: int, arm: Arm, m: Measured, action: wp.array2d(dtype=float), control: wp.array2d(dtype=float)) -> int:
    """A new goal relative to the measured pose; a rotation part of exactly zero keeps the old goal orientation."""
    for i in range(3):
        control[w, i] = float(m.pos[i] + f64(action[w, i] * arm.position_scale))
    if action[w, 3] == 0.0 and action[w, 4] == 0.0 and action[w, 5] == 0.0:
        return 0
    v = vec3d()
    for i in range(3):
        v[i] = f64(action[w, 3 + i] * arm.rotation_scale)
    angle = wp.sqrt(wp.dot(v, v))
    axis = v / angle
    s, c = wp.sin(angle), wp.cos(angle)
    cross = mat33d(f64(0.0), -axis[2], axis[1], axis[2], f64(0.0), -axis[0], -axis[1], axis[0], f64(0.0))
    turn = cross * s + cross * cross * (f64(1.0) - c)
    goal = m.ori + turn * m.ori
    for i in range(3):
        for j in range(3):
            control[w, _ORI + 3 * i + j] = float(goal[i, j])
    return 1


@wp.func
def _cholesky7(a: mat77d) -> mat77d:
    low = mat77d()
    for j in range(ARM):
        for i in range(j, ARM):
            x = a[i, j]
            for k in range(j):
                x -= low[i, k] * low[j, k]
            if i == j:
                low[i, j] = wp.sqrt(x)
            else:
                low[i, j] = x / low[j, j]
    return low


@wp.func
def _solve6(a: mat66d, b: vec6d, first: int, count: int) -> vec6d:
    """Solve the diagonal block of `count` rows from `first`; the other entries of the result are zero."""
    low = mat66d()
    x = vec6d()
    for j in range(count):
        for i in range(j, count):
            s = a[first + i, first + j]
            for k in range(j):
                s -= low[i, k] * low[j, k]
            if i == j:
                low[i, j] = wp.sqrt(s)
            else:
                low[i, j] = s / low[j, j]
    for i in range(count):
        s = b[first + i]
        for k in range(i):
            s -= low[i, k] * x[first + k]
        x[first + i] = s / low[i, i]
    for r in range(count):
        i = count - 1 - r
        s = x[first + i]
        for k in range(i + 1, count):
            s -= low[k, i] * x[first + k]
        x[first + i] = s / low[i, i]
    return x


@wp.func
def _torque(w: int, arm: Arm, m: Measured, control: wp.array2d(dtype=float)) -> vec7d:
    """Torques without the bias: J^T (lambda_pos f_pos + lambda_ori f_ori - lambda J z) + M z."""
    force = vec6d()
    for i in range(3):
        force[i] = (f64(control[w, i]) - m.pos[i]) * arm.kp - m.velocity[i] * arm.kd
        a, b = (i + 1) % 3, (i + 2) % 3
        error = f64(0.0)
        for k in range(3):
            error += m.ori[a, k] * f64(control[w, _ORI + 3 * b + k]) - m.ori[b, k] * f64(control[w, _ORI + 3 * a + k])
        force[3 + i] = f64(0.5) * error * arm.kp - m.velocity[3 + i] * arm.kd
    # with M = L L^T and Y = J L^-T: J M^-1 J^T = Y Y^T
    factor = _cholesky7(m.mass)
    y = mat67d()
    for r in range(DIM):
        for i in range(ARM):
            x = m.jac[r, i]
            for k in range(i):
                x -= factor[i, k] * y[r, k]
            y[r, i] = x / factor[i, i]
    core = mat66d()
    for i in range(DIM):
        for j in range(DIM):
            x = f64(0.0)
            for k in range(ARM):
                x += y[i, k] * y[j, k]
            core[i, j] = x
    z = vec7d()
    for i in range(ARM):
        z[i] = arm.null_kp * (f64(control[w, _POSTURE + i]) - m.q[i]) - arm.null_kd * m.qd[i]
    wrench = _solve6(core, force, 0, 3) + _solve6(core, force, 3, 3) - _solve6(core, m.jac * z, 0, 6)
    return m.mass * z + wp.transpose(m.jac) * wrench


@wp.kernel
def control_arm(
    first: int,
    arm: Arm,
    action: wp.array2d(dtype=float),
    stale: wp.array2d(dtype=float),
    qpos: wp.array2d(dtype=float),
    qvel: wp.array2d(dtype=float),
    inertia: wp.array2d(dtype=float),
    bias: wp.array2d(dtype=float),
    site_xpos: wp.array2d(dtype=wp.vec3),
    site_xmat: wp.array2d(dtype=wp.mat33),
    cdof: wp.array2d(dtype=wp.spatial_vector),
    subtree_com: wp.array2d(dtype=wp.vec3),
    control: wp.array2d(dtype=float),
    ctrl: wp.array2d(dtype=float),
):
    """Between step1 and step2: a new goal in the `first` substep, then torques and the fingers' set points."""
    w = wp.tid()
    m = Measured()
    if first == 1 and stale[w, 0] != 0.0:
        m = _recall(w, stale)
    else:
        m = _measure(w, arm, qpos, qvel, inertia, site_xpos, site_xmat, cdof, subtree_com)
    if first == 1:
        _set_goal(w, arm, m, action, control)
    torque = _torque(w, arm, m, control)
    for i in range(ARM):
        value = float(torque[i] + f64(bias[w, arm.dof[i]]))
        ctrl[w, arm.motor[i]] = wp.min(wp.max(value, arm.low[i]), arm.high[i])
    way = wp.where(action[w, 6] == 0.0, 0.0, wp.sign(action[w, 6])) * arm.grip_speed  # wp.sign(0) is 1
    for i in range(2):
        grip = wp.clamp(control[w, _GRIP + i] + float(2 * i - 1) * way, -1.0, 1.0)
        control[w, _GRIP + i] = grip
        ctrl[w, arm.finger_motor[i]] = arm.finger_middle[i] + arm.finger_half[i] * grip


@wp.kernel
def see_bodies(
    arm: Arm,
    qpos: wp.array2d(dtype=float),
    site_xpos: wp.array2d(dtype=wp.vec3),
    xquat: wp.array2d(dtype=wp.quat),
    seen: wp.array2d(dtype=float),
):
    """Copy what the camera and the eef sensor see; qpos gives the bodies."""
    w = wp.tid()
    for i in range(3):
        seen[w, i] = site_xpos[w, arm.site][i]
    for i in range(4):
        seen[w, _QUAT + i] = xquat[w, arm.hand][i]
    for i in range(qpos.shape[1]):
        seen[w, _QPOS + i] = qpos[w, i]


@wp.kernel
def see_fingers(arm: Arm, qpos: wp.array2d(dtype=float), seen: wp.array2d(dtype=float)):
    """Copy the fingers' positions."""
    w = wp.tid()
    for i in range(2):
        seen[w, _FINGERS + i] = qpos[w, arm.finger_qpos[i]]
