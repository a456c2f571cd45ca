"""A report's section about a program: how it was carried, and pictures of its runs.

What is known differs by carrier, and the section says what is not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np

from lanewise.blocks.form import Block, BlockProgram
from lanewise.blocks.link import Linked
from lanewise.carriers.table import ALONE
from lanewise.core.events import RunInfo
from lanewise.job.job import blocks_of
from lanewise.machine.worth import expensive_blocks
from lanewise.watch import charts
from lanewise.watch.charts import Axis, Line, count, percent, seconds
from lanewise.watch.draw import graph_svg
from lanewise.watch.figures import (
    Lives,
    TickFigures,
    depths_of,
    ended_over_time,
    lives_of,
    outcomes_of,
    steps_of,
    tick_figures,
)
from lanewise.watch.markup import escaped, facts_list, figure, heads, legend, whole_table
from lanewise.watch.recording import Recording, Run, plain_options


def section_of(recording: Recording, i: int, info: RunInfo, runs: Sequence[Run]) -> str:
    shown = [run for run in runs if run.arrays] or list(runs[:1])
    panels = "".join(
        f'<div class="run" id="run-{i}-{j}"{" hidden" if j else ""}>{_run(recording, info, run)}</div>'
        for j, run in enumerate(shown)
    )
    choices = ""
    if len(shown) > 1:
        options = "".join(
            f'<option value="run-{i}-{j}">run {runs.index(run) + 1} of {len(runs)}:'
            f" {'not ended' if run.seconds is None else seconds(run.seconds)}</option>"
            for j, run in enumerate(shown)
        )
        choices = f'<select class="runs" aria-label="Which run">{options}</select>'
    axis = (
        '<span class="group" role="group" aria-label="Pictures by tick or by time">'
        '<button type="button" data-axis="ticks" aria-pressed="true">by tick</button>'
        '<button type="button" data-axis="time" aria-pressed="false">by time</button></span>'
        if any("sums" in run.arrays for run in shown)
        else ""
    )
    controls = f'<div class="controls">{choices}{axis}</div>' if choices or axis else ""
    return (
        f'<section class="site" id="site-{i}"{" hidden" if i else ""}><h2>{escaped(info.name)}</h2>'
        f"{_about(info)}{controls}{panels}</section>"
    )


def _about(info: RunInfo) -> str:
    plan = info.plan
    why = plan.why
    if info.plan.job.streamed:
        why = (
            f"a stream of examples through {count(info.plan.job.width)} lanes, refilled as they end"
        )
    options = ", ".join(f"{k}={v!r}" for k, v in plain_options(info).items()) or "none"
    return (
        f"<p>Carried by <b>{escaped(carried(info))}</b>: {escaped(why)}.<br>"
        f'<span class="faint">Arguments: {escaped(_arguments(info))}.'
        f" Options: <code>{escaped(options)}</code>.</span></p>"
    )


def carried(info: RunInfo) -> str:
    plan = info.plan
    if plan.carrier in ALONE:
        return f"{plan.carrier} ({plan.path})"
    return f"{plan.carrier}, {plan.schedule}"


def _arguments(info: RunInfo) -> str:
    """The types of the program's arguments, and which of them each example has its own of."""
    words = [
        f"{kind} of each example's own" if any(axes) else f"{kind} shared"
        for kind, axes in zip(_operands(info), info.plan.job.mapped, strict=True)
    ]
    return "; ".join(words) or "none"


def _operands(info: RunInfo) -> list[str]:
    return [aval.str_short() for aval in info.plan.job.program.operand_avals]


def lanes_of(info: RunInfo) -> str:
    plan, options = info.plan, info.plan.job.options
    if plan.carrier in ALONE:
        return "–"
    return count(min(options.lanes or info.examples, info.examples or options.lanes))


def mean_occupancy(runs: Sequence[Run]) -> float | None:
    found = [figures for run in runs if (figures := tick_figures(run)) is not None]
    room = sum(float(figures.room.sum()) for figures in found)
    return sum(float(figures.busy.sum()) for figures in found) / room if room else None


# -- a run -------------------------------------------------------------------------------------------------


def _run(recording: Recording, info: RunInfo, run: Run) -> str:
    figures = tick_figures(run)
    parts = [facts_list(_facts(recording, run, figures)), _outcomes(run)]
    if figures is not None:
        parts += [_figures_json(figures), _occupancy(figures), _blocks(figures), _flow(figures)]
        parts += [_depth(figures)] if figures.linked.has_calls else []
    else:
        parts += [_unknown(info, run), _progress(run)]
    parts += [_lifetimes(run, figures), _steps(run), _graph(info, figures)]
    if figures is not None:
        parts.append(_block_table(figures))
    return "".join(parts)


def _facts(recording: Recording, run: Run, figures: TickFigures | None) -> dict[str, str]:
    facts = {"ran for": "not ended" if run.seconds is None else seconds(run.seconds)}
    call = recording.call_of(run)
    if call is not None:
        facts["its call took"] = seconds(call.seconds)
        facts["of it compiling"] = seconds(recording.compiling_within(call))
    facts["examples"] = count(run.examples)
    if figures is not None:
        facts["ticks"] = count(figures.ticks)
        facts["a tick"] = seconds((run.seconds or 0.0) / figures.ticks)
        facts["lanes busy"] = percent(figures.busy.sum() / max(figures.room.sum(), 1))
    steps = steps_of(run)
    if steps is not None and len(steps):
        facts["steps of an example"] = f"{count(steps.min())} to {count(steps.max())}"
    deepest = depths_of(run)
    if figures is not None and figures.linked.has_calls:
        facts["deepest stack"] = f"{count(figures.depth.max())} frames"
    elif deepest is not None:
        facts["deepest stack"] = f"{count(deepest.max())} frames"
    return facts


def _outcomes(run: Run) -> str:
    found = outcomes_of(run)
    if set(found) <= {"done"}:
        return ""
    words = ", ".join(f"{count(n)} {escaped(phrase)}" for phrase, n in found.items())
    return f'<p class="bad">Not all examples ended well: {words}.</p>'


def _unknown(info: RunInfo, run: Run) -> str:
    plan = info.plan
    if plan.carrier in ALONE:
        note = (
            f"<code>{plan.carrier}</code> runs each lane by itself, from its first block to its last: there are no"
            " ticks, and which block ran when is not recorded. "
        )
        if steps_of(run) is not None:
            note += "The steps of each example and how it ended are known."
        else:
            note += "Lanes in step are not counted either: only how each example ended is known."
    elif plan.plain:
        note = "This is <code>jax.vmap</code>'s own code: there is no machine to look into, and only its time is known."
    elif plan.schedule == "local":
        note = "The schedule <code>local</code> recurses on the host: only its time is known."
    elif not run.arrays:
        note = "This run was counted and not recorded in detail, or has not ended."
    else:
        note = "Every example had ended before the first tick."
    return f'<p class="note">{note}</p>'


def _both_axes(figures: TickFigures, draw: Callable[[np.ndarray, Axis], str]) -> str:
    """A picture over ticks, and the same over time."""
    ticks = Axis(0, float(figures.ticks), "ticks")
    clock = Axis(0, float(figures.seconds[-1]), "time since the run began", seconds)
    by_tick, by_time = draw(figures.edges, ticks), draw(figures.seconds, clock)
    return f'<div class="by-ticks">{by_tick}</div><div class="by-time">{by_time}</div>'


def _occupancy(figures: TickFigures) -> str:
    titles = [
        f"ticks {count(a)} to {count(b)}\n{count(round(busy / max(b - a, 1)))} of {count(round(width))} lanes busy"
        for a, b, busy, width in zip(figures.edges, figures.edges[1:], figures.busy, figures.widths)
    ]

    def draw(edges: np.ndarray, x: Axis) -> str:
        y = Axis(0, 1, "lanes busy", percent)
        return charts.stepped_area(edges, figures.occupancy, x, y, "Occupancy over time", titles)

    widths = np.unique(np.round(figures.widths)).astype(int)
    narrowed = (
        f" The machine became narrower as examples ran out: {count(widths[-1])} lanes at first, {count(widths[0])} at"
        " last."
        if len(widths) > 1
        else ""
    )
    return figure(
        "Occupancy",
        f"Lanes with an example that runs, of the lanes there are.{narrowed}",
        _both_axes(figures, draw),
    )


def _blocks(figures: TickFigures) -> str:
    rows = figures.blocks
    if not rows:
        return ""
    values = _lanes_a_tick(figures) / np.maximum(figures.widths, 1)

    def draw(edges: np.ndarray, x: Axis) -> str:
        return charts.heat_map(
            edges,
            [row.words for row in rows],
            values,
            x,
            "Which block ran when, for how many lanes",
            [str(row.label if row.label is not None else f"pc{row.pc}") for row in rows],
        )

    key = "".join(f'<i style="--part:{part}%"></i>' for part in (16, 38, 60, 80, 100))
    bins = "" if figures.stride == 1 else f" A column is {count(figures.stride)} ticks, averaged."
    return figure(
        "Which block ran when",
        f'The lanes that each block advanced in a tick: few<span class="key">{key}</span>all.{bins}'
        " Point at a part for its figures; click on a block to find it in the other pictures.",
        _both_axes(figures, draw),
    )


def _lanes_a_tick(figures: TickFigures) -> np.ndarray:
    """By block and bin."""
    ticks = np.maximum(np.diff(figures.edges), 1)
    return figures.advanced[:, [row.pc for row in figures.blocks]].T / ticks


def _figures_json(figures: TickFigures) -> str:
    """What the script reads out under the pointer."""
    lanes = [[float(f"{value:.3g}") for value in row] for row in _lanes_a_tick(figures)]
    known = {
        "ticks": figures.edges.astype(int).tolist(),
        "seconds": [float(f"{value:.6g}") for value in figures.seconds],
        "blocks": [f"block {row.words}" for row in figures.blocks],
        "lanes": lanes,
    }
    written = json.dumps(known, separators=(",", ":")).replace("</", "<\\/")
    return f'<script type="application/json" class="figures">{written}</script>'


def _flow(figures: TickFigures) -> str:
    examples = figures.run.examples
    refilled = (
        bool((figures.taken > figures.widths.max() + 0.5).any()) or figures.taken[0] < examples
    )

    def draw(edges: np.ndarray, x: Axis) -> str:
        y = Axis(0, float(max(examples, figures.taken.max())), "examples")
        ended = Line(edges, np.append([0], figures.ended), "ended")
        taken = Line(edges, np.append(figures.taken[:1], figures.taken), "taken by a lane", True)
        return charts.lines([ended, taken] if refilled else [ended], x, y, "Examples over time")

    names = ["ended", "taken by a lane"] if refilled else ["ended"]
    said = (
        "A lane that has ended an example takes the next: between the two lines are the examples in lanes."
        if refilled
        else "All examples had a lane from the start; nothing was refilled."
    )
    return figure("Examples and refill", said, _both_axes(figures, draw), legend(names))


def _depth(figures: TickFigures) -> str:
    def draw(edges: np.ndarray, x: Axis) -> str:
        y = Axis(0, float(max(figures.depth.max(), 1)) * 1.05, "frames")
        titles = [f"{count(depth)} frames at most" for depth in figures.depth]
        return charts.stepped_area(edges, figures.depth, x, y, "Stack depth over time", titles)

    said = "The most frames that any lane had pending."
    return figure("Stack depth", said, _both_axes(figures, draw))


def _progress(run: Run) -> str:
    """Examples over time where nothing but their number was reported."""
    known = ended_over_time(run)
    if known is None:
        return ""
    clock, ended = known
    x = Axis(0, float(clock[-1]), "time since the run began", seconds)
    line = Line(clock, ended, "ended")
    picture = charts.lines(
        [line], x, Axis(0, float(run.examples), "examples"), "Examples over time"
    )
    return figure("Examples", "How many examples had ended, read now and then.", picture)


def _lifetimes(run: Run, figures: TickFigures | None) -> str:
    lives = lives_of(run)
    if lives is None or figures is None:
        return ""
    few = lives.few()
    titles = [
        f"example {count(number)}\nticks {count(born)} to {count(died)}\n{count(steps)} steps"
        for number, born, died, steps in zip(few.number, few.born, few.died, few.steps)
    ]
    picture = charts.spans(
        [count(number) for number in few.number],
        few.born,
        few.died,
        Axis(0, float(figures.ticks), "ticks"),
        "Lifetimes of examples",
        titles,
    )
    which = (
        "Each example" if len(few.number) == run.examples else f"{len(few.number)} of the examples"
    )
    return figure(
        "Lane lifetimes",
        f"{which}: from when a lane took it to when it ended.{_tail(lives)}",
        picture,
    )


def _tail(lives: Lives) -> str:
    median, most = float(np.median(lives.ticks)), float(lives.ticks.max())
    return f" Half of them took {count(median)} ticks or fewer, the longest {count(most)}."


def _steps(run: Run) -> str:
    steps, depths = steps_of(run), depths_of(run)
    parts = []
    if steps is not None and len(steps):
        picture = charts.histogram(
            steps, "steps (loop iterations and calls)", "steps", "Steps of examples"
        )
        some = f" (the first {count(len(steps))})" if len(steps) < run.examples else ""
        parts.append(figure("Steps", f"How many steps each example took{some}.", picture))
    if depths is not None:
        picture = charts.histogram(depths, "frames", "frames", "Stack depth of examples")
        parts.append(
            figure("Stack depth", "The most frames that each example had pending.", picture)
        )
    return "".join(parts)


def _graph(info: RunInfo, figures: TickFigures | None) -> str:
    blocks, linked = _blocks_of(info)
    expensive: set[int] = set()
    if linked is not None:
        items = (linked.order[pc] for pc in expensive_blocks(linked, info.plan.job.width))
        expensive = {item.label for item in items if isinstance(item, Block)}
    storage = None if linked is None else linked.storage
    shares = None if figures is None else figures.work_by_label()
    filled = "" if shares is None else " A block is filled by its share of the work."
    marked = " Orange: expensive, runs when enough lanes wait for it." if expensive else ""
    picture = graph_svg(blocks, storage, expensive=expensive, shares=shares)
    return (
        f"<figure><h3>The block graph</h3><figcaption>Blocks of straight-line code and the edges between them: loops on"
        f' the left, dashed lines are calls.{filled}{marked}</figcaption><div class="graph">{picture}</div></figure>'
    )


def _blocks_of(info: RunInfo) -> tuple[BlockProgram, Linked | None]:
    plan, job = info.plan, info.plan.job
    if plan.linked is not None and plan.carrier not in ALONE:
        return plan.linked.program, plan.linked
    return blocks_of(job.program, job.varying, job.options), None


def _block_table(figures: TickFigures) -> str:
    ran, advanced, work = figures.ran.sum(0), figures.advanced.sum(0), figures.work
    lanes = float(figures.widths.max())
    rows = []
    for row in figures.blocks:
        pc = row.pc
        key = row.label if row.label is not None else f"pc{pc}"
        rows.append(
            f'<tr data-block="{key}"><td>{escaped(row.words)}</td><td class="n">{count(row.operations)}</td>'
            f'<td class="n">{count(ran[pc])}</td><td class="n">{count(advanced[pc])}</td>'
            f'<td class="n">{percent(advanced[pc] / max(ran[pc] * lanes, 1))}</td>'
            f'<td class="n">{percent(work[pc])}</td></tr>'
        )
    names = [
        "block",
        "operations",
        "ticks it ran in",
        "lanes advanced",
        "lanes full",
        "share of work",
    ]
    return f"<figure><h3>Blocks</h3>{whole_table(heads(names, 5), rows)}</figure>"
