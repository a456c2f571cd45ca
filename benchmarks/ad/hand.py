"""Hand tracking: the Jacobian of the distances between measured points and a posed hand.

The function is ADBench's: 26 parameters (rotation, translation, four angles for each of five fingers) move 22
bones, a vertex follows a weighted mixture of them, a measured point belongs to a vertex ("simple") or to a
place in a triangle with two coordinates of its own ("complicated", which makes two more columns). Here the
hand is made up: bones in ADBench's order with random rigid frames, up to four bones a vertex; ADBench's big
model has 10,000 vertices and 1,084 triangles. float64.

A point is linear in the frames of the bones: its vertex is (weights x rest position) of 88 numbers, times the frames.
So written, in all systems, the 26 columns of forward mode are one matrix product, where mixing frames first and
applying them to vertices afterwards makes 26 mixtures of each vertex. Only the vertices that points belong to are
moved where they are fewer than all; ADBench's own form moves all of them.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from ad.case import Case, Entry, Pair, Torch

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


def all_frames(theta: Any, relative: Any, inverse: Any) -> jax.Array:
    """What each bone does to a point at rest: (bones, 3, 4)."""
    wrist = relative[0]
    angles = theta[6:].reshape(FINGERS, ANGLES)
    fingers = jax.vmap(finger_frames, (0, None, 0, 0))(
        angles, wrist, by_finger(relative), by_finger(inverse)
    )
    own, forearm = (wrist @ inverse[0])[:3], (wrist @ relative[-1] @ inverse[-1])[:3]
    still = jnp.concatenate([own[None], fingers.reshape(-1, 3, 4), forearm[None]])
    return rotation_about(theta[:3]) @ still


def placed(
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
    """What each measured point is off, written as all systems have it."""
    corners = owners[:, None] if us.shape[0] == 0 else triangles[owners]
    if corners.size < rest.shape[0]:
        weights, rest = weights[corners.ravel()], rest[corners.ravel()]
        corners = jnp.arange(corners.size).reshape(corners.shape)
    features = (weights[:, :, None] * rest[:, None, :]).reshape(-1, BONES * 4)
    frames = all_frames(theta, relative, inverse)
    vertices = features @ frames.transpose(0, 2, 1).reshape(BONES * 4, 3) + theta[3:6]
    if us.shape[0] == 0:
        return points - vertices[corners[:, 0]]
    shares = jnp.concatenate([us, 1.0 - jnp.sum(us, axis=1, keepdims=True)], axis=1)
    return points - jnp.sum(shares[:, :, None] * vertices[corners], axis=1)


residuals = lw.lift(placed)


def forward(residuals: Any) -> Any:
    """(points, 3, columns) by forward mode: a point's own two coordinates first where it has them, then theta's."""

    def jacobian(theta: Any, us: Any, *model: Any) -> jax.Array:
        by_theta = jax.jacfwd(residuals)(theta, us, *model)
        if us.shape[0] == 0:
            return by_theta
        # A point's coordinates are its own: one direction is the same coordinate of all points.
        across = [
            jax.jvp(
                lambda us: residuals(theta, us, *model),
                (us,),
                (jnp.broadcast_to(jnp.eye(2, dtype=us.dtype)[k], us.shape),),
            )[1]
            for k in range(2)
        ]
        return jnp.concatenate([jnp.stack(across, axis=-1), by_theta], axis=-1)

    return jacobian


jacobian = forward(residuals)


# -- PyTorch -----------------------------------------------------------------------------------------


def torch_pair(torch: Any, compile: Any) -> Torch:
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

    def all_frames(theta: Any, relative: Any, inverse: Any) -> Any:
        """All fingers at once, a joint after the other."""
        angles = theta[6:].reshape(FINGERS, ANGLES)
        o = torch.zeros_like(angles[:, 0])
        first = torch.stack([o, angles[:, 0], angles[:, 2], angles[:, 3]], 1)
        second = torch.stack([o, angles[:, 1], o, o], 1)
        local = by_finger(relative) @ joints(first, second)
        frame, fingers = relative[0], []
        for j in range(4):
            frame = frame @ local[:, j]
            fingers.append(frame)
        moved = torch.stack(fingers, 1).reshape(4 * FINGERS, 4, 4)
        absolute = torch.cat([relative[:1], moved, (relative[0] @ relative[-1])[None]])
        return turn(theta[:3]) @ (absolute @ inverse)[:, :3]

    def primal(
        theta: Any, us: Any, relative: Any, inverse: Any, rest: Any, weights: Any, *where: Any
    ) -> Any:
        triangles, owners, points = where
        corners = owners[:, None] if us.shape[0] == 0 else triangles[owners]
        if corners.numel() < rest.shape[0]:
            weights, rest = weights[corners.reshape(-1)], rest[corners.reshape(-1)]
            corners = torch.arange(corners.numel(), device=theta.device).reshape(corners.shape)
        features = (weights[:, :, None] * rest[:, None, :]).reshape(-1, BONES * 4)
        frames = all_frames(theta, relative, inverse).transpose(1, 2).reshape(BONES * 4, 3)
        vertices = features @ frames + theta[3:6]
        if us.shape[0] == 0:
            return points - vertices[corners[:, 0]]
        shares = torch.cat([us, 1.0 - us.sum(1, keepdim=True)], 1)
        return points - (shares[:, :, None] * vertices[corners]).sum(1)

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

    return Torch(compile(primal), compile(gradient))


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
            Pair(placed, forward(placed)),
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
