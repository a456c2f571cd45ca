"""A report's section about sampling: whether the posterior can be trusted, and what each chain looks like.

The findings of a diagnosis come first, then the summary, then pictures: of the run, and of the variables that are worst
by R-hat and by ESS. All figures are by NumPy (`convergence.py`); ArviZ is not needed to read its data.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lanewise.watch.charts import count
from lanewise.watch.convergence import (
    Summary,
    e_bfmi,
    e_bfmi_of_all,
    lost,
    mixing,
    scored,
    summary,
)
from lanewise.watch.draws import Draws, draws_of
from lanewise.watch.limits import GREATEST_R_HAT, MANY_CHAINS, is_sure, least_ess
from lanewise.watch.markup import escaped, facts_list, table
from lanewise.watch.panels import run_figures, variable_figures
from lanewise.watch.screen import worth_a_summary

MOST_ROWS = 60
MOST_VARIABLES = 16
MOST_BAD_CHAINS = 8
_sections = itertools.count()


def sampling_section(data: Any, title: str, findings: Sequence[Any] | None = None) -> str:
    """The section as HTML."""
    draws = draws_of(data)
    key = f"sampling-{next(_sections)}"
    head = (
        f'<section class="sampling"><h2>{escaped(title)}</h2>{_found(findings)}{_left_out(draws)}'
    )
    if not draws.variables:
        return f'{head}<p class="bad">No chain has finite draws.</p></section>'
    said = {name: judged(name, draws) for name in worth_a_summary(draws.variables)}
    order = sorted(said, key=lambda name: said[name].badness)
    shown = order[:MOST_VARIABLES]
    panels = "".join(
        f'<div class="run" id="{key}-{i}"{" hidden" if i else ""}>'
        f"{variable_figures(name, draws.variables[name], said[name].summary, draws)}</div>"
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


def _screened(said: Mapping[str, Judged], every: int) -> str:
    if len(said) == every:
        return ""
    return (
        f'<p class="note">R-hat and ESS were computed for {count(len(said))} of {count(every)} variables, those with'
        " the highest split R-hat in a quick screen of all; the figures above are of these.</p>"
    )


class Judged(NamedTuple):
    """What is said of a variable; `nested` is the R-hat that many chains are judged by.

    By the rules that a run's warnings have, chains do not agree (`apart`), or some are far from all others (`strays`).
    """

    summary: Summary
    nested: float | None
    apart: bool
    strays: bool = False

    @property
    def badness(self) -> tuple[float, float]:
        """Sorts the worst first; what never varies is last."""
        rhat = self.summary.rhat if self.nested is None else self.nested
        least = np.nanmin([self.summary.ess_bulk, self.summary.ess_tail, np.inf])
        return (-round(min(rhat, 1e9), 2) if self.apart else -float(self.strays), float(least))


def judged(name: str, draws: Draws) -> Judged:
    """The summary of a variable, and whether its chains agree."""
    values = draws.variables[name]
    said = summary(values)
    if len(values) < MANY_CHAINS:
        return Judged(said, None, bool(said.rhat > GREATEST_R_HAT))
    found = scored(values)
    if found is None:
        return Judged(said, float("nan"), False)
    scores = found.by_chain
    mixed = mixing(scores)
    apart = mixed.rhat > GREATEST_R_HAT and is_sure(mixed, len(draws.variables))
    return Judged(said, mixed.rhat, apart, bool(lost(scores).any()))


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


def _facts(draws: Draws, said: Mapping[str, Judged]) -> dict[str, str]:
    facts = {"chains": count(len(draws.chains)), "draws per chain": count(draws.draws)}
    many = len(draws.chains) >= MANY_CHAINS
    for name, numbers, worst in (
        ("maximum R-hat", [one.summary.rhat for one in said.values()], max),
        (
            "maximum nested R-hat",
            [one.nested for one in said.values() if one.nested is not None],
            max,
        ),
        ("minimum bulk ESS", [one.summary.ess_bulk for one in said.values()], min),
        ("minimum tail ESS", [one.summary.ess_tail for one in said.values()], min),
    ):
        known = [number for number in numbers if np.isfinite(number)]
        if known:
            facts[name] = f"{worst(known):.3f}" if "R-hat" in name else count(round(worst(known)))
    if "diverging" in draws.stats:
        facts["divergences"] = count(int(draws.stats["diverging"].sum()))
    if "energy" in draws.stats and draws.draws > 2:
        energy = draws.stats["energy"]
        if many:
            facts["E-BFMI of all chains"] = f"{e_bfmi_of_all(energy):.2f}"
        else:
            facts["minimum E-BFMI"] = f"{float(np.nanmin(e_bfmi(energy))):.2f}"
    for name, words in _MEANS.items():
        if name in draws.stats:
            facts[words] = f"{float(np.mean(draws.stats[name])):.3g}"
    return facts


def _table(said: Mapping[str, Judged], order: Sequence[str], draws: Draws) -> str:
    names = list(said) if len(said) <= MOST_ROWS else list(order[:MOST_ROWS])
    chains, every = len(draws.chains), len(draws.variables)
    heads = ["variable", "mean", "sd", "5%", "50%", "95%", "MCSE (mean)", "bulk ESS", "tail ESS"]
    heads += ["R-hat"] if chains < MANY_CHAINS else ["R-hat", "nested R-hat"]
    rows = [[f"<code>{escaped(name)}</code>", *_row(said[name], chains)] for name in names]
    note = f'<p class="note">{_some(len(rows), every)}</p>' if len(rows) < every else ""
    return table(heads, rows, len(heads) - 1) + note


def _row(judged: Judged, chains: int) -> list[str]:
    one, least = judged.summary, least_ess(chains)

    def marked(number: float, words: str, bad: bool = False) -> str:
        if np.isnan(number):
            return "–"
        return f'<span class="bad">{words}</span>' if bad else words

    figures = [f"{x:.4g}" for x in (one.mean, one.sd, *one.quantiles)]
    sizes = [marked(x, _whole(x), x < least) for x in (one.ess_bulk, one.ess_tail)]
    agreement = [marked(one.rhat, f"{one.rhat:.3f}", judged.apart and judged.nested is None)]
    if judged.nested is not None:
        agreement.append(marked(judged.nested, f"{judged.nested:.3f}", judged.apart))
    return [*figures, marked(one.mcse, f"{one.mcse:.2g}"), *sizes, *agreement]


def _whole(number: float) -> str:
    return count(round(number)) if np.isfinite(number) else str(number)


def _bad_chains(draws: Draws, said: Mapping[str, Judged], worst: str) -> str:
    """Chains that stand out: those without which R-hat of the worst variable is least, and those that diverge most."""
    one, chains = said[worst].summary, len(draws.chains)
    without = one.rhat_without
    if chains < 3 or not np.isfinite(without).all():
        return ""
    diverging = draws.stats.get("diverging", np.zeros((chains, 1))).sum(1)
    by_rhat = np.argsort(without, kind="stable")[: MOST_BAD_CHAINS // 2]
    by_divergences = np.argsort(-diverging, kind="stable")[: MOST_BAD_CHAINS // 2]
    chosen = list(dict.fromkeys([*by_rhat, *by_divergences[diverging[by_divergences] > 0]]))
    if not (said[worst].apart or said[worst].strays or diverging.any()):
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
