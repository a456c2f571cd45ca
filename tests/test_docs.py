"""What building the site adds to MkDocs: drawings, ways of calls, and the check that nothing comes from the network."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from mkdocs.exceptions import PluginError

from apart import cases_of

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = SimpleNamespace(file=SimpleNamespace(src_path="page.md"))


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    sys.path.insert(0, str(DOCS))
    try:
        import _hooks  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.remove(str(DOCS))
    return _hooks


@pytest.mark.parametrize(
    "loaded",
    [
        '<script src="https://elsewhere.org/x.js"></script>',
        "<img alt='' src=//elsewhere.org/x.png>",
        '<link rel="stylesheet" href="https://elsewhere.org/x.css">',
        '<link href="http://elsewhere.org" rel="preconnect">',
    ],
)
def test_pages_load_nothing_from_the_network(hooks: ModuleType, loaded: str) -> None:
    with pytest.raises(PluginError, match=r"page\.md loads from the network"):
        hooks.on_post_page(f"<p>before{loaded}", page=PAGE)


def test_links_and_own_files_are_fine(hooks: ModuleType) -> None:
    page = (
        '<a href="https://elsewhere.org"><img src="plots/x.png"></a><link rel="icon" href="x.png">'
    )
    assert hooks.on_post_page(page, page=PAGE) == page


def test_what_runs_where_is_drawn_from_a_program(hooks: ModuleType) -> None:
    """A part that is not taken has no arrow outside its branch: of three messages two are inside, one of two values."""
    drawn = hooks.on_page_markdown("<!-- drawing: placed_steps -->", page=PAGE)
    assert drawn.count("marker-end") == 3 and drawn.count("f32[8], 32 bytes") == 1
    assert drawn.count("bool[], 1 bytes") == 1 and drawn.count("f32[8], f32[8], 64 bytes") == 1
    assert "part corrector" in drawn and "branch: if false: nothing" in drawn


def test_iterations_are_played_apart_only_where_nothing_comes_back(hooks: ModuleType) -> None:
    ends = {}
    for fun in (hooks._placed.model, hooks._placed.fed_back):
        places = {"encoder": 0, "decoder": 1}
        given = hooks._placed.SQUARE, hooks._placed.SQUARE, hooks._placed.ROWS
        actions = hooks._placed.actions_of(fun, places, *given)
        (loop,) = [s for s in actions.steps.steps if isinstance(s, hooks._placed.Loop)]
        bars = hooks._placed.played(loop.body.steps, 10, actions.credits(8))
        ends[fun.__name__] = max(bar[3] for bar in bars)
    assert ends["model"] < 12.0 < 20.0 < ends["fed_back"]


def test_drawings_are_put_in_whole(hooks: ModuleType) -> None:
    drawn = hooks.on_page_markdown("before\n\n<!-- drawing: refilled -->\n\nafter", page=PAGE)
    (figure,) = [part for part in drawn.split("\n\n") if "<svg" in part]
    assert figure.startswith("<figure") and figure.endswith("</figure>")
    with pytest.raises(PluginError, match="no drawing 'nothing'"):
        hooks.on_page_markdown("<!-- drawing: nothing -->", page=PAGE)


def test_the_readmes_picture_is_what_is_drawn(hooks: ModuleType) -> None:
    for file, make in hooks._drawings.FILES.items():
        kept = (DOCS / "assets" / file).read_text()
        assert kept == make() + "\n", f"run `python docs/_drawings.py`: {file} is old"
    assert "docs/assets/waiting.svg" in (DOCS.parent / "README.md").read_text()


def ways_described() -> dict[str, set[str]]:
    """The modules that each way of `how-it-works.md` names, by the drawing below its steps."""
    page = (DOCS / "how-it-works.md").read_text().partition("## The way of a call")[2]
    ways = {}
    for section in page.split("\n### ")[1:]:
        drawing = re.search(r"<!-- drawing: way_(\w+) -->", section)
        if drawing is not None:
            steps = section[: drawing.start()].replace("`tests/", "")
            ways[drawing[1]] = set(re.findall(r"`([a-z_]+/(?:[a-z_]+/)*(?:\w+\.py)?)`", steps))
    return ways


def test_ways_are_described_as_they_are() -> None:
    """In a process of its own, as a first call is: every module that the text names runs, and all ways have a text."""
    ran = cases_of(DOCS / "_ways.py")
    described = ways_described()
    assert described.keys() == ran.keys()
    for name, named in described.items():
        modules = ran[name].split()
        assert len(named) >= 6
        # A room is on the way if a module of it is.
        lost = {own for own in named if not any(module.startswith(own) for module in modules)}
        assert not lost, f"the way of {name} does not come to {lost}"
