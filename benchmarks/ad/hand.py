"""Hand tracking: the Jacobian of the distances between measured points and a posed hand.

The function is ADBench's: 26 parameters (rotation, translation, four angles for each of five fingers) move 22
bones, a vertex follows a weighted mixture of them, a measured point belongs to a vertex ("simple") or to a
place in a triangle with two coordinates of its own ("complicated", which makes two more columns). Here the
hand is made up: bones in ADBench's order with random rigid frames, up to four bones a vertex; ADBench's big
model has 10,000 vertices and 1,084 triangles. float64.

Ours skins only the vertices that points belong to where they are fewer than all. A finger's angles move its own four
bones: the derivatives of frames are taken finger by finger, by forward mode through four angles. A point is linear in
the frames, so its columns are the same mixture of their derivatives: a program of one point goes through the
bones, skips those that have no weight, and adds to the columns of the finger a bone belongs to. Forward mode through
the whole hand would take each of the 26 columns through all bones of all vertices.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
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


def all_frames(theta: Any, relative: Any, inverse: Any) -> jax.Array:
    """What each bone does to a point at rest, before the hand is turned."""
    wrist = relative[0]
    angles = theta[6:].reshape(FINGERS, ANGLES)
    fingers = jax.vmap(finger_frames, (0, None, 0, 0))(
        angles, wrist, by_finger(relative), by_finger(inverse)
    )
    own, forearm = (wrist @ inverse[0])[:3], (wrist @ relative[-1] @ inverse[-1])[:3]
    return jnp.concatenate([own[None], fingers.reshape(-1, 3, 4), forearm[None]])


def corners_of(us: Any, triangles: Any, owners: Any) -> tuple[Any, Any]:
    """The vertices that each point belongs to, and the share that it has in each."""
    if us.shape[0] == 0:
        return owners[:, None], jnp.ones((owners.shape[0], 1), us.dtype)
    shares = jnp.concatenate([us, 1.0 - jnp.sum(us, axis=1, keepdims=True)], axis=1)
    return triangles[owners], shares


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
    corners, shares = corners_of(us, triangles, owners)
    frames = rotation_about(theta[:3]) @ all_frames(theta, relative, inverse)
    if corners.size < rest.shape[0]:
        weights, rest = weights[corners.ravel()], rest[corners.ravel()]
        corners = jnp.arange(corners.size).reshape(corners.shape)
    mixed = (weights @ frames.reshape(BONES, 12)).reshape(-1, 3, 4)
    vertices = jnp.sum(mixed * rest[:, None, :], axis=2)
    return points - jnp.sum(shares[:, :, None] * vertices[corners], axis=1) - theta[3:6]


@lw.program
def columns_of(weights, rest, shares, frames, bent, turn, turning):
    """A point's rows of the Jacobian: (3, columns), its own two coordinates first where it has them, then theta's.

    `frames` move the hand before it is turned, `bent` are their derivatives by the angles of a bone's own finger,
    turned already; `turning` is the derivative of `turn`. A bone's derivatives are applied once, to what all corners of
    the point have in it, and the rotation's once for all bones.
    """
    place = jnp.zeros((shares.shape[0], 3), rest.dtype)
    # The wrist and the forearm, which no angle moves, have the row before all fingers.
    along = jnp.zeros((FINGERS + 1, 3, ANGLES), rest.dtype)
    for bone in jnp.arange(BONES):
        pulls = weights[:, bone]
        if jnp.any(pulls != 0.0):
            moved = pulls[:, None] * rest
            place = place + moved @ frames[bone].T
            finger = jnp.where(bone <= 4 * FINGERS, (bone + 3) // 4, 0)
            along = along.at[finger].add(jnp.einsum("ija,j->ia", bent[bone], shares @ moved))
    angles = along[1:].transpose(1, 0, 2).reshape(3, FINGERS * ANGLES)
    about = jnp.einsum("ija,j->ia", turning, shares @ place)
    theta = [about, jnp.eye(3, dtype=rest.dtype), angles]
    own = [turn @ (place[:2] - place[2]).T] if shares.shape[0] > 1 else []
    return -jnp.concatenate([*own, *theta], axis=1)


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
    corners, shares = corners_of(us, triangles, owners)
    still = all_frames(theta, relative, inverse)
    turn = rotation_about(theta[:3])

    def moved(angles: Any, relative_of: Any, inverse_of: Any) -> jax.Array:
        return turn @ finger_frames(angles, relative[0], relative_of, inverse_of)

    bent = jax.vmap(jax.jacfwd(moved))(
        theta[6:].reshape(FINGERS, ANGLES), by_finger(relative), by_finger(inverse)
    )
    bent = jnp.pad(bent.reshape(-1, 3, 4, ANGLES), ((1, 1), (0, 0), (0, 0), (0, 0)))
    turning = jax.jacfwd(rotation_about)(theta[:3])
    return lw.vmap(columns_of, in_axes=(0, 0, 0, None, None, None, None))(
        weights[corners], rest[corners], shares, still, bent, turn, turning
    )


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
