"""Hand tracking: the Jacobian of the distances between measured points and a posed hand.

The function is ADBench's: 26 parameters (rotation, translation, four angles for each of five fingers) move 22
bones, a vertex follows a weighted mixture of them, a measured point belongs to a vertex ("simple") or to a
place in a triangle with two coordinates of its own ("complicated", which makes two more columns). Here the
hand is made up: bones in ADBench's order with random rigid frames, up to four bones a vertex; ADBench's big
model has 10,000 vertices and 1,084 triangles. float64.

A posed point is linear in the bones' frames, so ours gathers for each point what multiplies each frame, before
any frame is known. A finger's angles move its own four bones: the Jacobian is five blocks of four columns, each
by forward mode through one finger alone, and the blocks of rotation and translation. Through the whole hand
each of the 26 columns would go through all bones.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ad.case import Case, Entry, Pair

BONES, FINGERS, ANGLES = 22, 5, 4
PARENTS = (-1, *(0 if i % 4 == 0 else i for i in range(4 * FINGERS)), 0)


def rotation_about(axis_angle: Any) -> jax.Array:
    """Rodrigues' matrix, the identity where there is no angle."""
    squared = jnp.sum(axis_angle**2)
    turned = squared > 1e-8
    angle = jnp.sqrt(jnp.where(turned, squared, 1.0))
    x, y, z = axis_angle / angle
    nought = jnp.zeros_like(x)
    cross = jnp.stack([nought, -z, y, z, nought, -x, -y, x, nought]).reshape(3, 3)
    matrix = jnp.eye(3) + jnp.sin(angle) * cross + (1.0 - jnp.cos(angle)) * (cross @ cross)
    return jnp.where(turned, matrix, jnp.eye(3))


def bend(first: Any, second: Any) -> jax.Array:
    """A joint's frame: by `first` about x, then by `second` about z."""
    c, s, cz, sz = jnp.cos(first), jnp.sin(first), jnp.cos(second), jnp.sin(second)
    one, nought = jnp.ones_like(c), jnp.zeros_like(c)
    return jnp.stack(
        [
            jnp.stack([cz, -sz * c, sz * s, nought]),
            jnp.stack([sz, cz * c, -cz * s, nought]),
            jnp.stack([nought, s, c, nought]),
            jnp.stack([nought, nought, nought, one]),
        ]
    )


def finger_frames(angles: Any, wrist: Any, relative: Any, inverse: Any) -> jax.Array:
    """What each of a finger's four bones does to a point at rest, given its four angles: (4, 3, 4)."""
    nought = jnp.zeros_like(angles[0])
    bends = [(nought, nought), (angles[0], angles[1]), (angles[2], nought), (angles[3], nought)]
    frames, frame = [], wrist
    for i, (first, second) in enumerate(bends):
        frame = frame @ relative[i] @ bend(first, second)
        frames.append((frame @ inverse[i])[:3])
    return jnp.stack(frames)


def by_finger(bones: Any) -> Any:
    return bones[1 : 1 + 4 * FINGERS].reshape(FINGERS, 4, *bones.shape[1:])


# -- ours --------------------------------------------------------------------------------------------


def influences(us: Any, rest: Any, weights: Any, triangles: Any, owners: Any) -> jax.Array:
    """What multiplies each bone's frame in each measured point: (points, bones, 4)."""
    if us.shape[0] == 0:
        return weights[owners][:, :, None] * rest[owners][:, None, :]
    shares = jnp.concatenate([us, 1.0 - jnp.sum(us, axis=1, keepdims=True)], axis=1)
    corners = triangles[owners]
    return sum(
        (shares[:, k, None] * weights[corners[:, k]])[:, :, None] * rest[corners[:, k]][:, None, :]
        for k in range(3)
    )


def fixed_frames(relative: Any, inverse: Any) -> tuple[Any, Any, Any]:
    """The wrist, and what the wrist and the forearm do, which no parameter moves."""
    wrist = relative[0]
    return wrist, (wrist @ inverse[0])[:3], (wrist @ relative[-1] @ inverse[-1])[:3]


def seen(part: Any, frames: Any) -> jax.Array:
    """Influences applied to frames: (points, bones, 4) and (bones, 3, 4) give (points, 3)."""
    return part.reshape(part.shape[0], -1) @ frames.transpose(0, 2, 1).reshape(-1, 3)


def all_frames(theta: Any, relative: Any, inverse: Any) -> tuple[Any, Any]:
    """The frames of all bones, unturned, and those of the fingers by finger."""
    wrist, own, forearm = fixed_frames(relative, inverse)
    angles = theta[6:].reshape(FINGERS, ANGLES)
    fingers = jax.vmap(finger_frames, (0, None, 0, 0))(
        angles, wrist, by_finger(relative), by_finger(inverse)
    )
    return jnp.concatenate([own[None], fingers.reshape(-1, 3, 4), forearm[None]]), fingers


def residuals(
    theta: Any,
    us: Any,
    relative: Any,
    inverse: Any,
    rest: Any,
    weights: Any,
    triangles: Any,
    owners: Any,
    points: Any,
) -> jax.Array:
    part = influences(us, rest, weights, triangles, owners)
    frames, _ = all_frames(theta, relative, inverse)
    return points - seen(part, rotation_about(theta[:3]) @ frames) - theta[3:6]


def jacobian(
    theta: Any,
    us: Any,
    relative: Any,
    inverse: Any,
    rest: Any,
    weights: Any,
    triangles: Any,
    owners: Any,
    points: Any,
) -> jax.Array:
    """(points, 3, columns): the point's own two coordinates first where it has them, then theta's."""
    part = influences(us, rest, weights, triangles, owners)
    frames, _ = all_frames(theta, relative, inverse)
    turn = rotation_about(theta[:3])
    wrist = relative[0]

    def moved(angles: Any, relative: Any, inverse: Any) -> jax.Array:
        return turn @ finger_frames(angles, wrist, relative, inverse)

    # (finger, bone, 3, 4, angle) -> one product a finger: what a bone's influences give for each angle.
    bent = jax.vmap(jax.jacfwd(moved))(
        theta[6:].reshape(FINGERS, ANGLES), by_finger(relative), by_finger(inverse)
    )
    bent = bent.transpose(0, 1, 3, 2, 4).reshape(FINGERS, 16, 3 * ANGLES)
    flat = part.reshape(part.shape[0], -1)
    columns = [
        (flat[:, 4 + 16 * f : 20 + 16 * f] @ bent[f]).reshape(-1, 3, ANGLES) for f in range(FINGERS)
    ]
    turned = jax.jacfwd(lambda axis_angle: rotation_about(axis_angle) @ frames)(theta[:3])
    turned = turned.transpose(0, 2, 1, 3).reshape(-1, 9)
    about = (flat @ turned).reshape(-1, 3, 3)
    along = jnp.broadcast_to(jnp.eye(3, dtype=theta.dtype), (part.shape[0], 3, 3))
    whole = [about, along, *columns]
    if us.shape[0]:
        across = [
            jax.jvp(
                lambda us: seen(influences(us, rest, weights, triangles, owners), turn @ frames),
                (us,),
                (jnp.broadcast_to(jnp.eye(2, dtype=us.dtype)[k], us.shape),),
            )[1]
            for k in range(2)
        ]
        whole = [jnp.stack(across, axis=-1), *whole]
    return -jnp.concatenate(whole, axis=-1)


# -- plain JAX ---------------------------------------------------------------------------------------


def residuals_jax(
    theta: Any,
    us: Any,
    relative: Any,
    inverse: Any,
    rest: Any,
    weights: Any,
    triangles: Any,
    owners: Any,
    points: Any,
) -> jax.Array:
    """As ADBench has it: bones, then all vertices, then those that points belong to."""
    pose = jnp.zeros((BONES, 2), theta.dtype)
    angles = theta[6:].reshape(FINGERS, ANGLES)
    for f in range(FINGERS):
        pose = pose.at[2 + 4 * f].set(angles[f, :2])
        pose = pose.at[3 + 4 * f, 0].set(angles[f, 2]).at[4 + 4 * f, 0].set(angles[f, 3])
    local = relative @ jax.vmap(bend)(pose[:, 0], pose[:, 1])
    absolute: list[Any] = []
    for i, parent in enumerate(PARENTS):
        absolute.append(local[i] if parent < 0 else absolute[parent] @ local[i])
    transforms = jnp.stack(absolute) @ inverse
    vertices = jnp.einsum("vb,bij,vj->vi", weights, transforms[:, :3], rest)
    vertices = vertices @ rotation_about(theta[:3]).T + theta[3:6]
    if us.shape[0] == 0:
        return points - vertices[owners]
    corners = vertices[triangles[owners]]
    shares = jnp.concatenate([us, 1.0 - jnp.sum(us, axis=1, keepdims=True)], axis=1)
    return points - jnp.einsum("ck,cki->ci", shares, corners)


def jacobian_jax(theta: Any, us: Any, *model: Any) -> jax.Array:
    by_theta = jax.jacfwd(residuals_jax)(theta, us, *model)
    if us.shape[0] == 0:
        return by_theta
    across = [
        jax.jvp(
            lambda us: residuals_jax(theta, us, *model),
            (us,),
            (jnp.broadcast_to(jnp.eye(2, dtype=us.dtype)[k], us.shape),),
        )[1]
        for k in range(2)
    ]
    return jnp.concatenate([jnp.stack(across, axis=-1), by_theta], axis=-1)


# -- PyTorch -----------------------------------------------------------------------------------------


def torch_pair(torch: Any) -> Pair:
    def turn(v: Any) -> Any:
        angle = (v**2).sum().sqrt()
        x, y, z = (v / angle).unbind()
        o = torch.zeros_like(x)
        cross = torch.stack([o, -z, y, z, o, -x, -y, x, o]).reshape(3, 3)
        eye = torch.eye(3, dtype=v.dtype, device=v.device)
        return eye + angle.sin() * cross + (1.0 - angle.cos()) * (cross @ cross)

    def joints(first: Any, second: Any) -> Any:
        c, s, cz, sz = first.cos(), first.sin(), second.cos(), second.sin()
        one, o = torch.ones_like(c), torch.zeros_like(c)
        rows = [cz, -sz * c, sz * s, o, sz, cz * c, -cz * s, o, o, s, c, o, o, o, o, one]
        return torch.stack(rows, -1).reshape(*c.shape, 4, 4)

    def primal(
        theta: Any, us: Any, relative: Any, inverse: Any, rest: Any, weights: Any, *where: Any
    ) -> Any:
        triangles, owners, points = where
        angles = theta[6:].reshape(FINGERS, ANGLES)
        o = torch.zeros_like(angles[:, 0])
        first = torch.stack([o, angles[:, 0], angles[:, 2], angles[:, 3]], 1).reshape(-1)
        second = torch.stack([o, angles[:, 1], o, o], 1).reshape(-1)
        still = torch.zeros_like(theta[:1])
        local = relative @ joints(
            torch.cat([still, first, still]), torch.cat([still, second, still])
        )
        absolute: list[Any] = []
        for i, parent in enumerate(PARENTS):
            absolute.append(local[i] if parent < 0 else absolute[parent] @ local[i])
        transforms = torch.stack(absolute) @ inverse
        vertices = torch.einsum("vb,bij,vj->vi", weights, transforms[:, :3], rest)
        vertices = vertices @ turn(theta[:3]).T + theta[3:6]
        if us.shape[0] == 0:
            return points - vertices[owners]
        shares = torch.cat([us, 1.0 - us.sum(1, keepdim=True)], 1)
        return points - torch.einsum("ck,cki->ci", shares, vertices[triangles[owners]])

    def gradient(theta: Any, us: Any, *model: Any) -> Any:
        by_theta = torch.func.jacfwd(lambda theta: primal(theta, us, *model))(theta)
        if us.shape[0] == 0:
            return by_theta
        across = []
        for k in range(2):
            seed = torch.zeros_like(us)
            seed[:, k] = 1.0
            across.append(torch.func.jvp(lambda us: primal(theta, us, *model), (us,), (seed,))[1])
        return torch.cat([torch.stack(across, -1), by_theta], -1)

    return Pair(primal, gradient)


# -- data --------------------------------------------------------------------------------------------


def rigid(rng: np.random.Generator, count: int, reach: float) -> np.ndarray:
    """Random frames: a rotation and an offset."""
    matrices, _ = np.linalg.qr(rng.standard_normal((count, 3, 3)))
    frames = np.zeros((count, 4, 4))
    frames[:, :3, :3] = matrices * np.sign(np.linalg.det(matrices))[:, None, None]
    frames[:, :3, 3] = reach * rng.standard_normal((count, 3))
    frames[:, 3, 3] = 1.0
    return frames


def data(vertices: int, triangles: int, points: int, complicated: bool) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(4)
    relative = rigid(rng, BONES, 0.05)
    absolute: list[np.ndarray] = []
    for i, parent in enumerate(PARENTS):
        absolute.append(relative[i] if parent < 0 else absolute[parent] @ relative[i])
    rest = np.concatenate([0.1 * rng.standard_normal((vertices, 3)), np.ones((vertices, 1))], 1)
    weights = np.zeros((vertices, BONES))
    for vertex in weights:
        vertex[rng.choice(BONES, 4, replace=False)] = rng.dirichlet(np.ones(4))
    corners = rng.integers(0, vertices, (triangles, 3))
    owners = rng.integers(0, triangles if complicated else vertices, points)
    us = rng.dirichlet(np.ones(3), points)[:, :2] if complicated else np.zeros((0, 2))
    theta = 0.3 * rng.standard_normal(26)
    measured = rng.standard_normal((points, 3))
    inverse = np.linalg.inv(np.stack(absolute))
    return theta, us, relative, inverse, rest, weights, corners, owners, measured


def entry(kind: str, points: int) -> Entry:
    complicated = kind == "complicated"

    def case(small: bool) -> Case:
        return Case(
            Pair(residuals, jacobian),
            Pair(residuals_jax, jacobian_jax),
            torch_pair,
            data(20, 12, 9, complicated) if small else data(10_000, 1084, points, complicated),
            double=True,
            rtol=1e-6,
            atol=1e-9,
        )

    return Entry(f"HAND {kind} c{points}", "10,000 vertices", case, "<= 5")


ENTRIES = tuple(
    entry(kind, points) for kind in ("simple", "complicated") for points in (800, 12_800)
)
