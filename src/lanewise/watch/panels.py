"""Figures of a report's section about sampling: those of a variable, and those of the whole run."""

from __future__ import annotations

import numpy as np

from lanewise.watch import charts
from lanewise.watch.chance import band
from lanewise.watch.charts import Axis, Line, count, percent
from lanewise.watch.convergence import (
    Summary,
    autocorrelation_time,
    autocorrelations,
    e_bfmi,
    ess,
    mean_ranks,
    normal_scores,
    split,
)
from lanewise.watch.draws import Draws
from lanewise.watch.limits import LEAST_E_BFMI, cut_short
from lanewise.watch.markup import escaped, figure, legend

MOST_CHAINS = 6
MOST_POINTS = 300
MOST_MARKS = 200
MOST_LAGS = 60
MOST_DRAWS_RANKED = 500
GRID = 128
# Densities of chains are shown up to this many times that of all.
MOST_PEAK = 4.0
MOST_PAIRS = 4
PARTS = 8
MOST_BARS = 24


def worst_chains(said: Summary) -> np.ndarray:
    """All chains if they are few, else those whose means are furthest from the mean of all."""
    distances = np.nan_to_num(np.abs(said.distances))
    return np.sort(np.argsort(-distances, kind="stable")[:MOST_CHAINS])


def variable_figures(name: str, values: np.ndarray, said: Summary, draws: Draws) -> str:
    values = np.asarray(values, float)
    chains = worst_chains(said)
    figures = [_density(name, values, chains, draws), _trace(name, values, chains, draws)]
    if values.shape[1] >= 8 and said.sd > 0:
        figures += [_ranks(name, values, chains, draws), _autocorrelation(name, values)]
        figures.append(_ess_over_draws(name, values))
    return "".join(figures)


def _which(chains: np.ndarray, draws: Draws) -> str:
    if len(chains) == len(draws.chains):
        return ""
    return f" The {len(chains)} of {count(len(draws.chains))} chains whose means are furthest from the others."


def _names(chains: np.ndarray, draws: Draws) -> list[str]:
    return [f"chain {draws.chains[chain]}" for chain in chains]


def _range(values: np.ndarray) -> tuple[float, float]:
    low, high = (float(value) for value in np.quantile(values, (0.001, 0.999)))
    room = (high - low) * 0.1 or abs(low) * 0.1 or 1.0
    return max(low - room, float(values.min())), min(high + room, float(values.max()))


def density(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """A Gaussian kernel estimate at the middles of bins, by Silverman's rule, reflected at both ends."""
    counts = np.histogram(values, edges)[0] / values.size
    width = edges[1] - edges[0]
    low, high = np.quantile(values, (0.25, 0.75))
    spread = min(float(values.std()), float(high - low) / 1.34) or float(values.std())
    kernel_sd = max(0.9 * spread * values.size**-0.2 / width, 0.5)
    bins = len(counts)
    reach = np.arange(-bins, bins + 1)
    kernel = np.exp(-0.5 * (reach / kernel_sd) ** 2)
    mirrored = np.concatenate([counts[::-1], counts, counts[::-1]])
    smooth = np.convolve(mirrored, kernel / kernel.sum(), mode="same")
    return smooth[bins : 2 * bins] / width


def _density(name: str, values: np.ndarray, chains: np.ndarray, draws: Draws) -> str:
    low, high = _range(values)
    if not high > low:
        return f'<p class="note">{escaped(name)} is {low:.4g} in every draw.</p>'
    edges = np.linspace(low, high, GRID + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    given = [
        Line(middles, density(values[chain], edges), chain_name)
        for chain, chain_name in zip(chains, _names(chains, draws))
    ]
    whole = density(values, edges)
    top = max(float(line.y.max()) for line in [*given, Line(middles, whole, "")])
    # A chain that is stuck has a spike, beside which nothing else could be seen.
    cut = top > MOST_PEAK * float(whole.max())
    top = min(top, MOST_PEAK * float(whole.max()))
    given = [Line(middles, np.minimum(line.y, top * 1.05), line.name) for line in given]
    picture = charts.lines(
        given,
        Axis(low, high, name),
        Axis(0, top * 1.05, "density"),
        f"Density of {name}",
        thin=True,
        band=(middles, np.zeros(GRID), whole),
    )
    words = f"Grey: all chains together.{_which(chains, draws)} Chains that agree have similar densities."
    words += " Peaks higher than the figure are cut off: those chains hardly move." if cut else ""
    return figure(f"Density of {name}", words, picture, legend(_names(chains, draws)))


def _trace(name: str, values: np.ndarray, chains: np.ndarray, draws: Draws) -> str:
    places = np.unique(np.linspace(0, values.shape[1] - 1, MOST_POINTS).astype(int))
    low, high = _range(values)
    room = (high - low) * 0.06 or 1.0
    given = [
        Line(places, np.clip(values[chain, places], low - room, high + room), chain_name)
        for chain, chain_name in zip(chains, _names(chains, draws))
    ]
    marks = []
    diverging = draws.stats.get("diverging")
    if diverging is not None:
        found = np.argwhere(diverging[chains])[:MOST_MARKS]
        marks = [
            (float(draw), f"chain {draws.chains[chains[i]]} diverged at draw {draw}")
            for i, draw in found
        ]
    picture = charts.lines(
        given,
        Axis(0, max(values.shape[1] - 1, 1), "draw"),
        Axis(low - room, high + room, name),
        f"Trace of {name}",
        thin=True,
        marks=marks,
    )
    red = " Red: divergences." if marks else ""
    words = f"The draws of a chain, in order.{_which(chains, draws)}{red}"
    return figure(f"Trace of {name}", words, picture, legend(_names(chains, draws)))


def _ranks(name: str, values: np.ndarray, chains: np.ndarray, draws: Draws) -> str:
    time = autocorrelation_time(values)
    every = max(int(np.ceil(time)), -(-values.shape[1] // MOST_DRAWS_RANKED))
    thinned = values[:, ::every]
    number, length = thinned.shape
    places, low, high = band(length, number)
    ranks = np.sort(mean_ranks(thinned), axis=1)
    below = np.stack([np.searchsorted(row, places * thinned.size, side="right") for row in ranks])
    apart = below / length - places
    outside = ((apart < low - places - 1e-9) | (apart > high - places + 1e-9)).any(1)
    given = [
        Line(places, apart[chain], chain_name)
        for chain, chain_name in zip(chains, _names(chains, draws))
    ]
    far = max(float(np.abs(apart[chains]).max()), float((high - places).max())) * 1.1 or 1.0
    picture = charts.lines(
        given,
        Axis(0, 1, "rank among the draws of all chains", percent),
        Axis(-far, far, "ECDF difference"),
        f"Ranks of {name}",
        band=(places, low - places, high - places),
    )
    words = (
        "How the ranks of a chain's draws among those of all chains differ from uniform ranks."
        f"{_which(chains, draws)} If chains agree, all of them stay in the grey band with a probability of about 95%:"
        f" {count(int(outside.sum()))} of {count(number)} leave it."
    )
    if every > 1:
        words += f" One draw of {every} is used, so that draws are about independent."
    return figure(f"Ranks of {name}", words, picture, legend(_names(chains, draws)))


def _autocorrelation(name: str, values: np.ndarray) -> str:
    lags = min(MOST_LAGS, values.shape[1] // 2)
    found = autocorrelations(values, lags)
    x = np.arange(lags + 1)
    slowest = int(found.sum(1).argmax())
    given = [
        Line(x, found.mean(0), "mean of all chains"),
        Line(x, found[slowest], "slowest chain"),
    ]
    low, high = np.quantile(found, (0.05, 0.95), axis=0)
    picture = charts.lines(
        given,
        Axis(0, lags, "lag", whole=True),
        Axis(min(-0.2, float(found.min())), 1, "autocorrelation"),
        f"Autocorrelation of {name}",
        band=(x, low, high),
    )
    words = "Grey: 90% of chains. The sooner it falls to zero, the more effective draws."
    return figure(f"Autocorrelation of {name}", words, picture, legend([g.name for g in given]))


def _ess_over_draws(name: str, values: np.ndarray) -> str:
    scores = normal_scores(values)
    events = [(values <= edge).astype(float) for edge in np.quantile(values, (0.05, 0.95))]
    ends = np.unique(np.linspace(0, values.shape[1], PARTS + 1).astype(int)[1:])
    ends = ends[ends >= 8]
    bulk = np.array([ess(split(scores[:, :end])) for end in ends])
    tail = np.array([np.fmin.reduce([ess(split(e[:, :end])) for e in events]) for end in ends])
    given = [
        Line(ends[np.isfinite(y)], y[np.isfinite(y)], words)
        for y, words in ((bulk, "bulk ESS"), (tail, "tail ESS"))
        if np.isfinite(y).any()
    ]
    if not given:
        return ""
    top = max(float(line.y.max()) for line in given)
    picture = charts.lines(
        given,
        Axis(0, values.shape[1], "draws of each chain"),
        Axis(0, top * 1.05, "ESS of all chains"),
        f"ESS of {name} over draws",
    )
    words = (
        "Of the first draws of every chain. It grows in proportion to the draws where chains mix."
    )
    return figure(f"ESS of {name} over draws", words, picture, legend([g.name for g in given]))


# -- of the whole run ----------------------------------------------------------------------------------


def run_figures(draws: Draws, names: list[str]) -> str:
    return _pairs(draws, names) + _energy(draws) + _depths(draws)


def _pairs(draws: Draws, names: list[str]) -> str:
    diverging = draws.stats.get("diverging")
    if diverging is None or len(names) < 2:
        return ""
    flat = {name: np.asarray(draws.variables[name], float).reshape(-1) for name in names}
    flags = diverging.reshape(-1).astype(bool)
    if flags.any():
        # Where divergences gather: the variables whose divergent draws are furthest from the rest.
        apart = {
            name: abs(values[flags].mean() - values.mean()) / (values.std() or np.inf)
            for name, values in flat.items()
        }
        names = sorted(names, key=lambda name: -apart[name])
    rest, some = np.flatnonzero(~flags), np.flatnonzero(flags)
    rest = rest[:: max(len(rest) // 1500, 1)]
    some = some[:: max(len(some) // 500, 1)]
    first, others = names[0], names[1 : 1 + MOST_PAIRS]
    if flags.any():
        words = (
            "Red: divergences. The variables whose divergent draws are furthest from the others."
        )
    else:
        words = "No draw diverged. The variables with the highest R-hat and the lowest ESS."
    pictures = "".join(
        _pair((first, flat[first]), (name, flat[name]), rest, some) for name in others
    )
    return figure(f"{first} and others", words, f'<div class="pairs">{pictures}</div>')


def _pair(
    first: tuple[str, np.ndarray],
    second: tuple[str, np.ndarray],
    rest: np.ndarray,
    some: np.ndarray,
) -> str:
    """Draws of two variables; `rest` and `some` are those that did not and did diverge."""
    (a_name, a), (b_name, b) = first, second
    groups = [(a[rest], b[rest], "draw"), (a[some], b[some], "divergent")]
    limits = [_range(values[np.concatenate([rest, some])]) for values in (a, b)]
    return charts.points(
        [(np.clip(x, *limits[0]), np.clip(y, *limits[1]), kind) for x, y, kind in groups],
        Axis(*limits[0], a_name),
        Axis(*limits[1], b_name),
        f"{a_name} and {b_name}",
        width=charts.WIDTH / 2,
    )


def _energy(draws: Draws) -> str:
    energy = draws.stats.get("energy")
    if energy is None or energy.shape[1] < 4 or not np.isfinite(energy).all():
        return ""
    marginal = np.asarray(energy, float) - np.mean(energy, axis=1, keepdims=True)
    steps = np.diff(np.asarray(energy, float), axis=1)
    low, high = _range(marginal)
    if not high > low:
        return ""
    edges = np.linspace(low, high, GRID + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    given = [
        Line(middles, density(marginal, edges), "energy, centered"),
        Line(middles, density(np.clip(steps, low, high), edges), "energy transition"),
    ]
    top = max(float(line.y.max()) for line in given)
    picture = charts.lines(
        given, Axis(low, high, "energy"), Axis(0, top * 1.05, "density"), "Energy"
    )
    words = (
        f"Minimum E-BFMI {float(np.nanmin(e_bfmi(energy))):.2f}. Where transitions are much narrower than the energy"
        " itself (E-BFMI below 0.3), chains explore the tails slowly."
    )
    return figure("Energy", words, picture, legend([g.name for g in given])) + _e_bfmi(
        energy, draws
    )


def _e_bfmi(energy: np.ndarray, draws: Draws) -> str:
    """E-BFMI of each chain, or a histogram of those of many."""
    found = e_bfmi(energy)
    known = np.isfinite(found)
    if not known.any():
        return ""
    low = int((found[known] < LEAST_E_BFMI).sum())
    top = max(float(found[known].max()), LEAST_E_BFMI) * 1.05
    if len(found) <= MOST_BARS:
        rows = [f"{draws.chains[i]}" for i in np.flatnonzero(known)]
        titles = [f"chain {name}: {value:.2f}" for name, value in zip(rows, found[known])]
        picture = charts.spans(
            rows,
            np.zeros(len(rows)),
            found[known],
            Axis(0, top, "E-BFMI"),
            "E-BFMI by chain",
            titles,
            limit=LEAST_E_BFMI,
        )
    else:
        edges = np.linspace(0, top, 41)
        counts = np.histogram(found[known], edges)[0]
        titles = [f"{a:.2f} to {b:.2f}: {n}" for a, b, n in zip(edges, edges[1:], counts)]
        picture = charts.bars(
            edges, counts, Axis(0, top, "E-BFMI"), "chains", "E-BFMI by chain", titles, LEAST_E_BFMI
        )
    worst = int(np.nanargmin(found))
    chains = "1 chain is" if low == 1 else f"{count(low)} of {count(len(found))} chains are"
    words = f"{chains} below {LEAST_E_BFMI}. The lowest is {found[worst]:.2f}, of chain {draws.chains[worst]}."
    return figure("E-BFMI by chain", words, picture)


def _depths(draws: Draws) -> str:
    depths = draws.stats.get("tree_depth")
    if depths is None:
        return ""
    limit = draws.depth_limit
    picture = charts.histogram(
        depths.reshape(-1), "tree depth", "deep", "Tree depth", unit_name="draws", limit=limit
    )
    words = f"The deepest is {int(depths.max())}."
    if limit is not None:
        steps = draws.stats.get("n_steps")
        cut = depths >= limit if steps is None else cut_short(steps, limit)
        at = int(cut.sum())
        words += f" {count(at)} of {count(depths.size)} draws reached the limit of {limit} ({at / depths.size:.1%})."
    return figure("Tree depth", words, picture)
