"""The report in a real browser: it loads without a complaint, pictures are there, and every control does its work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from lanewise.mcmc.inference import data_of
from lanewise.watch.report import add_sampling
from programs.small import collatz, fib
from watch import browser
from watch.programs import NUMBERS, SWEPT


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs.library("arviz")
    draws = np.random.default_rng(0).normal(size=(4, 50, 2))
    data = data_of({"posterior": {"mu": draws[..., 0], "theta": draws}})
    file = tmp_path_factory.mktemp("report") / "run.html"
    with lw.report(file):
        for _ in range(2):
            lw.vmap(collatz, **SWEPT)(NUMBERS)
        lw.vmap(fib, carrier="native")(jnp.arange(6))
        add_sampling(data, title="Two normals")
    return file


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    started = browser.start()
    yield started
    started.quit()


@pytest.fixture
def opened(driver: Any, page: Path) -> Any:
    driver.set_window_size(1100, 900)
    driver.get(page.as_uri())
    driver.execute_script("document.querySelector('details.machine').open = true")
    return driver


def see(driver: Any, expression: str) -> Any:
    return driver.execute_script(f"return {expression};")


def click(driver: Any, selector: str, place: int = 0) -> None:
    element = driver.find_elements("css selector", selector)[place]
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()


def visible(driver: Any, selector: str) -> list[Any]:
    return [e for e in driver.find_elements("css selector", selector) if e.is_displayed()]


def test_it_loads_without_a_complaint_and_pictures_are_there(opened: Any) -> None:
    assert opened.title == "Lanewise report"
    shown = {picture.get_attribute("aria-label") for picture in visible(opened, "figure svg")}
    assert {"Occupancy over time", "Which block ran when, for how many lanes"} <= shown
    assert "Lifetimes of examples" in shown
    assert any(name.startswith("Ranks of ") for name in shown)
    for picture in visible(opened, "figure svg"):
        assert picture.size["width"] > 100 and picture.size["height"] > 60
    assert [entry for entry in opened.get_log("browser") if entry["level"] != "INFO"] == []
    # Nothing was asked for from elsewhere.
    assert see(opened, "performance.getEntriesByType('resource').length") == 0


def test_programs_and_runs_are_chosen(opened: Any) -> None:
    assert [s.get_attribute("id") for s in visible(opened, "section.site")] == ["site-0"]
    click(opened, "tr.choice button", 1)
    assert [s.get_attribute("id") for s in visible(opened, "section.site")] == ["site-1"]
    assert "there are no ticks" in visible(opened, "section.site")[0].text
    click(opened, "tr.choice button", 0)
    assert [r.get_attribute("id") for r in visible(opened, "section.site .run")] == ["run-0-0"]
    click(opened, "#site-0 select.runs option", 1)
    assert [r.get_attribute("id") for r in visible(opened, "section.site .run")] == ["run-0-1"]


def test_variables_are_chosen(opened: Any) -> None:
    option = opened.find_elements("css selector", "section.sampling select.runs option")[2]
    name = option.text
    click(opened, "section.sampling select.runs option", 2)
    shown = [p.get_attribute("aria-label") for p in visible(opened, "section.sampling .run svg")]
    figures = ("Density of {}", "Trace of {}", "Ranks of {}", "Autocorrelation of {}")
    assert shown == [words.format(name) for words in (*figures, "ESS of {} over draws")]


def test_pictures_by_tick_and_by_time(opened: Any) -> None:
    names = "section.site .area-chart .axis-name"
    assert visible(opened, names)[0].text == "ticks"
    click(opened, "#site-0 button[data-axis=time]")
    assert visible(opened, names)[0].text == "time since the run began"
    pressed = visible(opened, "button[data-axis][aria-pressed=true]")
    assert [button.text for button in pressed] == ["by time"]


def test_light_and_dark(opened: Any) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    before = see(opened, background)
    click(opened, "#theme")
    assert see(opened, background) != before
    # What is drawn follows.
    ink = "getComputedStyle(document.querySelector('.lw-graph')).color"
    dark = see(opened, ink)
    click(opened, "#theme")
    assert see(opened, background) == before and see(opened, ink) != dark


def test_a_block_is_found_in_the_other_pictures(opened: Any) -> None:
    click(opened, "#run-0-0 .by-ticks .heat-chart .row", 1)
    marked = visible(opened, "#run-0-0 .marked")
    assert {element.tag_name for element in marked} == {"g", "tr"}
    assert len({element.get_attribute("data-block") for element in marked}) == 1
    click(opened, "#run-0-0 .by-ticks .heat-chart .row", 1)
    assert not visible(opened, "#run-0-0 .marked")


def test_figures_under_the_pointer(opened: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    def told(selector: str) -> str:
        element = visible(opened, selector)[0]
        opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        ActionChains(opened).move_to_element(element).perform()
        return visible(opened, "#tip")[0].text

    assert "lanes a tick" in told("#run-0-0 .heat-chart .row:nth-of-type(2) .empty")
    assert "lanes busy" in told("#run-0-0 .area-chart .pointed")
    assert "step" in told("#run-0-0 .bar-chart .bar")
    assert "ops" in told("#run-0-0 .lw-graph [data-block] .lw-box")
    assert opened.get_log("browser") == []


@pytest.mark.parametrize("width", [420, 1600])
def test_no_window_is_too_narrow_or_too_wide(opened: Any, width: int) -> None:
    opened.set_window_size(width, 900)
    assert see(opened, "document.documentElement.scrollWidth <= innerWidth")
    for text in visible(opened, "section.site .lw-chart .figure")[:5]:
        assert text.size["height"] >= 6
