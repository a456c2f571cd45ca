"""Bundle adjustment: the sparse Jacobian of reprojection errors.

The function and its sizes are ADBench's (Srajer, Kukelova, Fitzgibbon 2018): n cameras of eleven
parameters, m points, p observations with a weight each; an observation's two errors depend on one camera,
one point and its weight, so that a row of the Jacobian has fifteen entries. What is timed is the entries:
where they stand in the matrix is known in advance. ADBench repeats one camera, one point and one feature;
here each is its own, drawn around the same scale. float64.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from ad.case import Case, Entry, Pair, Torch

# -- ours: one observation, with the branch that the rotation has ------------------------------------


@lw.program
def observation_errors(camera, point, weight, feature):
    """The two reprojection errors and the weight's own."""
    rotation, centre, focal = camera[0:3], camera[3:6], camera[6]
    principal, radial = camera[7:9], camera[9:11]
    seen = rotate(rotation, point - centre)
    projected = seen[0:2] / seen[2]
    squared = projected[0] ** 2 + projected[1] ** 2
    distorted = projected * (1.0 + radial[0] * squared + radial[1] * squared**2)
    return weight * (distorted * focal + principal - feature), 1.0 - weight**2


@lw.program
def rotate(rotation, point):
    """Rodrigues' rotation; to first order where the angle is zero."""
    squared = jnp.sum(rotation**2)
    if squared > 0.0:
        angle = jnp.sqrt(squared)
        axis = rotation / angle
        along = jnp.sum(axis * point) * (1.0 - jnp.cos(angle))
        return point * jnp.cos(angle) + jnp.cross(axis, point) * jnp.sin(angle) + axis * along
    return point + jnp.cross(rotation, point)


def entries(camera: Any, point: Any, weight: Any, feature: Any) -> tuple[Any, Any]:
    """An observation's block: two rows of (camera, point, weight), and the weight error's entry."""
    errors, pullback = jax.vjp(
        lambda *parameters: observation_errors(*parameters, feature), camera, point, weight
    )
    del errors
    one, nought = jnp.ones((), camera.dtype), jnp.zeros((), camera.dtype)
    rows = [
        jnp.concatenate(
            [jnp.ravel(part) for part in pullback((jnp.eye(2, dtype=one.dtype)[i], nought))]
        )
        for i in range(2)
    ]
    return jnp.stack(rows), pullback((jnp.zeros(2, one.dtype), one))[2]


def gathered(cameras: Any, points: Any, observations: Any) -> tuple[Any, Any]:
    return cameras[observations[:, 0]], points[observations[:, 1]]


def residuals(cameras: Any, points: Any, weights: Any, observations: Any, features: Any) -> Any:
    camera, point = gathered(cameras, points, observations)
    return lw.vmap(observation_errors)(camera, point, weights, features)


def jacobian(cameras: Any, points: Any, weights: Any, observations: Any, features: Any) -> Any:
    camera, point = gathered(cameras, points, observations)
    return lw.vmap(lw.lift(entries))(camera, point, weights, features)


# -- plain JAX ---------------------------------------------------------------------------------------


def errors_jax(camera: Any, point: Any, weight: Any, feature: Any) -> tuple[Any, Any]:
    rotation, centre = camera[0:3], camera[3:6]
    offset = point - centre
    squared = jnp.sum(rotation**2)
    turned = squared > 0.0
    angle = jnp.sqrt(jnp.where(turned, squared, 1.0))
    axis = rotation / angle
    along = jnp.sum(axis * offset) * (1.0 - jnp.cos(angle))
    seen = jnp.where(
        turned,
        offset * jnp.cos(angle) + jnp.cross(axis, offset) * jnp.sin(angle) + axis * along,
        offset + jnp.cross(rotation, offset),
    )
    projected = seen[:2] / seen[2]
    r = jnp.sum(projected**2)
    distorted = projected * (1.0 + camera[9] * r + camera[10] * r**2)
    return weight * (distorted * camera[6] + camera[7:9] - feature), 1.0 - weight**2


def residuals_jax(cameras: Any, points: Any, weights: Any, observations: Any, features: Any) -> Any:
    camera, point = gathered(cameras, points, observations)
    return jax.vmap(errors_jax)(camera, point, weights, features)


def jacobian_jax(cameras: Any, points: Any, weights: Any, observations: Any, features: Any) -> Any:
    """The first rows of all observations are one pullback, and so are the second: half the time of `jax.jacrev`."""
    camera, point = gathered(cameras, points, observations)
    (errors, own), pull = jax.vjp(
        lambda *parameters: jax.vmap(errors_jax)(*parameters, features), camera, point, weights
    )
    rows = []
    for i in range(2):
        parts = pull((jnp.zeros_like(errors).at[:, i].set(1.0), jnp.zeros_like(own)))
        rows.append(jnp.concatenate([parts[0], parts[1], parts[2][:, None]], axis=1))
    return jnp.stack(rows, axis=1), pull((jnp.zeros_like(errors), jnp.ones_like(own)))[2]


# -- PyTorch -----------------------------------------------------------------------------------------


def torch_pair(torch: Any, compile: Any) -> Torch:
    def errors(camera: Any, point: Any, weight: Any, feature: Any) -> tuple[Any, Any]:
        rotation, offset = camera[:, :3], point - camera[:, 3:6]
        squared = (rotation**2).sum(1, keepdim=True)
        turned = squared > 0.0
        angle = torch.where(turned, squared, 1.0).sqrt()
        axis = rotation / angle
        along = (axis * offset).sum(1, keepdim=True) * (1.0 - angle.cos())
        seen = torch.where(
            turned,
            offset * angle.cos() + torch.linalg.cross(axis, offset) * angle.sin() + axis * along,
            offset + torch.linalg.cross(rotation, offset),
        )
        projected = seen[:, :2] / seen[:, 2:]
        r = (projected**2).sum(1, keepdim=True)
        distorted = projected * (1.0 + camera[:, 9:10] * r + camera[:, 10:11] * r**2)
        error = weight[:, None] * (distorted * camera[:, 6:7] + camera[:, 7:9] - feature)
        return error, 1.0 - weight**2

    errors = compile(errors)

    def primal(cameras: Any, points: Any, weights: Any, observations: Any, features: Any) -> Any:
        return errors(cameras[observations[:, 0]], points[observations[:, 1]], weights, features)

    def gradient(cameras: Any, points: Any, weights: Any, observations: Any, features: Any) -> Any:
        # Observations do not touch each other: the sum of all first errors has all first rows as its gradient.
        camera = cameras[observations[:, 0]].requires_grad_()
        point = points[observations[:, 1]].requires_grad_()
        inputs = camera, point, weights
        error, own = errors(*inputs, features)
        rows = []
        for i in range(2):
            seed = torch.zeros_like(error)
            seed[:, i] = 1.0
            parts = torch.autograd.grad(error, inputs, seed, retain_graph=True)
            rows.append(torch.cat([parts[0], parts[1], parts[2][:, None]], 1))
        (last,) = torch.autograd.grad(own, (weights,), torch.ones_like(own))
        return torch.stack(rows, 1), last

    return Torch(primal, gradient, (2,))


# -- data --------------------------------------------------------------------------------------------


def data(n: int, m: int, p: int) -> tuple[np.ndarray, ...]:
    """Cameras about five units off, looking at points about the origin; observations go round both."""
    rng = np.random.default_rng(1)
    cameras = np.concatenate(
        [
            0.3 * rng.standard_normal((n, 3)),
            np.array([0.0, 0.0, -5.0]) + 0.3 * rng.standard_normal((n, 3)),
            400.0 + 50.0 * rng.random((n, 1)),
            10.0 * rng.standard_normal((n, 2)),
            1e-2 * rng.standard_normal((n, 2)),
        ],
        axis=1,
    )
    points = rng.standard_normal((m, 3))
    observations = np.stack([np.arange(p) % n, np.arange(p) % m], axis=1).astype(np.int32)
    return cameras, points, rng.random(p), observations, 100.0 * rng.standard_normal((p, 2))


def case(small: bool) -> Case:
    return Case(
        Pair(residuals, jacobian),
        Pair(residuals_jax, jacobian_jax),
        torch_pair,
        data(3, 7, 11) if small else data(49, 7776, 31843),
        double=True,
        rtol=1e-6,
        atol=1e-9,
    )


ENTRIES = (Entry("BA", "49, 7776, 31843", case, "<= 6"),)
