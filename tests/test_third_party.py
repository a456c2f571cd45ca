"""Other people's code, lifted unchanged, gives what `jax.vmap` of it gives.

Every case is a small instance of a sampler, solver or optimizer whose lanes need different numbers of
iterations; the case says which of its results counts them, and the test first makes sure that they do
differ. The code is reached through each library's ordinary interface: nothing is patched or rewritten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
import needs
from _programs import van_der_pol
from lanewise.core.errors import OptionError

SCHEDULES = ("sweep", "lowest", "most")
LANES = 5


@dataclass(frozen=True)
class Lifted:
    """A third-party function for one example, and arguments for a batch of them."""

    name: str
    needs: str
    make: Callable[
        [Any], Callable[..., tuple[Any, jax.Array]]
    ]  # library -> (answer, work) function
    arguments: Callable[[], tuple[jax.Array, ...]]
    schedules: tuple[str, ...] = SCHEDULES
    calls_back: bool = False  # checks that raise on the host, which separate lanes cannot
    rtol: float = 1e-4
    atol: float = 1e-5


def keys() -> jax.Array:
    return jax.random.split(jax.random.key(0), LANES)


def positions() -> jax.Array:
    return jax.random.normal(jax.random.key(1), (LANES, 2))


def funnel(x: jax.Array) -> jax.Array:
    """The log density of Neal's funnel: its neck and its mouth want different step sizes."""
    neck, rest = x[0], x[1:]
    return -0.5 * (neck**2 / 9.0 + jnp.sum(rest**2 * jnp.exp(-neck)) + rest.size * neck)


def rosenbrock(y: jax.Array, steepness: jax.Array) -> jax.Array:
    return (1.0 - y[0]) ** 2 + steepness * (y[1] - y[0] ** 2) ** 2


def cubic(y: jax.Array, offset: jax.Array) -> jax.Array:
    return y**3 + y - offset


# -- samplers ------------------------------------------------------------------------------------


def blackjax_nuts(blackjax: Any) -> Callable[..., Any]:
    kernel = blackjax.nuts.build_kernel()

    def draws(key: jax.Array, start: jax.Array, step_size: jax.Array) -> tuple[Any, jax.Array]:
        def draw(state: Any, key: jax.Array) -> tuple[Any, Any]:
            mass = jnp.ones(start.shape)
            state, info = kernel(key, state, funnel, step_size, mass, max_num_doublings=5)
            return state, (state.position, info.num_integration_steps)

        state = blackjax.nuts.init(start, funnel)
        _, (trace, leapfrogs) = lax.scan(draw, state, jax.random.split(key, 3))
        return trace, leapfrogs

    return draws


def blackjax_mclmc(blackjax: Any) -> Callable[..., Any]:
    """MCLMC takes one step per draw, so lanes differ by how long they take to leave a ball."""
    sampler = blackjax.mclmc(lambda x: -0.5 * jnp.sum(x**2), L=2.0, step_size=0.3)

    def exit_time(key: jax.Array, start: jax.Array, radius: jax.Array) -> tuple[Any, jax.Array]:
        first, key = jax.random.split(key)

        def inside(carry: Any) -> jax.Array:
            state, steps = carry
            return (jnp.sum(state.position**2) < radius**2) & (steps < 40)

        def step(carry: Any) -> Any:
            state, steps = carry
            state, _ = sampler.step(jax.random.fold_in(key, steps), state)
            return state, steps + 1

        return lax.while_loop(inside, step, (sampler.init(start, first), jnp.int32(0)))

    return exit_time


def numpyro_nuts(numpyro_infer: Any) -> Callable[..., Any]:
    def draws(key: jax.Array, start: jax.Array, step_size: jax.Array) -> tuple[Any, jax.Array]:
        kernel = numpyro_infer.NUTS(
            potential_fn=lambda x: -funnel(x),
            step_size=step_size,
            adapt_step_size=False,
            adapt_mass_matrix=False,
            max_tree_depth=5,
        )

        def draw(state: Any, _: None) -> tuple[Any, Any]:
            state = kernel.sample(state, (), {})
            return state, (state.z, state.num_steps)

        state = kernel.init(key, 0, start, (), {})
        _, (trace, leapfrogs) = lax.scan(draw, state, None, length=3)
        return trace, leapfrogs

    return draws


# -- solvers -------------------------------------------------------------------------------------


def diffrax_solve(diffrax: Any, *, throw: bool) -> Callable[..., Any]:
    """Van der Pol's oscillator: the larger `mu`, the stiffer, the more steps."""

    def solve(mu: jax.Array) -> tuple[Any, jax.Array]:
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(van_der_pol),
            diffrax.Tsit5(),
            t0=0.0,
            t1=2.0,
            dt0=0.1,
            y0=jnp.array([2.0, 0.0]),
            args=mu,
            saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, 2.0, 4)),
            stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-5),
            max_steps=2000,
            throw=throw,
        )
        return solution.ys, solution.stats["num_steps"]

    return solve


def optimistix_newton(optimistix: Any) -> Callable[..., Any]:
    def find(offset: jax.Array, guess: jax.Array) -> tuple[Any, jax.Array]:
        solver = optimistix.Newton(rtol=1e-4, atol=1e-4)
        found = optimistix.root_find(cubic, solver, guess, args=offset, max_steps=64, throw=False)
        return found.value, found.stats["num_steps"]

    return find


def optimistix_bisection(optimistix: Any) -> Callable[..., Any]:
    """With `throw` left at its default: the solver's own run-time checks are part of the program."""

    def find(offset: jax.Array, lower: jax.Array) -> tuple[Any, jax.Array]:
        solver = optimistix.Bisection(rtol=1e-3, atol=1e-3)
        options = {"lower": lower, "upper": 10.0}
        middle = 0.5 * (lower + 10.0)
        found = optimistix.root_find(
            cubic, solver, middle, args=offset, options=options, max_steps=64
        )
        return found.value, found.stats["num_steps"]

    return find


def optimistix_minimise(optimistix: Any, method: str) -> Callable[..., Any]:
    def find(start: jax.Array, steepness: jax.Array) -> tuple[Any, jax.Array]:
        solver = getattr(optimistix, method)(rtol=1e-3, atol=1e-3)
        found = optimistix.minimise(
            rosenbrock, solver, start, args=steepness, max_steps=128, throw=False
        )
        return found.value, found.stats["num_steps"]

    return find


MU = (0.1, 1.0, 5.0, 20.0, 60.0)
STEP_SIZES = (0.05, 0.3, 0.5, 0.8, 1.0)
OFFSETS = (0.0, 1.0, 10.0, 100.0, -100.0)

CASES = (
    Lifted(
        "blackjax-nuts",
        "blackjax",
        blackjax_nuts,
        lambda: (keys(), positions(), jnp.array(STEP_SIZES)),
    ),
    Lifted(
        "blackjax-mclmc",
        "blackjax",
        blackjax_mclmc,
        lambda: (keys(), 0.1 * positions(), jnp.array([0.0, 0.5, 1.0, 2.0, 9.0])),
    ),
    Lifted(
        "numpyro-nuts",
        "numpyro.infer",
        numpyro_nuts,
        lambda: (keys(), positions(), jnp.array(STEP_SIZES)),
    ),
    Lifted(
        "diffrax-adaptive",
        "diffrax",
        lambda diffrax: diffrax_solve(diffrax, throw=False),
        lambda: (jnp.array(MU),),
        calls_back=True,
    ),
    Lifted(
        "diffrax-adaptive-throw",
        "diffrax",
        lambda diffrax: diffrax_solve(diffrax, throw=True),
        lambda: (jnp.array(MU),),
        schedules=("sweep",),
        calls_back=True,
    ),
    Lifted(
        "optimistix-newton",
        "optimistix",
        optimistix_newton,
        lambda: (jnp.array(OFFSETS), jnp.array([0.0, 1.0, -20.0, 300.0, 2.0])),
    ),
    Lifted(
        "optimistix-bisection",
        "optimistix",
        optimistix_bisection,
        lambda: (jnp.array(OFFSETS), jnp.array([-21.0, -20.0, -9.0, -50.0, -300.0])),
        schedules=("sweep",),
        calls_back=True,
    ),
    Lifted(
        "optimistix-bfgs",
        "optimistix",
        lambda optimistix: optimistix_minimise(optimistix, "BFGS"),
        lambda: (positions(), jnp.array([0.0, 1.0, 5.0, 10.0, 20.0])),
        # Near the minimum the last steps amplify differences in rounding.
        rtol=1e-3,
        atol=1e-3,
    ),
    Lifted(
        "optimistix-nelder-mead",
        "optimistix",
        lambda optimistix: optimistix_minimise(optimistix, "NelderMead"),
        lambda: (positions(), jnp.array([0.1, 1.0, 5.0, 10.0, 20.0])),
        schedules=("sweep",),
        rtol=1e-3,
        atol=1e-3,
    ),
)

# A library's code is long to compile: in `make test` each runs under one schedule, in turns.
RUNS = [
    pytest.param(
        case,
        schedule,
        id=f"{case.name}-{schedule}",
        marks=() if i == at % len(case.schedules) else pytest.mark.slow,
    )
    for at, case in enumerate(CASES)
    for i, schedule in enumerate(case.schedules)
]


def assert_same(got: Any, want: Any, case: Lifted) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(ours, theirs, rtol=case.rtol, atol=case.atol)


@pytest.mark.parametrize(("case", "schedule"), RUNS)
def test_lifted_equals_vmap(case: Lifted, schedule: str) -> None:
    library = needs.library(case.needs)
    fun, arguments = case.make(library), case.arguments()

    want, work = jax.jit(jax.vmap(fun))(*arguments)
    assert len({row.tobytes() for row in np.asarray(work)}) >= 3, "the lanes do not diverge"

    got, our_work = jax.jit(lw.vmap(fun, schedule=schedule))(*arguments)
    np.testing.assert_array_equal(our_work, work)
    assert_same(got, want, case)


CARRIERS: tuple[dict[str, Any], ...] = ({"carrier": "native"}, {"carrier": "auto", "lanes": 2})


@pytest.mark.parametrize("case", needs.in_turns(CASES), ids=lambda case: case.name)
def test_lanes_by_themselves_equal_vmap(case: Lifted) -> None:
    """In compiled loops, and as `auto` has it through fewer lanes than examples, outside `jit` too."""
    library = needs.library(case.needs)
    fun, arguments = case.make(library), case.arguments()
    want, work = jax.jit(jax.vmap(fun))(*arguments)
    for options in CARRIERS:
        if case.calls_back and options["carrier"] == "native":
            with pytest.raises(OptionError, match=r"pure_callback.*_error"):
                lw.vmap(fun, **options)(*arguments)
            continue
        got, our_work = lw.vmap(fun, **options)(*arguments)
        np.testing.assert_array_equal(our_work, work)
        assert_same(got, want, case)


@pytest.mark.parametrize("case", CASES[:4:3], ids=lambda case: case.name)
def test_a_lifted_function_is_an_ordinary_jax_function(case: Lifted) -> None:
    """`lw.lift` once, then plain `jax.vmap` outside `jit`, and a lone call."""
    library = needs.library(case.needs)
    fun, arguments = case.make(library), case.arguments()
    lifted = lw.lift(fun)

    want = jax.jit(jax.vmap(fun))(*arguments)
    assert_same(jax.vmap(lifted)(*arguments), want, case)

    last = tuple(argument[-1] for argument in arguments)
    assert_same(lifted(*last), jax.jit(fun)(*last), case)


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=lambda case: case.name)
def test_a_lane_does_not_depend_on_its_neighbours(case: Lifted) -> None:
    """The hardest lane alone, with easy ones, and with itself: bit for bit the same."""
    library = needs.library(case.needs)
    run = jax.jit(lw.vmap(case.make(library), schedule="sweep"))
    arguments = case.arguments()
    whole = run(*arguments)
    for order in ([4, 4, 4, 4, 4], [0, 0, 4, 0, 0], [4, 3, 2, 1, 0]):
        again = run(*(argument[jnp.array(order)] for argument in arguments))
        for ours, theirs in zip(jax.tree.leaves(again), jax.tree.leaves(whole)):
            np.testing.assert_array_equal(ours, np.asarray(theirs)[order])
