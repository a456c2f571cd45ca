"""A report's section about sampling: whether the posterior can be trusted, and what each chain looks like.

The findings of a diagnosis come first, then the summary, then pictures: of the run, and of the variables that are worst
by R-hat and by ESS. All figures are by NumPy (`convergence.py`); ArviZ is not needed to read its data.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lanewise.watch.charts import count
from lanewise.watch.convergence import Summary, e_bfmi, summary
from lanewise.watch.draws import Draws, draws_of
from lanewise.watch.markup import escaped, facts_list, table
from lanewise.watch.panels import run_figures, variable_figures
from lanewise.watch.screen import worth_a_summary

MOST_ROWS = 60
MOST_VARIABLES = 16
MOST_BAD_CHAINS = 8
_sections = itertools.count()
# Above the first, or below the second for each chain, draws cannot be trusted yet (Vehtari et al. 2021).
GREATEST_R_HAT = 1.01
LEAST_ESS = 100


def sampling_section(data: Any, title: str, findings: Sequence[Any] | None = None) -> str:
    """The section as HTML."""
    draws = draws_of(data)
    key = f"sampling-{next(_sections)}"
    head = (
        f'<section class="sampling"><h2>{escaped(title)}</h2>{_found(findings)}{_left_out(draws)}'
    )
    if not draws.variables:
        return f'{head}<p class="bad">No chain has finite draws.</p></section>'
    said = {name: summary(draws.variables[name]) for name in worth_a_summary(draws.variables)}
    order = sorted(said, key=lambda name: _badness(said[name]))
    shown = order[:MOST_VARIABLES]
    panels = "".join(
        f'<div class="run" id="{key}-{i}"{" hidden" if i else ""}>'
        f"{variable_figures(name, draws.variables[name], said[name], draws)}</div>"
        for i, name in enumerate(shown)
    )
    choices = "".join(
        f'<option value="{key}-{i}">{escaped(name)}</option>' for i, name in enumerate(shown)
    )
    every = len(draws.variables)
    more = f'<p class="note">{_some(len(shown), every)}</p>' if len(shown) < every else ""
    return (
        f"{head}{facts_list(_facts(draws, said))}{_screened(said, every)}{_table(said, order, draws)}"
        f"{_bad_chains(draws, said, order[0])}<h3>The run</h3>{run_figures(draws, shown)}<h3>Variables</h3>"
        f'<div class="controls"><label for="{key}-variable">Variable</label>'
        f'<select class="runs" id="{key}-variable">{choices}</select></div>{more}{panels}</section>'
    )


def _some(number: int, every: int) -> str:
    return f"The {number} of {count(every)} variables with the highest R-hat and the lowest ESS, worst first."


def _screened(said: Mapping[str, Summary], every: int) -> str:
    if len(said) == every:
        return ""
    return (
        f'<p class="note">R-hat and ESS were computed for {count(len(said))} of {count(every)} variables, those with'
        " the highest split R-hat in a quick screen of all; the figures above are of these.</p>"
    )


def _badness(said: Summary) -> tuple[float, float]:
    """Sorts the worst first; what never varies is last."""
    rhat = 0.0 if np.isnan(said.rhat) else min(said.rhat, 1e9)
    least = np.nanmin([said.ess_bulk, said.ess_tail, np.inf])
    return (-round(rhat, 2) if rhat > GREATEST_R_HAT else 0.0, float(least))


def _found(findings: Sequence[Any] | None) -> str:
    if findings is None:
        return ""
    if not findings:
        return '<p class="good">The diagnosis found no problem.</p>'
    return "".join(
        f'<p class="finding" data-kind="{escaped(found.kind)}"><b>{escaped(found.text)}</b> {escaped(found.advice)}</p>'
        for found in findings
    )


def _left_out(draws: Draws) -> str:
    words = []
    if len(draws.left_out):
        some = ", ".join(map(str, draws.left_out[:8])) + (", …" if len(draws.left_out) > 8 else "")
        number = len(draws.left_out)
        whose, left = (
            ("1 chain", "it is") if number == 1 else (f"{count(number)} chains", "they are")
        )
        words.append(f"Draws of {whose} are not finite ({some}); {left} left out.")
    if draws.unknown:
        words.append(f"Finite in no chain: {', '.join(draws.unknown[:8])}.")
    return "".join(f'<p class="bad">{escaped(line)}</p>' for line in words)


_MEANS = {
    "acceptance_rate": "mean acceptance rate",
    "tree_depth": "mean tree depth",
    "n_steps": "mean gradients per draw",
    "step_size": "mean step size",
}


def _facts(draws: Draws, said: Mapping[str, Summary]) -> dict[str, str]:
    facts = {"chains": count(len(draws.chains)), "draws per chain": count(draws.draws)}
    for name, numbers, worst in (
        ("maximum R-hat", [one.rhat for one in said.values()], max),
        ("minimum bulk ESS", [one.ess_bulk for one in said.values()], min),
        ("minimum tail ESS", [one.ess_tail for one in said.values()], min),
    ):
        known = [number for number in numbers if np.isfinite(number)]
        if known:
            facts[name] = f"{worst(known):.3f}" if "R-hat" in name else count(round(worst(known)))
    if "diverging" in draws.stats:
        facts["divergences"] = count(int(draws.stats["diverging"].sum()))
    if "energy" in draws.stats and draws.draws > 2:
        facts["minimum E-BFMI"] = f"{float(np.nanmin(e_bfmi(draws.stats['energy']))):.2f}"
    for name, words in _MEANS.items():
        if name in draws.stats:
            facts[words] = f"{float(np.mean(draws.stats[name])):.3g}"
    return facts


def _table(said: Mapping[str, Summary], order: Sequence[str], draws: Draws) -> str:
    names = list(said) if len(said) <= MOST_ROWS else list(order[:MOST_ROWS])
    least = LEAST_ESS * min(len(draws.chains), 4)
    every = len(draws.variables)

    def marked(words: str, bad: bool) -> str:
        return f'<span class="bad">{words}</span>' if bad else words

    def effective(number: float) -> str:
        return marked(count(round(number)), number < least) if np.isfinite(number) else "–"

    rows = []
    for name in names:
        one = said[name]
        figures = (f"{x:.4g}" for x in (one.mean, one.sd, *one.quantiles))
        mcse = f"{one.mcse:.2g}" if np.isfinite(one.mcse) else "–"
        rhat = f"{one.rhat:.3f}" if np.isfinite(one.rhat) else "–"
        tail = (mcse, effective(one.ess_bulk), effective(one.ess_tail))
        rows.append(
            [
                f"<code>{escaped(name)}</code>",
                *figures,
                *tail,
                marked(rhat, one.rhat > GREATEST_R_HAT),
            ]
        )
    heads = [
        "variable",
        "mean",
        "sd",
        "5%",
        "50%",
        "95%",
        "MCSE (mean)",
        "bulk ESS",
        "tail ESS",
        "R-hat",
    ]
    note = f'<p class="note">{_some(len(rows), every)}</p>' if len(rows) < every else ""
    return table(heads, rows, 9) + note


def _bad_chains(draws: Draws, said: Mapping[str, Summary], worst: str) -> str:
    """Chains that stand out: those without which R-hat of the worst variable is least, and those that diverge most."""
    one, chains = said[worst], len(draws.chains)
    without = one.rhat_without
    if chains < 3 or not np.isfinite(without).all():
        return ""
    diverging = draws.stats.get("diverging", np.zeros((chains, 1))).sum(1)
    by_rhat = np.argsort(without, kind="stable")[: MOST_BAD_CHAINS // 2]
    by_divergences = np.argsort(-diverging, kind="stable")[: MOST_BAD_CHAINS // 2]
    chosen = list(dict.fromkeys([*by_rhat, *by_divergences[diverging[by_divergences] > 0]]))
    if one.rhat <= GREATEST_R_HAT and not diverging.any():
        return ""
    rows = [
        [
            f"chain {draws.chains[c]}",
            count(int(diverging[c])),
            f"{one.distances[c]:+.2f} sd",
            f"{without[c]:.3f}",
        ]
        for c in chosen
    ]
    name = escaped(worst)
    heads = [
        "chain",
        "divergences",
        f"mean of {name}, from all chains",
        f"R-hat of {name} without it",
    ]
    return f"<h3>Chains that stand out</h3>{table(heads, rows, 3)}"
