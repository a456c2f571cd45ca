"""What is wrong with a run, in words: findings, each with advice that depends on the settings, and their warnings.

The rules are those of Stan and ArviZ: rank-normalized split R-hat above 1.01 and bulk or tail ESS below 100 a chain
(Vehtari et al. 2021), trajectories that end at the depth limit, E-BFMI below 0.3 (Betancourt 2016), divergences. With
many chains R-hat asks for more draws than are needed, so nested R-hat is used there (Margossian et al. 2024; the essay
of `watch/convergence.py`), and 400 effective draws in all are enough. Chains that failed or never moved are reported,
and left out of the rest. Not all variables are examined closely: a screen of all chooses the worst, and where there are
very many draws, one in several is used, so that memory is bounded.

Limits: no rule detects a mode that no chain has found.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lanewise.mcmc.mclmc import MCLMC
from lanewise.mcmc.nuts import GREATEST_DEPTH, NUTS
from lanewise.mcmc.settings import Settings
from lanewise.watch.convergence import (
    FEWEST_DRAWS,
    Scored,
    Summary,
    e_bfmi,
    e_bfmi_of_all,
    lost,
    mixing,
    scored,
    summary,
)
from lanewise.watch.draws import Draws, draws_of, group
from lanewise.watch.limits import (
    GREATEST_R_HAT,
    LEAST_E_BFMI,
    LEAST_ESS,
    MANY_CHAINS,
    cut_short,
    is_sure,
    least_ess,
)
from lanewise.watch.report import add_sampling
from lanewise.watch.screen import split_rhat

DRAWS_FOR_E_BFMI = 50
# A larger step, in coordinates that have been scaled, finds no end of the posterior. Stan takes the same.
GREATEST_STEP = 1e7
# What is advised in place of a lower acceptance.
HIGHER_TARGETS = (0.9, 0.95, 0.99)
# Smaller shares of the draws are not worth a warning.
LEAST_SHARE_DIVERGENT, LEAST_SHARE_AT_LIMIT = 1e-4, 1e-3
# This many variables are examined closely, and this many numbers in all.
WORST, MOST_NUMBERS = 8, 2_000_000
# At most this many chains are named in a warning.
NAMED = 8


class SamplingWarning(UserWarning):
    """What is wrong with a run: chains that failed or never moved, draws that are not reliable."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: what kind, what was found, and what to do."""

    kind: str
    text: str
    advice: str


@dataclass(frozen=True)
class Course:
    """A run's settings, and which chains moved and failed."""

    sampler: Any
    warmup: int
    mass_matrix: str
    moved: np.ndarray
    failed: np.ndarray

    @classmethod
    def of(cls, settings: Settings, moved: np.ndarray, failed: np.ndarray) -> Course:
        return cls(settings.sampler, settings.warmup, settings.mass_matrix, moved, failed)


def findings(data: Any, course: Course) -> tuple[Finding, ...]:
    """What is wrong with a run's ArviZ data, the worst first."""
    found = [*_chains_lost(course)]
    stats = group(data, "sample_stats")
    found += _improper(np.asarray(stats["step_size"])[~course.failed])
    used = course.moved & ~course.failed
    if not used.any():
        return tuple(found)
    found += _divergences(np.asarray(stats["diverging"])[used], course)
    seen, apart = _some_draws(data)
    at = np.isin(seen.chains, np.flatnonzero(used))
    if at.any() and seen.draws >= FEWEST_DRAWS:
        # Most often all chains are used, and nothing is copied.
        variables = {n: v if at.all() else v[at] for n, v in seen.variables.items()}
        found += _convergence(variables, apart, course)
    if isinstance(course.sampler, NUTS):
        found += _depth(np.asarray(stats["n_steps"])[used], course)
    if not isinstance(course.sampler, MCLMC):
        found += _energy(np.asarray(stats["energy"])[used])
    return tuple(found)


def diagnosed(data: Any, course: Course, more: Callable[[], tuple[Finding, ...]] = tuple) -> None:
    """Warn of what is wrong with a run, of `more` too, and add the run to the reports that are open.

    What fails here is a warning.
    """
    found = attempted("The diagnosis of the draws", lambda: (*findings(data, course), *more()))
    for one in found or ():
        warn(f"{one.text} {one.advice}")
    title = f"{len(course.moved)} chains by {course.sampler}"
    attempted("The report", lambda: add_sampling(data, title=title, findings=found))


def attempted(what: str, make: Callable[[], Any]) -> Any:
    """What is made of draws, or None with a warning: a run that has ended is not lost to what comes after it."""
    try:
        return make()
    except Exception as error:
        warn(
            f"{what} failed by {type(error).__name__}: {error}. The draws are not touched by that."
        )
    return None


def warn(text: str) -> None:
    """A `SamplingWarning` at the line that called this library."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "lanewise":
        level, frame = level + 1, frame.f_back
    warnings.warn(text, SamplingWarning, stacklevel=level)


# -- the rules -----------------------------------------------------------------------------------------


def _chains_lost(course: Course) -> Iterator[Finding]:
    failed, stuck = course.failed, ~course.moved & ~course.failed
    if failed.any():
        whose = "its draws are" if failed.sum() == 1 else "their draws are"
        yield Finding(
            "failed",
            f"{_chains(failed)} failed: {whose} NaN from there on.",
            "See where the density or its gradient is not a number.",
        )
    if stuck.any():
        at = "its start" if stuck.sum() == 1 else "their starts"
        yield Finding(
            "stuck",
            f"{_chains(stuck)} never moved.",
            f"See init= and the density at {at}.",
        )


def _improper(steps: np.ndarray) -> Iterator[Finding]:
    chains = int((~(steps < GREATEST_STEP)).any(axis=1).sum())
    if chains:
        yield Finding(
            "improper",
            f"The step size of {chains:,} {'chain' if chains == 1 else 'chains'} grew beyond {GREATEST_STEP:.0e}: the"
            " posterior may be improper.",
            "Give every parameter a proper prior, and see that the density depends on each.",
        )


def _divergences(diverging: np.ndarray, course: Course) -> Iterator[Finding]:
    number = int(diverging.sum())
    if number <= LEAST_SHARE_DIVERGENT * diverging.size:
        return
    chains = int(diverging.any(axis=1).sum())
    yield Finding(
        "divergences",
        f"{number:,} of {diverging.size:,} draws diverged, in {chains:,} {'chain' if chains == 1 else 'chains'}.",
        _smaller_steps(course),
    )


def _smaller_steps(course: Course) -> str:
    coordinates = "other coordinates may help, such as non-centered ones."
    target = getattr(course.sampler, "target_accept", None)
    if course.warmup == 0:  # steps are as given, whatever the target
        return f"Smaller steps (step_size=) or {coordinates}"
    higher = [share for share in HIGHER_TARGETS if target is not None and share > target + 0.01]
    if not higher:
        return coordinates[0].upper() + coordinates[1:]
    return f"Smaller steps (target_accept={higher[0]}, now {target:g}) or {coordinates}"


def _convergence(variables: dict[str, np.ndarray], apart: int, course: Course) -> Iterator[Finding]:
    worst = list(variables)
    if len(worst) > WORST:
        scores = {name: split_rhat(values) for name, values in variables.items()}
        worst = sorted(scores, key=lambda name: -scores[name])[:WORST]
    chains, draws = next(iter(variables.values())).shape
    looked_at = "" if apart == 1 else f" by one draw in {apart}"
    more = f"Draw more: warmup={max(2 * course.warmup, 500)} and more draws"
    least = least_ess(chains)
    said: dict[str, Summary] | dict[str, Scored]
    if chains < MANY_CHAINS:
        said = {name: summary(variables[name]) for name in worst}
        rhats = {name: one.rhat for name, one in said.items()}
        if (name := _extreme(rhats, max)) and rhats[name] > GREATEST_R_HAT:
            yield Finding(
                "r_hat",
                f"The maximum R-hat is {rhats[name]:.2f}, of {name}: chains do not agree (above {GREATEST_R_HAT}).",
                f"{more}; if they still do not, see in the report which chains differ: there may be several modes.",
            )
    else:
        found = {name: scored(variables[name]) for name in worst}
        said = {name: one for name, one in found.items() if one is not None}
        yield from _many_chains(said, len(variables), more)
    for kind in ("bulk", "tail"):
        sizes = {name: getattr(one, f"ess_{kind}") for name, one in said.items()}
        if (name := _extreme(sizes, min)) and sizes[name] < least:
            a_chain = f"{LEAST_ESS} for each chain" if chains < MANY_CHAINS else f"{least} in all"
            yield Finding(
                f"{kind}_ess",
                f"The minimum {kind} ESS is {sizes[name]:,.0f}{looked_at}, of {name} (below {a_chain}).",
                f"Draw more: about {draws * apart * least / max(sizes[name], 1.0):,.0f} draws of each chain.",
            )


def _many_chains(said: dict[str, Scored], number: int, more: str) -> Iterator[Finding]:
    normal = {name: one.by_chain for name, one in said.items()}
    mixed = {name: mixing(scores) for name, scores in normal.items()}
    sure = {name: one.rhat for name, one in mixed.items() if is_sure(one, number)}
    if (name := _extreme(sure, max)) and sure[name] > GREATEST_R_HAT:
        yield Finding(
            "nested_r_hat",
            f"The maximum nested R-hat is {sure[name]:.2f}, of {name}: chains have not forgotten their starts"
            f" (above {GREATEST_R_HAT}).",
            f"{more}.",
        )
    strays = {name: lost(scores) for name, scores in normal.items()}
    if (name := _extreme({name: which.sum() for name, which in strays.items()}, max)) and strays[
        name
    ].any():
        yield Finding(
            "lost",
            f"{_chains(strays[name])} {'is' if strays[name].sum() == 1 else 'are'} far from all others in {name}.",
            "They may be in another mode, or stuck: see the report.",
        )


def _depth(steps: np.ndarray, course: Course) -> Iterator[Finding]:
    limit = course.sampler.max_depth
    share = float(cut_short(steps, limit).mean())
    if share > LEAST_SHARE_AT_LIMIT:
        yield Finding(
            "depth",
            f"{_percent(share)} of draws reached the depth limit of {limit}: trajectories were cut short.",
            _longer(course, limit),
        )


def _longer(course: Course, limit: int) -> str:
    rescale = "rescale the model"
    if limit < GREATEST_DEPTH:
        deeper = min(limit + 2, GREATEST_DEPTH)
        rescale = f"Allow longer ones, NUTS(max_depth={deeper}), or {rescale}"
    scales = _SCALES[course.mass_matrix] if course.warmup else "; a warm-up finds scales."
    return rescale[0].upper() + rescale[1:] + scales


# What else helps where trajectories are long, by the mass matrix of the run.
_SCALES = {
    "unit": "; mass_matrix='diagonal' helps where scales differ.",
    "diagonal": "; mass_matrix='dense' helps where parameters are correlated.",
    "dense": ".",
}


def _energy(energy: np.ndarray) -> Iterator[Finding]:
    if energy.shape[1] < DRAWS_FOR_E_BFMI or not np.isfinite(energy).all():
        return
    advice = "Tails are heavy, or scales depend on other parameters: other coordinates may help."
    fractions = e_bfmi(energy)
    if len(energy) >= MANY_CHAINS:
        # One of many short chains is below by chance; all together are not.
        fraction = e_bfmi_of_all(energy)
        if fraction < LEAST_E_BFMI:
            yield Finding("e_bfmi", f"E-BFMI is {fraction:.2f} (below {LEAST_E_BFMI}).", advice)
    elif (fractions < LEAST_E_BFMI).any():
        yield Finding(
            "e_bfmi",
            f"{_chains(fractions < LEAST_E_BFMI)} {'has' if (fractions < LEAST_E_BFMI).sum() == 1 else 'have'} E-BFMI"
            f" below {LEAST_E_BFMI} (minimum {np.nanmin(fractions):.2f}).",
            advice,
        )


# -- which draws are used ------------------------------------------------------------------------------


def _some_draws(data: Any) -> tuple[Draws, int]:
    """The draws, or one in several where they are too many, and in how many: memory is bounded."""
    posterior = group(data, "posterior")
    draws = posterior.sizes["draw"]
    numbers = sum(variable.size for variable in posterior.data_vars.values())
    apart = min(-(-numbers // MOST_NUMBERS), max(draws // 20, 1))
    if apart > 1:
        import xarray

        # Arrays on disk are read a part at a time: libraries read all that is requested at once.
        part = max(MOST_NUMBERS // 4 * draws // numbers // apart, 1) * apart
        starts = range(0, draws, part)
        parts = [posterior.isel(draw=slice(at, at + part, apart)).load() for at in starts]
        posterior = xarray.concat(
            parts, "draw", data_vars="minimal", coords="minimal", compat="override"
        )
    return draws_of({"posterior": posterior}), apart


def _extreme(numbers: dict[str, Any], choose: Any) -> str | None:
    """The name with the largest or the smallest of the known numbers."""
    known = [name for name, number in numbers.items() if not np.isnan(number)]
    return choose(known, key=lambda name: numbers[name]) if known else None


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else f"{share:.1%}"


def _chains(which: np.ndarray) -> str:
    numbers = np.flatnonzero(which)
    named = ", ".join(map(str, numbers[:NAMED])) + (", ..." if numbers.size > NAMED else "")
    return f"{numbers.size} of {which.size} chains ({named})"
