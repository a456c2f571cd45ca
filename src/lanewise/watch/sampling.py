"""A report's section about sampling: is the posterior to be trusted, and what does each chain look like.

Figures come from ArviZ (`lanewise[mcmc]`): its summary, with R-hat and effective sample sizes. Pictures are ours. Ranks
are those of all draws of a variable together; chains that draw from the same distribution have ranks of every size
alike, so every row of the rank plot is of one colour.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from lanewise.watch import charts
from lanewise.watch.charts import Axis, Line, count, percent
from lanewise.watch.markup import escaped, facts_list, figure, legend, table

MOST_ROWS = 100
MOST_VARIABLES = 24
MOST_CHAINS_TRACED = 6
MOST_CHAINS_RANKED = 24
MOST_POINTS = 400
RANK_BINS = 20
MOST_MARKS = 200
_sections = itertools.count()
# Above the first, or below the second for each chain, draws are not yet to be trusted (Vehtari et al. 2021).
GREATEST_R_HAT = 1.01
LEAST_ESS = 100


def sampling_section(inference_data: Any, title: str) -> str:
    """The section as HTML."""
    try:
        import arviz
    except ImportError as error:
        raise ImportError(
            'A report about sampling needs ArviZ: pip install "lanewise[mcmc]"'
        ) from error
    key = f"sampling-{next(_sections)}"
    posterior = inference_data.posterior
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    stats = _sample_stats(inference_data)
    summary: Any = arviz.summary(inference_data, round_to="none")  # type: ignore[call-arg]
    facts = {"chains": count(chains), "draws of each": count(draws)} | _stat_facts(stats)
    for column, name, worst in (("r_hat", "greatest R-hat", max), ("ess_bulk", "least ESS", min)):
        if column in summary:
            figures = summary[column].dropna()
            if len(figures):
                facts[name] = f"{worst(figures.astype(float)):.4g}"
    scalars = list(itertools.islice(_scalars(posterior), MOST_VARIABLES))
    panels = "".join(
        f'<div class="run" id="{key}-{i}"{" hidden" if i else ""}>{_panel(name, values, stats)}</div>'
        for i, (name, values) in enumerate(scalars)
    )
    choices = "".join(
        f'<option value="{key}-{i}">{escaped(name)}</option>' for i, (name, _) in enumerate(scalars)
    )
    more = (
        f'<p class="note">Pictures are of the first {len(scalars)} variables.</p>'
        if len(summary) > len(scalars)
        else ""
    )
    return (
        f'<section class="sampling"><h2>{escaped(title)}</h2>{facts_list(facts)}{_warnings(summary, stats, chains)}'
        f"{_summary_table(summary)}"
        f'<div class="controls"><label for="{key}-variable">Variable</label>'
        f'<select class="runs" id="{key}-variable">{choices}</select></div>{more}{panels}</section>'
    )


def _sample_stats(inference_data: Any) -> dict[str, np.ndarray]:
    """Statistics of each draw that are numbers for each chain and draw."""
    found = getattr(inference_data, "sample_stats", None)
    if found is None:
        return {}
    arrays = {str(name): np.asarray(found[name]) for name in found.data_vars}
    return {name: array for name, array in arrays.items() if array.ndim == 2}


_TOLD = {
    "acceptance_rate": "mean acceptance",
    "tree_depth": "mean tree depth",
    "n_steps": "mean gradients a draw",
    "n_leapfrog": "mean gradients a draw",
    "step_size": "mean step size",
}


def _stat_facts(stats: dict[str, np.ndarray]) -> dict[str, str]:
    facts = {}
    if "diverging" in stats:
        facts["divergences"] = count(int(stats["diverging"].sum()))
    for name, words in _TOLD.items():
        if name in stats:
            facts[words] = f"{float(np.mean(stats[name])):.3g}"
    return facts


def _warnings(summary: Any, stats: dict[str, np.ndarray], chains: int) -> str:
    told = []
    if "r_hat" in summary:
        bad = summary.index[summary["r_hat"].astype(float) > GREATEST_R_HAT]
        if len(bad):
            told.append(
                f"R-hat is above {GREATEST_R_HAT} for {_some(bad)}: chains do not agree yet."
            )
    if "ess_bulk" in summary:
        few = summary.index[summary["ess_bulk"].astype(float) < LEAST_ESS * min(chains, 4)]
        if len(few):
            told.append(f"Few effective draws of {_some(few)}.")
    diverging = stats.get("diverging")
    if diverging is not None and diverging.any():
        share, where = float(diverging.mean()), int(diverging.any(1).sum())
        told.append(
            f"{count(int(diverging.sum()))} divergent draws ({share:.2%}) in {count(where)} chains: parts of the"
            " posterior may have been missed."
        )
    return "".join(f'<p class="bad">{escaped(words)}</p>' for words in told)


def _some(names: Any) -> str:
    shown = ", ".join(map(str, names[:5]))
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _summary_table(summary: Any) -> str:
    def cell(column: str, value: object) -> str:
        number = float(value)  # type: ignore[arg-type]
        shown = count(round(number)) if column.startswith("ess") else f"{number:.4g}"
        bad = column == "r_hat" and number > GREATEST_R_HAT
        return f'<span class="bad">{shown}</span>' if bad else shown

    columns = [str(column) for column in summary.columns]
    rows = [
        [f"<code>{escaped(name)}</code>", *(cell(c, v) for c, v in zip(columns, row, strict=True))]
        for name, row in zip(summary.index[:MOST_ROWS], summary.to_numpy())
    ]
    more = len(summary) - len(rows)
    left_out = f'<p class="note">{count(more)} more variables are not shown.</p>' if more else ""
    heads = ["variable", *(escaped(column.replace("_", " ")) for column in columns)]
    return table(heads, rows, len(columns)) + left_out


def _scalars(posterior: Any) -> Any:
    """Every number of the posterior, by name: an array of chains and draws for each."""
    for name in posterior.data_vars:
        values = np.asarray(posterior[name])
        for index in np.ndindex(values.shape[2:]):
            written = f"[{', '.join(map(str, index))}]" if index else ""
            yield f"{name}{written}", values[(slice(None), slice(None), *index)]


def _evenly(number: int, most: int) -> np.ndarray:
    return np.unique(np.linspace(0, number - 1, most).astype(int))


def _panel(name: str, values: np.ndarray, stats: dict[str, np.ndarray]) -> str:
    return _trace(name, values, stats.get("diverging")) + _ranks(name, values)


def _trace(name: str, values: np.ndarray, diverging: np.ndarray | None) -> str:
    chains = _evenly(len(values), MOST_CHAINS_TRACED)
    draws = _evenly(values.shape[1], MOST_POINTS)
    kept = values[np.ix_(chains, draws)].astype(float)
    finite = kept[np.isfinite(kept)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    room = (high - low) * 0.06 or 1.0
    given = [
        Line(draws[np.isfinite(row)], row[np.isfinite(row)], f"chain {chain}")
        for chain, row in zip(chains, kept)
        if np.isfinite(row).any()
    ]
    if not given:
        return f'<p class="bad">{escaped(name)} has no finite draw.</p>'
    marks = []
    if diverging is not None:
        places = np.argwhere(diverging[chains])[:MOST_MARKS]
        marks = [(float(draw), f"chain {chains[i]} diverged at draw {draw}") for i, draw in places]
    picture = charts.lines(
        given,
        Axis(0, max(values.shape[1] - 1, 1), "draw"),
        Axis(low - room, high + room, name),
        f"Trace of {name}",
        thin=True,
        marks=marks,
    )
    some = "" if len(chains) == len(values) else f" {len(chains)} of {count(len(values))} chains."
    red = " Red: divergent draws." if marks else ""
    names = [f"chain {chain}" for chain in chains]
    return figure(
        f"Trace of {name}", f"The draws of a chain, in order.{some}{red}", picture, legend(names)
    )


def _ranks(name: str, values: np.ndarray) -> str:
    ranks = values.reshape(-1).argsort(kind="stable").argsort(kind="stable").reshape(values.shape)
    chains = _evenly(len(values), MOST_CHAINS_RANKED)
    edges = np.linspace(0, values.size, RANK_BINS + 1)
    counts = np.array([np.histogram(ranks[chain], edges)[0] for chain in chains])
    expected = values.shape[1] / RANK_BINS
    picture = charts.heat_map(
        edges / values.size,
        [f"chain {chain}" for chain in chains],
        counts / (2 * expected),
        Axis(0, 1, "rank among all draws", percent),
        f"Ranks of {name}",
        kind="rank-chart",
        row_height=14.0 if len(chains) > 8 else 22.0,
    )
    return figure(
        f"Ranks of {name}",
        "How often a chain's draws have which rank among those of all chains. Chains that agree have rows of one"
        " colour; the darkest is twice as often as expected.",
        picture,
    )
