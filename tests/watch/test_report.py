"""The report's page and the trace: they hold what was recorded, stand alone, and are written whatever happens."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from lanewise.core.errors import OptionError
from lanewise.mcmc.inference import data_of
from lanewise.watch import screen
from lanewise.watch.report import add_sampling
from programs.small import collatz, fib
from watch.programs import NUMBERS, STEPS, SWEPT


def pictures(page: str) -> list[ElementTree.Element]:
    """Every picture, which must be well-formed on its own."""
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def named(page: str) -> set[str]:
    return {picture.get("aria-label") or "" for picture in pictures(page)}


def test_a_page_about_ticks(tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    with lw.report(file, title="Collatz & co"):
        lw.vmap(collatz, **SWEPT)(NUMBERS)
        lw.vmap(fib, carrier="ticks")(jnp.arange(6))
    page = file.read_text()
    assert "<title>Collatz &amp; co</title>" in page
    assert named(page) >= {
        "Occupancy over time",
        "Which block ran when, for how many lanes",
        "Examples over time",
        "Stack depth over time",
        "Lifetimes of examples",
        "Steps of examples",
    }
    assert any("blocks of collatz" in name for name in named(page))
    for figures in re.findall(r'class="figures">(.*?)</script>', page):
        known = json.loads(figures)
        assert len(known["ticks"]) == len(known["seconds"]) == len(known["lanes"][0]) + 1
    # Nothing comes from elsewhere.
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert "@import" not in page and "url(" not in page


def test_a_page_says_what_is_not_known(tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    with lw.report(file):
        lw.vmap(fib, carrier="native")(jnp.arange(6))
        lw.vmap(collatz, carrier="native")(NUMBERS)
        lw.vmap(collatz, schedule="plain")(NUMBERS)
    page = file.read_text()
    assert "there are no ticks, and which block ran when is not recorded" in page
    assert "only its time is known" in page
    assert "Which block ran when, for how many lanes" not in named(page)
    assert "Steps of examples" in named(page)


def test_failed_examples_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    with lw.report(file):
        lw.vmap(collatz, max_steps=5, throw=False, carrier="native")(NUMBERS)
    failed = int((STEPS > 4).sum())
    assert f"{failed} steps exhausted" in file.read_text()


def test_an_exception_still_writes_the_page_and_the_trace(tmp_path: Path) -> None:
    page, events = tmp_path / "run.html", tmp_path / "run.json"
    with pytest.raises(ZeroDivisionError), lw.report(page), lw.timeline(events):
        raise ZeroDivisionError("by chance")
    assert "Ended by ZeroDivisionError: by chance" in page.read_text()
    assert "Nothing that Lanewise ran" in page.read_text()
    assert json.loads(events.read_text())["traceEvents"]


@pytest.mark.parametrize("opened", [lw.report, lw.timeline])
def test_a_file_that_cannot_be_written_is_reported_at_once(opened: Any, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a folder that exists"), opened(tmp_path / "no" / "run"):
        raise AssertionError("not reached")


def test_a_trace_for_perfetto(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    with lw.timeline(file):
        lw.vmap(collatz, max_steps=200, **SWEPT)(NUMBERS)
    events = json.loads(file.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert {"host", "compilation", "collatz (ticks, sweep)", "runs"} <= names
    spans = [e for e in events if e["ph"] == "X"]
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in spans)
    run = next(e for e in spans if e["name"] == "collatz" and e["pid"] > 1)
    assert run["args"]["examples"] == 40
    body = [e for e in spans if "body" in e["name"]]
    assert len(body) == STEPS.max()
    assert round(sum(e["args"]["lanes"] for e in body)) == STEPS.sum()
    for event in body:
        assert event["ts"] >= run["ts"] - 1
        assert event["ts"] + event["dur"] <= run["ts"] + run["dur"] + 1
    occupancy = [e for e in events if e["ph"] == "C" and e["name"] == "occupancy"]
    assert all(0 <= e["args"]["busy"] <= 1 for e in occupancy)
    assert any(e["name"].startswith("compile") for e in spans if e["pid"] == 1)


def test_a_report_and_a_trace_at_once_see_the_same(tmp_path: Path) -> None:
    with lw.report(tmp_path / "run.html") as report, lw.timeline(tmp_path / "run.json"):
        lw.vmap(collatz, **SWEPT)(NUMBERS)
        lw.vmap(collatz, **SWEPT)(NUMBERS)
    assert len(report.recording.runs) == 2
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert sum(e["ph"] == "X" and e["tid"] == 1 and e["pid"] > 1 for e in events) == 2


# -- sampling ------------------------------------------------------------------------------------------


def posterior(shift: float) -> Any:
    needs.library("arviz")
    random = np.random.default_rng(0)
    draws = random.normal(size=(4, 50, 2))
    draws[0] += shift
    diverging = np.zeros((4, 50), bool)
    diverging[1, 7] = shift != 0
    stats = {
        "diverging": diverging,
        "tree_depth": np.full((4, 50), 3),
        "energy": random.normal(size=(4, 50)),
    }
    return data_of({"posterior": {"mu": draws[..., 0], "theta": draws}, "sample_stats": stats})


def test_sampling_goes_nowhere_without_a_report() -> None:
    add_sampling(object())


class Finding(NamedTuple):
    kind: str
    text: str
    advice: str


def test_a_page_about_sampling(tmp_path: Path) -> None:
    found = [Finding("rhat", "R-hat is 3 for mu.", "Run longer & wider.")]
    with lw.report(tmp_path / "run.html"):
        add_sampling(posterior(shift=5.0), title="Two normals", findings=found)
        add_sampling(posterior(shift=0.0), title="Two normals", findings=())
    page = (tmp_path / "run.html").read_text()
    assert page.count("<h2>Two normals</h2>") == 2
    each = ("Density of", "Trace of", "Ranks of", "Autocorrelation of")
    assert named(page) >= {f"{words} {name}" for words in each for name in ("mu", "theta[1]")}
    assert named(page) >= {"ESS of mu over draws", "Tree depth", "Energy", "E-BFMI by chain"}
    assert any(" and " in name for name in named(page)), "pairs"
    for words in ("Red: divergences. The variables whose", "No draw diverged. The variables with"):
        assert page.count(words) == 1
    assert "<b>R-hat is 3 for mu.</b> Run longer &amp; wider." in page
    assert page.count("The diagnosis found no problem.") == 1
    # The chain that is elsewhere is named, and R-hat is fine without it.
    assert re.search(r"<td>chain 0</td>.*?<td class=\"n\">(0\.9|1\.0)\d+</td>", page)
    assert "chain 1 diverged at draw 7" in page
    assert page.index("Two normals") < page.index('<details class="machine">')
    keys = re.findall(r' id="([^"]+)"', page)
    assert len(keys) == len(set(keys))


def test_a_page_about_many_chains_and_variables_stays_small(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(500, 20, 100)).astype(np.float32)
    values[3] += 4.0
    with lw.report(tmp_path / "run.html"):
        add_sampling({"posterior": {"x": values}})
    page = (tmp_path / "run.html").read_text()
    assert "16 of 100 variables" in page and "60 of 100 variables" in page
    assert "chain 3" in page and len(page) < 1_500_000


def test_chains_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(4, 30))
    values[2, 9:] = np.nan
    with lw.report(tmp_path / "run.html"):
        add_sampling({"posterior": {"x": values, "y": np.full((4, 30), np.nan)}})
    page = (tmp_path / "run.html").read_text()
    assert "Draws of 1 chain are not finite (2)" in page and "Finite in no chain: y" in page


def test_the_worst_of_many_variables_is_found_by_a_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(0).standard_t(1.5, size=(64, 50, 40))
    values[:8, :, 31] += 3.0
    values[:8, :, 32] *= 5.0
    monkeypatch.setattr(screen, "MOST_NUMBERS", 17 * 64 * 50)
    with lw.report(tmp_path / "run.html"):
        add_sampling({"posterior": {"x": values}})
    page = (tmp_path / "run.html").read_text()
    assert "computed for 17 of 40 variables" in page
    rows = re.findall(r"<td><code>(x\[\d+\])</code>", page)
    assert len(rows) == 17 and {"x[31]", "x[32]"} <= set(rows)
    assert set(re.findall(r'<option value="\S+-[01]">(x\[\d+\])', page)) == {"x[31]", "x[32]"}


def test_the_depth_limit_and_e_bfmi_of_each_chain(tmp_path: Path) -> None:
    xarray = needs.library("xarray")
    random = np.random.default_rng(0)
    energy = random.normal(size=(3, 200))
    energy[1] = np.cumsum(energy[1])
    of = {
        "diverging": np.zeros((3, 200), bool),
        "energy": energy,
        "tree_depth": np.full((3, 200), 5),
        "n_steps": np.full((3, 200), 31),
    }
    of["tree_depth"][0, :30] = 6
    of["n_steps"][0, :30] = 63
    of["n_steps"][0, :12] = 40  # these turned within the last doubling, and the limit cut nothing

    def group(arrays: Any, **attributes: Any) -> Any:
        return xarray.Dataset(
            {name: (("chain", "draw"), values) for name, values in arrays.items()}, attrs=attributes
        )

    data = {
        "posterior": group({"x": random.normal(size=(3, 200))}, sampler="NUTS(max_depth=6)"),
        "sample_stats": group(of),
    }
    with lw.report(tmp_path / "run.html"):
        add_sampling(data)
    page = (tmp_path / "run.html").read_text()
    assert "18 of 600 draws reached the limit of 6 (3.0%)." in page
    assert "1 chain is below 0.3." in page and "of chain 1." in page
