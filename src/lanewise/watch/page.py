"""The report's page: one file with everything in it, that needs no network and no server.

Python writes all of it, pictures as inline SVG (`charts.py`, `draw.py`); the script (`page.js`) only shows and hides.
What is known differs by carrier, and the page says what is not: `ticks` records every block of every tick, carriers
that run each lane by itself have no ticks and report the steps of each example, and of `jax.vmap`'s own code
only the time is known.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import jax

from lanewise.core.events import RunInfo
from lanewise.core.sources import source
from lanewise.watch.charts import count, percent, seconds
from lanewise.watch.markup import escaped, facts_list, heads, table, whole_table
from lanewise.watch.recording import Recording, Run, covered
from lanewise.watch.run_section import carried, lanes_of, mean_occupancy, section_of

MOST_COMPILATIONS_SHOWN = 12


def page(recording: Recording, title: str, sampling: Sequence[str], error: str | None) -> str:
    """The whole page; `sampling` holds sections that are ready, `error` what ended the recording early."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(recording.opened_at))
    infos = _by_info(recording.runs)
    device = jax.devices()[0]
    where = escaped(f"{device.platform.upper()} ({device.device_kind})")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escaped(title)}</title>
<style>{source("watch/page.css")}</style>
</head>
<body data-axis="ticks">
<header class="page"><div>
<h1>{escaped(title)}</h1>
<span class="when">{when}, {where}, JAX {jax.__version__}</span>
<button id="theme" type="button" title="Light or dark">Dark</button>
</div></header>
<main>
{f'<p class="bad">{escaped(error)}</p>' if error else ""}
{"".join(sampling)}
{_machine(recording, infos, folded=bool(sampling))}
</main>
<div id="tip" hidden></div>
<script>{source("watch/page.js")}</script>
</body>
</html>
"""


# -- the whole -----------------------------------------------------------------------------------------


def _summary(recording: Recording) -> str:
    whole = recording.closed or 0.0
    running = sum(run.seconds or 0.0 for run in recording.runs)
    facts = {
        "wall clock": seconds(whole),
        "compiling": seconds(covered(recording.compilations, 0.0, whole)),
        "running": seconds(running),
        "runs": count(len(recording.runs) + recording.more_runs),
        "examples": count(sum(run.examples for run in recording.runs)),
    }
    unheard = sum(run.ended is None for run in recording.runs)
    if unheard:
        facts["not ended"] = count(unheard)
    return facts_list(facts)


def _machine(
    recording: Recording, infos: Sequence[tuple[RunInfo, list[Run]]], *, folded: bool
) -> str:
    """What the machine did; folded away where the page is about draws."""
    sections = (section_of(recording, i, info, runs) for i, (info, runs) in enumerate(infos))
    whole = (
        f"{_summary(recording)}<h2>What ran</h2>{_table(recording, infos)}{''.join(sections)}"
        f"{_compilations(recording)}"
    )
    if not folded:
        return whole
    return f'<details class="machine"><summary>What the machine did</summary>{whole}</details>'


def _by_info(runs: Sequence[Run]) -> list[tuple[RunInfo, list[Run]]]:
    found: dict[RunInfo, list[Run]] = {}
    for run in runs:
        found.setdefault(run.info, []).append(run)
    return list(found.items())


def _table(recording: Recording, infos: Sequence[tuple[RunInfo, list[Run]]]) -> str:
    if not infos:
        return "<p>Nothing that Lanewise ran was inside this report.</p>"
    rows = []
    for i, (info, runs) in enumerate(infos):
        taken = sum(run.seconds or 0.0 for run in runs)
        full = mean_occupancy(runs)
        cells = [
            f'<td><button type="button" class="link" aria-pressed="{"true" if i == 0 else "false"}">'
            f"{escaped(info.name)}</button></td>",
            f"<td>{escaped(carried(info))}</td>",
            f'<td class="n">{count(max(run.examples for run in runs))}</td>',
            f'<td class="n">{lanes_of(info)}</td>',
            f'<td class="n">{count(len(runs))}</td>',
            f'<td class="n">{seconds(taken)}</td>',
            f'<td class="n">{"–" if full is None else percent(full)}</td>',
        ]
        chosen = " chosen" if i == 0 else ""
        rows.append(f'<tr class="choice{chosen}" data-site="site-{i}">{"".join(cells)}</tr>')
    search = (
        '<div class="controls"><input id="filter" type="search" placeholder="Filter" aria-label="Filter"></div>'
        if len(infos) > 6
        else ""
    )
    names = ["function", "carried by", "examples", "lanes", "runs", "time", "lanes busy"]
    left_out = (
        f'<p class="note">{count(recording.more_runs)} more runs were counted and not kept.</p>'
        if recording.more_runs
        else ""
    )
    return search + whole_table(heads(names, 5), rows) + left_out


def _compilations(recording: Recording) -> str:
    spans = sorted(recording.compilations, key=lambda span: -span.seconds)
    if not spans:
        return "<h2>Compilation</h2><p>Nothing was compiled.</p>"
    rows = [
        (f"<code>{escaped(span.what)}</code>", seconds(span.began), seconds(span.seconds))
        for span in spans[:MOST_COMPILATIONS_SHOWN]
    ]
    whole = covered(recording.compilations, 0.0, recording.closed or 0.0)
    return (
        f"<h2>Compilation</h2><p>{seconds(whole)} in all; the longest of {count(len(spans))}. Tracing is JAX's way"
        " through the Python code; a span may lie inside another. What is recorded is compiled for the recording.</p>"
        + table(["what", "began after", "took"], rows, 2)
    )
