"""NUTS chains over two places, which adapt together.

Chains need nothing of each other while they draw, so each half of them is one part: the recursion of the sampler, for
many chains at once, compiled for its place and without a message inside. After each window of the warm-up the halves
meet: means and squares of their draws travel, a few numbers, and both go on with the scale and the step size of all
chains. At the end the draws do.

The posterior is that of the eight schools (Rubin 1981), in coordinates without a funnel.
"""

from __future__ import annotations

from typing import Any

from where import places, same, show  # isort: skip

import arviz
import jax
import jax.numpy as jnp
import numpy as np

import lanewise as lw
from lanewise import mcmc
from lanewise.mcmc.adapt import step_after, step_from
from lanewise.mcmc.space import place_at, unwhitened, whitened

EFFECTS = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
SAMPLER, HALVES, WINDOWS = mcmc.NUTS(), 2, 4


def density(position: jax.Array) -> jax.Array:
    """Of the mean of all schools, the logarithm of their spread, and how far each is from the mean."""
    mean, log_spread, apart = position[0], position[1], position[2:]
    school = mean + jnp.exp(log_spread) * apart
    likelihood = -0.5 * jnp.sum(((EFFECTS - school) / ERRORS) ** 2)
    prior = -0.5 * ((mean / 5.0) ** 2 + jnp.sum(apart**2))
    return likelihood + prior + log_spread - jnp.log1p((jnp.exp(log_spread) / 5.0) ** 2)


def stretch(draws: int, tunes: bool) -> Any:
    """Some draws of many chains: a function of keys, positions, the scale and the step size."""

    @lw.program
    def chain(key, position, scale, step):
        place = place_at(density, scale, whitened(scale, position))
        adapting = step_from(step)
        kept = jnp.zeros((draws, position.size))
        for i in range(draws):
            tried = jnp.exp(adapting.log_step) if tunes else step
            place, info = SAMPLER.draw(density, scale, jax.random.fold_in(key, i), place, tried)
            adapting = step_after(adapting, info.acceptance, SAMPLER.target_accept)
            kept = kept.at[i].set(unwhitened(scale, place.position))
        return kept, adapting.log_average

    return lw.vmap(chain, in_axes=(0, 0, None, None))


def sample(keys: jax.Array, positions: jax.Array, window: int, draws: int) -> list[Any]:
    """Draws of chains in halves: keys and positions are `[half, chain, ...]`."""

    def warm(carry: Any, number: jax.Array) -> Any:
        positions, scale, step = carry
        found = []
        for half in range(HALVES):

            def run(keys: Any, start: Any, number: Any, scale: Any, step: Any) -> Any:
                own = jax.vmap(jax.random.fold_in, (0, None))(keys, -1 - number)
                kept, log_step = stretch(window, True)(own, start, scale, step)
                # All that the other half gets to know.
                moments = kept.mean((0, 1)), (kept**2).mean((0, 1)), log_step.mean()
                return kept[:, -1], moments

            part = lw.placed(run, "chains", half)
            found.append(part(keys[half], positions[half], number, scale, step))
        ends, moments = zip(*found, strict=True)
        mean, square, log_step = (sum(each) / HALVES for each in zip(*moments, strict=True))
        return (ends, jnp.sqrt(square - mean**2 + 1e-3), jnp.exp(log_step)), None

    start = tuple(positions), jnp.ones(positions.shape[-1]), jnp.float32(0.5)
    (ends, scale, step), _ = jax.lax.scan(warm, start, jnp.arange(WINDOWS))

    def run(keys: Any, start: Any, scale: Any, step: Any) -> Any:
        return stretch(draws, False)(keys, start, scale, step)[0]

    parts = [lw.placed(run, "chains", half) for half in range(HALVES)]
    return [part(k, p, scale, step) for part, k, p in zip(parts, keys, ends, strict=True)]


def main(chains: int = 64, window: int = 25, draws: int = 200) -> float:
    """How well the chains agree: R-hat of the mean of all schools."""
    keys = jax.random.split(jax.random.key(0), (HALVES, chains // HALVES))
    positions = jax.random.normal(jax.random.key(1), (HALVES, chains // HALVES, 10))
    run = lw.run(lambda k, p: sample(k, p, window, draws), {"chains": places(HALVES)})
    show(run.dry_run(keys, positions), "\n")

    found = jax.device_get(run(keys, positions))
    same(found, jax.jit(lambda k, p: sample(k, p, window, draws))(keys, positions))
    mean = np.concatenate(found)[..., 0]
    agree = float(arviz.rhat(mean))
    show(
        f"{mean.size} draws: the mean of all schools is {mean.mean():.2f} ± {mean.std():.2f}, R-hat {agree:.3f}"
    )
    return agree


if __name__ == "__main__":
    main()
