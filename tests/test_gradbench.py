"""The GradBench tool answers in GradBench's protocol, and its derivatives are right.

Each evaluation at a small size against a plain reference: `jax.grad` or `jax.jacobian` of a naive form, central
differences, or the value that GradBench itself expects. GradBench lets answers differ by 1e-4; here it is less.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ad import hand
from gradbench.evaluations import compare, converse
from gradbench.protocol import MODULES, answer, functions_of

TOOL = Path(__file__).resolve().parent.parent / "benchmarks" / "gradbench" / "run.py"


def run(module: str, function: str, given: Any) -> Any:
    said = answer(
        {"id": 7, "kind": "evaluate", "module": module, "function": function, "input": given}
    )
    assert said["id"] == 7
    assert said["success"], said.get("error")
    names = [timing["name"] for timing in said["timings"]]
    asked = given.get("min_runs", 1) if isinstance(given, dict) else 1
    assert names.count("evaluate") >= asked
    json.dumps(said)
    return said["output"]


def same(found: Any, expected: Any, tolerance: float = 1e-8) -> None:
    found, expected = np.asarray(found, dtype=np.float64), np.asarray(expected)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def differences(fun: Callable[[np.ndarray], Any], x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences of a scalar function."""
    slopes = np.zeros(x.size)
    for i in range(x.size):
        moved = np.zeros(x.size)
        moved[i] = step
        moved = moved.reshape(x.shape)
        slopes[i] = (fun(x + moved) - fun(x - moved)) / (2.0 * step)
    return slopes.reshape(x.shape)


RNG = np.random.default_rng(0)


def test_every_module_has_its_functions() -> None:
    for module in MODULES:
        assert functions_of(module), module


def test_what_is_unknown_is_said_so() -> None:
    assert not answer({"id": 1, "kind": "define", "module": "chess"})["success"]
    said = answer({"id": 2, "kind": "evaluate", "module": "lse", "function": "x", "input": {}})
    assert not said["success"] and "lse has no function 'x'" in said["error"]


def test_the_tool_speaks_lines_of_json() -> None:
    messages = [
        {"id": 0, "kind": "start", "eval": "hello"},
        {"id": 1, "kind": "define", "module": "hello"},
        {"id": 2, "kind": "evaluate", "module": "hello", "function": "double", "input": 3.0},
        {"id": 3, "kind": "analysis", "of": 2, "valid": True},
    ]
    done = subprocess.run(
        [sys.executable, str(TOOL)],
        input="".join(json.dumps(message) + "\n" for message in messages),
        capture_output=True,
        text=True,
        check=True,
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["id"] for each in said] == [0, 1, 2, 3]
    assert said[0]["tool"] == "lanewise" and said[1]["success"]
    assert said[2]["output"] == 6.0 and said[3] == {"id": 3}


def test_runs_are_counted_and_compilation_is_apart() -> None:
    given = {"x": [1.0, 2.0], "min_runs": 3, "min_seconds": 0}
    said = answer(
        {"id": 0, "kind": "evaluate", "module": "lse", "function": "primal", "input": given}
    )
    assert [timing["name"] for timing in said["timings"]] == ["compile", *["evaluate"] * 3]


# An evaluation in GradBench's form that knows the answer of one function and wants another to be wrong.
EVALUATION = """
import json, math, sys
assert sys.argv[1:] == ["--min-runs", "2"], sys.argv
number = 0
def ask(**message):
    global number
    print(json.dumps({"id": number, **message}), flush=True)
    said = json.loads(sys.stdin.readline())
    assert said["id"] == number
    number += 1
    return said
ask(kind="start", eval="lse")
assert ask(kind="define", module="lse")["success"]
given = {"x": [1.0, 2.0], "min_runs": 2, "min_seconds": 0}
said = ask(kind="evaluate", module="lse", function="primal", input=given, description="n=2")
right = abs(said["output"] - math.log(math.exp(1.0) + math.exp(2.0))) < SLACK
ask(kind="analysis", of=2, valid=right, error=None if right else "not that")
"""
BY_HAND = """#!/usr/bin/env python3
print(2.3132616875182226)
for took in (7_000_000_000, 9_000_000_000, 8_000_000_000):
    print('{"name": "evaluate", "nanoseconds": %d}' % took)
"""


@pytest.mark.parametrize("slack", [1e-9, -1.0], ids=["valid", "not valid"])
def test_evaluations_of_a_checkout(tmp_path: Path, slack: float) -> None:
    script = tmp_path / "python/gradbench/gradbench/evals/lse/run.py"
    program = tmp_path / "tools/manual/bin/lse"
    for file in (script, program):
        file.parent.mkdir(parents=True)
    script.write_text(EVALUATION.replace("SLACK", str(slack)))
    program.write_text(BY_HAND)
    program.chmod(0o755)
    given = "lse", tmp_path, ["manual"], ["--min-runs", "2"], False
    if slack < 0:
        with pytest.raises(AssertionError, match="does not find valid"):
            compare(*given)
        return
    (claim,) = compare(*given)
    assert claim.claim.startswith("gradbench, lse primal: against manual")
    assert claim.peer == pytest.approx(8.0) and 0.0 < claim.ours < 8.0 and claim.met


def test_an_evaluation_that_is_not_defined_is_not_passed_over(tmp_path: Path) -> None:
    script = tmp_path / "python/gradbench/gradbench/evals/lse/run.py"
    script.parent.mkdir(parents=True)
    script.write_text(EVALUATION)

    def refuses(message: dict[str, Any]) -> dict[str, Any]:
        return {"id": message["id"], "success": False, "error": "no such module"}

    with pytest.raises(RuntimeError, match="lse is not defined here: no such module"):
        converse("lse", tmp_path, refuses, ["--min-runs", "2"])


def test_hello() -> None:
    assert run("hello", "square", 3.0) == 9.0
    assert run("hello", "double", 3.0) == 6.0


def test_lse() -> None:
    x = RNG.normal(size=20)
    same(run("lse", "primal", {"x": x.tolist()}), np.log(np.sum(np.exp(x))))
    same(run("lse", "gradient", {"x": x.tolist()}), np.exp(x) / np.sum(np.exp(x)))


def test_llsq() -> None:
    x, n = RNG.normal(size=5), 16
    t = -1.0 + 2.0 * np.arange(n) / (n - 1)
    powers = t[:, None] ** np.arange(5)
    off = np.sign(t) - powers @ x
    same(run("llsq", "primal", {"x": x.tolist(), "n": n}), 0.5 * np.sum(off**2))
    same(run("llsq", "gradient", {"x": x.tolist(), "n": n}), -powers.T @ off)


def runge_kutta(x: np.ndarray, steps: int) -> np.ndarray:
    def slope(y: np.ndarray) -> np.ndarray:
        return x * np.concatenate([[1.0], y[:-1]])

    y, h = np.zeros_like(x), 2.0 / steps
    for _ in range(steps):
        k1 = slope(y)
        k2 = slope(y + h / 2 * k1)
        k3 = slope(y + h / 2 * k2)
        k4 = slope(y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


def test_ode() -> None:
    x, steps = RNG.random(4), 10
    same(run("ode", "primal", {"x": x.tolist(), "s": steps}), runge_kutta(x, steps))
    expected = differences(lambda x: runge_kutta(x, steps)[-1], x)
    same(run("ode", "gradient", {"x": x.tolist(), "s": steps}), expected, 1e-6)


def test_det() -> None:
    matrix = RNG.random((4, 4))
    given = {"A": matrix.ravel().tolist(), "ell": 4}
    size = np.linalg.det(matrix)
    same(run("det", "primal", given), size)
    same(run("det", "gradient", given), (size * np.linalg.inv(matrix).T).ravel())


def naive_posterior(given: dict[str, Any], alpha: Any, mu: Any, q: Any, low: Any) -> jax.Array:
    """By the definition: densities of Gaussians and of Wishart's distribution."""
    d, k, n = given["d"], given["k"], given["n"]
    x, gamma = jnp.array(given["x"]), given["gamma"]
    total = jnp.zeros(())
    weights = jnp.exp(alpha) / jnp.sum(jnp.exp(alpha))
    factors = []
    for component in range(k):
        factor = jnp.diag(jnp.exp(q[component]))
        place = 0
        for j in range(d):
            for i in range(j + 1, d):
                factor = factor.at[i, j].set(low[component, place])
                place += 1
        factors.append(factor)
    for i in range(n):
        density = sum(
            weights[c]
            * jnp.exp(-0.5 * jnp.sum((factors[c] @ (x[i] - mu[c])) ** 2))
            * jnp.prod(jnp.diag(factors[c]))
            / (2 * jnp.pi) ** (d / 2)
            for c in range(k)
        )
        total = total + jnp.log(density)
    freedom = d + given["m"] + 1
    for factor in factors:
        precision = factor.T @ factor
        total = total + 0.5 * (freedom - d - 1) * jnp.linalg.slogdet(precision)[1]
        total = total - 0.5 * gamma**2 * jnp.trace(precision)
        total = total - 0.5 * freedom * d * jnp.log(2.0) + freedom * d * jnp.log(gamma)
        total = total - jax.scipy.special.multigammaln(freedom / 2, d)
    return total


def test_gmm() -> None:
    d, k, n = 3, 2, 4
    given = {
        "d": d,
        "k": k,
        "n": n,
        "x": RNG.normal(size=(n, d)).tolist(),
        "m": 1,
        "gamma": 1.3,
        "alpha": RNG.normal(size=k).tolist(),
        "mu": RNG.random((k, d)).tolist(),
        "q": RNG.normal(size=(k, d)).tolist(),
        "l": RNG.normal(size=(k, d * (d - 1) // 2)).tolist(),
    }
    with jax.enable_x64(True):
        parameters = [jnp.array(given[name]) for name in ("alpha", "mu", "q", "l")]
        value, slopes = jax.value_and_grad(lambda parameters: naive_posterior(given, *parameters))(
            parameters
        )
    same(run("gmm", "objective", given), value)
    found = run("gmm", "jacobian", given)
    for name, slope in zip(("alpha", "mu", "q", "l"), slopes):
        same(found[name], slope)


def test_kmeans() -> None:
    points = RNG.random((30, 3))
    centroids = points[-4:]
    given = {"points": points.tolist(), "centroids": centroids.tolist()}
    squares = np.sum((points[:, None] - centroids) ** 2, axis=2)
    own = np.argmin(squares, axis=1)
    same(run("kmeans", "cost", given), np.sum(np.min(squares, axis=1)))
    means = np.stack([points[own == j].mean(axis=0) for j in range(4)])
    same(run("kmeans", "dir", given), centroids - means)


def test_ba() -> None:
    n, m, p = 2, 3, 5
    camera = np.array([0.1, -0.2, 0.3, 0.2, 0.1, -5.0, 400.0, 3.0, -2.0, 0.01, -0.02])
    point, weight, feature = np.array([0.3, -0.4, 0.5]), 0.7, np.array([20.0, -10.0])
    given = {
        "n": n,
        "m": m,
        "p": p,
        "cam": camera.tolist(),
        "x": point.tolist(),
        "w": weight,
        "feat": feature.tolist(),
    }

    def errors(parameters: np.ndarray) -> np.ndarray:
        camera, point, weight = parameters[:11], parameters[11:14], parameters[14]
        angle = np.linalg.norm(camera[:3])
        axis = camera[:3] / angle
        cross = np.cross(np.eye(3), axis)
        turn = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
        seen = turn @ (point - camera[3:6])
        flat = seen[:2] / seen[2]
        r = flat @ flat
        flat = flat * (1 + camera[9] * r + camera[10] * r * r)
        return weight * (flat * camera[6] + camera[7:9] - feature)

    parameters = np.concatenate([camera, point, [weight]])
    found = run("ba", "objective", given)
    same(found["reproj_error"]["elements"], errors(parameters))
    assert found["reproj_error"]["repeated"] == p and found["w_err"]["repeated"] == p
    same(found["w_err"]["element"], 1.0 - weight**2)
    rows = [differences(lambda x, i=i: errors(x)[i], parameters) for i in range(2)]
    found = run("ba", "jacobian", given)
    same(found["vals"], np.concatenate([*rows, [-2.0 * weight]]), 1e-5)
    first = [*range(11), *range(22, 25), 31]
    assert found["cols"] == [*first, *first, 11 * n + 3 * m + p - 1]
    pointers = [*(15 * i for i in range(2 * p + 1)), *(30 * p + i for i in range(1, p + 1))]
    assert found["rows"] == [*pointers[:30], pointers[-1]]


def published_hand(theta: Any, us: Any, *model: Any) -> jax.Array:
    """As ADBench has it: bones, then all vertices, then those that points belong to."""
    relative, inverse, rest, weights, triangles, owners, points = model
    pose = jnp.zeros((len(hand.PARENTS), 2), theta.dtype)
    angles = theta[6:].reshape(hand.FINGERS, hand.ANGLES)
    for f in range(hand.FINGERS):
        pose = pose.at[2 + 4 * f].set(angles[f, :2])
        pose = pose.at[3 + 4 * f, 0].set(angles[f, 2]).at[4 + 4 * f, 0].set(angles[f, 3])
    local = relative @ jax.vmap(hand.bend)(pose[:, 0], pose[:, 1])
    absolute: list[Any] = []
    for i, parent in enumerate(hand.PARENTS):
        absolute.append(local[i] if parent < 0 else absolute[parent] @ local[i])
    transforms = jnp.stack(absolute) @ inverse
    vertices = jnp.einsum("vb,bij,vj->vi", weights, transforms[:, :3], rest)
    vertices = vertices @ hand.rotation_about(theta[:3]).T + theta[3:6]
    if us.shape[0] == 0:
        return points - vertices[owners]
    corners = vertices[triangles[owners]]
    shares = jnp.concatenate([us, 1.0 - jnp.sum(us, axis=1, keepdims=True)], axis=1)
    return points - jnp.einsum("ck,cki->ci", shares, corners)


@pytest.mark.parametrize("complicated", [False, True])
def test_ht(complicated: bool) -> None:
    arrays = hand.data(12, 6, 5, complicated)
    theta, us, relative, inverse, rest, weights, triangles, owners, points = arrays
    model = {
        "bone_count": len(hand.PARENTS),
        "bone_names": ["bone"] * len(hand.PARENTS),
        "parents": list(hand.PARENTS),
        "base_relatives": relative.tolist(),
        "inverse_base_absolutes": inverse.tolist(),
        "base_positions": rest.tolist(),
        "weights": weights.tolist(),
        "triangles": triangles.tolist(),
        "is_mirrored": False,
    }
    data = {"model": model, "correspondences": owners.tolist(), "points": points.tolist()}
    given = {"theta": theta.tolist(), "data": data, "us": us.tolist()}
    with jax.enable_x64(True):
        value = jax.jit(published_hand)(*arrays)
        by_theta = jax.jit(jax.jacrev(published_hand))(*arrays).reshape(-1, theta.size)
        by_us = jax.jit(jax.jacrev(published_hand, argnums=1))(*arrays)
    same(run("ht", "objective", given), np.asarray(value).ravel())
    columns = [np.asarray(by_theta)]
    if complicated:
        own = np.stack([np.asarray(by_us)[i, :, i] for i in range(len(us))])
        columns = [own.reshape(-1, 2), *columns]
    same(run("ht", "jacobian", given), np.concatenate(columns, axis=1))


def naive_lstm(main: Any, extra: Any, state: Any, sequence: Any) -> jax.Array:
    """One number after another, as ADBench's C++ has it."""
    layers, bits = main.shape[0] // 2, sequence.shape[1]
    hidden = [state[2 * i] for i in range(layers)]
    memory = [state[2 * i + 1] for i in range(layers)]
    total = jnp.zeros(())
    for t in range(sequence.shape[0] - 1):
        signal = sequence[t] * extra[0]
        for i in range(layers):
            weight, bias = main[2 * i].reshape(4, bits), main[2 * i + 1].reshape(4, bits)
            forget = 1 / (1 + jnp.exp(-(signal * weight[0] + bias[0])))
            enter = 1 / (1 + jnp.exp(-(hidden[i] * weight[1] + bias[1])))
            leave = 1 / (1 + jnp.exp(-(signal * weight[2] + bias[2])))
            change = jnp.tanh(hidden[i] * weight[3] + bias[3])
            memory[i] = memory[i] * forget + enter * change
            hidden[i] = signal = leave * jnp.tanh(memory[i])
        predicted = signal * extra[1] + extra[2]
        total = total + sequence[t + 1] @ (predicted - jnp.log(jnp.sum(jnp.exp(predicted)) + 2))
    return -total / ((sequence.shape[0] - 1) * bits)


def test_lstm() -> None:
    layers, bits, length = 2, 3, 5
    main, extra = RNG.random((2 * layers, 4 * bits)), RNG.random((3, bits))
    state, sequence = RNG.random((2 * layers, bits)), RNG.integers(0, 2, (length, bits)) * 1.0
    given = {
        "main_params": main.tolist(),
        "extra_params": extra.tolist(),
        "state": state.tolist(),
        "sequence": sequence.tolist(),
    }
    with jax.enable_x64(True):
        value, slopes = jax.value_and_grad(naive_lstm, argnums=(0, 1))(main, extra, state, sequence)
    same(run("lstm", "objective", given), value)
    same(run("lstm", "jacobian", given), np.concatenate([np.ravel(slope) for slope in slopes]))


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["ff", "fr", "rf", "rr"])
def test_particle(variant: str) -> None:
    same(run("particle", variant, {"w": 0.0}), 0.2071918746486116)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["ff", "fr", "rf", "rr"])
def test_saddle(variant: str) -> None:
    same(run("saddle", variant, {"start": [1.0, 1.0]}), np.full(4, 8.246324826140356e-06))
