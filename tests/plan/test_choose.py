"""What a sample of lanes shows, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanewise as lw
import needs
from comparing import lanes_of
from corpus import Case, case_named
from cpp.test_corpus import operands_of
from lanewise.blocks.form import verify
from lanewise.blocks.link import Linked, link
from lanewise.core.options import Options
from lanewise.job.job import Job, blocks_of
from lanewise.plan import choose, measure
from lanewise.plan.measure import SAMPLED_LANES, Sample, counted, take_sample
from seeing import forget_plans
from test_corpus import batch

LANES = 512
WIDTH = 128


def network(x: jax.Array, weights: jax.Array, turns: jax.Array) -> jax.Array:
    """A loop of products: together they are cheaper by far, if all lanes turn as often."""

    def turn(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, done = carry
        return jnp.tanh(x @ weights), done + 1

    return lax.while_loop(lambda carry: carry[1] < turns, turn, (x, jnp.int32(0)))[0]


def arguments(turns: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    key, other = jax.random.split(jax.random.key(0))
    weights = jax.random.normal(key, (WIDTH, WIDTH)) / np.sqrt(WIDTH)
    return jax.random.normal(other, (LANES, WIDTH)), weights, jnp.asarray(turns, jnp.int32)


STEADY = np.full(LANES, 12)
# A few lanes, some of them in any sample, take a hundred times as long as the others.
DIVERGING = np.where(np.arange(LANES) % 31 == 0, 400, 4)
AXES = (0, None, 0)


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> list[Sample | None]:
    """The samples taken from now on."""
    taken: list[Sample | None] = []

    def take(*args: Any, **kwargs: Any) -> Sample | None:
        taken.append(take_sample(*args, **kwargs))
        return taken[-1]

    monkeypatch.setattr(choose, "take_sample", take)
    forget_plans()
    return taken


def sampled(case: Case) -> tuple[Linked, Sample | None]:
    args = batch(case.name)
    program, operands, varying = operands_of(case, args)
    linked = link(blocks_of(program, varying, Options()), varying)
    mapped = tuple((flag,) for flag in varying)
    lanes = (lanes_of(case.in_axes, args),)
    return linked, take_sample(linked, operands, Job(program, lanes, mapped, Options()))


@needs.compiler
@pytest.mark.parametrize("name", ["collatz", "fibonacci", "is_even", "quicksort", "recursive_nuts"])
def test_visits_make_up_the_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "FEWEST_LANES", 1)
    linked, found = sampled(case_named(name))
    assert found is not None and found.cut == 0 and len(found.steps) == SAMPLED_LANES
    steps = np.array([getattr(item, "steps", 0) for item in linked.order])
    np.testing.assert_array_equal(found.visits @ steps, found.steps)
    assert found.divergence >= 1 and (found.most(10**6) >= found.visits.max(0)).all()


def test_counting_is_a_pass_over_blocks() -> None:
    program, _, varying = operands_of(case_named("quicksort"), batch("quicksort"))
    blocks = blocks_of(program, varying, Options())
    scalar = jax.typeof(jnp.int32(0))
    from lanewise import _jax

    counters = {block.label: _jax.new_var(scalar) for _, block in blocks.all_blocks()}
    verify(counted(blocks, counters))


def test_the_longest_of_many_is_guessed_from_the_tail() -> None:
    same = Sample(np.full((32, 2), 7.0), np.full(32, 7.0), 0)
    np.testing.assert_array_equal(same.most(10**6), [7, 7])
    steps = np.random.default_rng(0).geometric(0.01, 32).astype(float)
    tail = Sample(steps[:, None], steps, 0)
    assert tail.most(32)[0] >= steps.max()
    assert 500 < tail.most(1024)[0] < 1400  # log(1024) times the mean of a hundred is about 700


@needs.compiler
def test_divergence_decides_how_products_run(samples: list[Sample | None]) -> None:
    steady = lw.inspect(lw.lift(network), *arguments(STEADY), in_axes=AXES)
    assert steady.plan.schedule == "plain" and "measured on 32 lanes" in str(steady)
    assert samples[0] is not None and samples[0].divergence == 1.0
    diverging = lw.inspect(
        lw.lift(lambda *args: network(*args)), *arguments(DIVERGING), in_axes=AXES
    )
    assert not diverging.plan.plain and "times as many as one on average" in diverging.plan.why
    assert samples[1] is not None and samples[1].divergence > 5


@needs.compiler
@pytest.mark.parametrize("turns", [STEADY, DIVERGING], ids=["steady", "diverging"])
def test_a_signature_is_sampled_once_and_answers_stay(
    turns: np.ndarray, samples: list[Sample | None]
) -> None:
    args = arguments(turns)
    run = lw.vmap(network, in_axes=AXES)
    first = run(*args)
    again = run(*args)
    run(*arguments(STEADY))
    assert len(samples) == 1 and samples[0] is not None
    np.testing.assert_array_equal(first, again)
    expected = jax.jit(jax.vmap(network, in_axes=AXES))(*args)
    np.testing.assert_allclose(first, expected, rtol=1e-4, atol=1e-5)
    inside = jax.jit(lw.vmap(network, in_axes=AXES))(*args)
    assert len(samples) == 1, "inside jit there are no lanes to look at"
    np.testing.assert_allclose(first, inside, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("fun", "options"),
    [
        (network, {"carrier": "ticks"}),
        (network, {"schedule": "sweep"}),
        (network, {"stats": True}),
        (lambda x, w, turns: lax.fori_loop(0, turns, lambda i, x: x * 0.5, x), {}),
    ],
    ids=["carrier", "schedule", "stats", "scalar work"],
)
def test_what_is_decided_is_not_sampled(
    fun: Callable[..., Any], options: dict[str, Any], samples: list[Sample | None]
) -> None:
    lw.vmap(fun, in_axes=AXES, **options)(*arguments(STEADY))
    assert not samples


def test_small_batches_run_at_once(samples: list[Sample | None]) -> None:
    x, weights, turns = arguments(STEADY)
    lw.vmap(network, in_axes=AXES)(x[:100], weights, turns[:100])
    assert samples in ([], [None])


def test_what_calls_back_is_not_sampled(samples: list[Sample | None]) -> None:
    shape = jax.ShapeDtypeStruct((), jnp.int32)

    def asked(x: jax.Array, weights: jax.Array, turns: jax.Array) -> jax.Array:
        turns = jax.pure_callback(lambda turns: turns, shape, turns, vmap_method="expand_dims")
        return network(x, weights, turns)

    args = arguments(STEADY)
    found = lw.vmap(asked, in_axes=AXES)(*args)
    assert samples in ([], [None])
    expected = jax.jit(jax.vmap(network, in_axes=AXES))(*args)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@needs.compiler
def test_a_sample_ends(samples: list[Sample | None]) -> None:
    """Lanes that take too long are cut off; where most are, the sample says nothing."""
    x, weights, _ = arguments(STEADY)
    long = lw.lift(lambda *args: network(*args))
    found = lw.inspect(long, x, weights, jnp.full(LANES, 2**30), in_axes=AXES)
    assert samples == [None] and "measured" not in found.plan.why
    some = jnp.where(jnp.arange(LANES) % 31 == 0, 2**30, 3)
    found = lw.inspect(lw.lift(network), x, weights, some, in_axes=AXES)
    assert samples[1] is not None and 0 < samples[1].cut < SAMPLED_LANES
    assert "of them cut off there" in found.plan.why


@needs.compiler
def test_lanes_of_several_axes_and_keys(samples: list[Sample | None]) -> None:
    x, weights, turns = arguments(STEADY)
    keys = jax.random.split(jax.random.key(1), 16)

    def noisy(key: jax.Array, x: jax.Array, turns: jax.Array) -> jax.Array:
        return network(x + jax.random.normal(key, x.shape), weights, turns)

    rows, few = x[:32], turns[:32]
    run = lw.vmap(lw.lift(lambda key: lw.vmap(lambda x, t: noisy(key, x, t))(rows, few)))
    both = jax.vmap(jax.vmap(noisy, (None, 0, 0)), (0, None, None))
    expected = both(keys, rows, few)
    np.testing.assert_allclose(run(keys), expected, rtol=1e-4, atol=1e-5)
    lifted = lw.lift(noisy)
    nested = jax.vmap(jax.vmap(lifted, (None, 0, 0)), (0, None, None))
    np.testing.assert_allclose(nested(keys, rows, few), expected, rtol=1e-4, atol=1e-5)
    assert samples and all(found is not None and found.divergence == 1 for found in samples)


@needs.on_cpu
def test_a_meeting_is_shared_by_the_lanes_there_are() -> None:
    """Small products of few lanes are no reason to meet: what a meeting costs beside them is theirs alone."""

    @lw.program
    def shared_out(weights, x, depth):
        if depth == 0:
            return x
        h = jnp.tanh(weights @ jnp.concatenate([x, shared_out(weights, x, depth - 1)]))
        return h[: x.size] + shared_out(weights, h[x.size :], depth - 1)

    def way(lanes: int, width: int) -> str:
        weights, xs = jnp.ones((2 * width, 2 * width)), jnp.ones((lanes, width))
        plan = lw.inspect(
            shared_out.with_options(max_depth=8), weights, xs, 3, in_axes=(None, 0, None)
        ).plan
        return plan.schedule if plan.carrier == "ticks" else plan.carrier

    assert way(lanes=64, width=40) == "native"
    assert way(lanes=8192, width=40) == "meet"
    assert way(lanes=8192, width=4) == "native"


@needs.compiler
def test_lanes_that_meet_in_loops_in_loops_run_by_themselves() -> None:
    """A machine would sweep them; their products are as large where those of a core meet, but for few lanes."""

    def read(x: jax.Array, weights: jax.Array, turns: jax.Array) -> jax.Array:
        def part(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, done = carry
            return network(x, weights, turns - done), done + 1

        return lax.while_loop(lambda carry: carry[1] < turns, part, (x, jnp.int32(0)))[0]

    width = 512
    weights, turns = jnp.eye(width), jnp.arange(64) % 7

    def planned(lanes: int) -> Any:
        rows = jnp.ones((lanes, width))
        return lw.inspect(lw.lift(read), rows, weights, turns[:lanes], in_axes=AXES).plan

    assert planned(64).carrier == "native" and "meet at products" in planned(64).why
    assert planned(32).schedule == "sweep"
