"""The demonstration says what it is to say; of its speed nothing is asserted."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import needs
from lanewise.mcmc import demo

pytestmark = [needs.installed("arviz"), pytest.mark.slow]


def test_it_reads_like_a_story(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own chains stand for NumPyro's, which take long to compile."""
    monkeypatch.setattr(demo, "TIMED_DRAWS", 2)
    monkeypatch.setattr(demo, "TIMED_RUNS", 2)
    monkeypatch.setattr(demo, "_numpyro", lambda f, starts, step: demo._ours(f, starts, step, 2))
    page = tmp_path / "run.html"
    data = demo.run(8, 20, 20, str(page))
    assert data.posterior["player"].shape == (8, 20, 18)
    told = capsys.readouterr()
    headings = ("The model", "Sampling", "Summary", "Diagnosis", "Speed", "Report")
    places = [told.out.index(f"\n{name}\n{'-' * len(name)}\n") for name in headings]
    assert places == sorted(places)
    assert "def logdensity(position: Position)" in told.out
    assert "NUTS, 8 chains, 20 draws of warm-up and 20 draws of each." in told.out
    assert "player[17]" in told.out and "r_hat" in told.out
    for words in (
        r"maximum R-hat     \d\.\d{3}",
        r"minimum bulk ESS  \d+",
        r"divergences       \d+ of 160 draws",
        r"deepest tree      \d+ \(limit 10\)",
        r"Warning: The minimum bulk ESS is \d+, of ",
        r"[\d,]+  Lanewise: no chain waits for another\n",
        r"[\d,]+  NumPyro, vectorized chains\n",
        r"\d+\.\d  times as many \(\d+\.\d to \d+\.\d\)",
    ):
        assert re.search(words, told.out), words
    assert f"{page}: open it in a browser." in told.out
    assert "How well do eighteen players bat?" in page.read_text()
    assert "320 of 320 draws (100%)" in told.err
    hits = np.asarray(data.posterior["player"].mean(("chain", "draw")))
    assert (0.15 < hits).all() and (hits < 0.45).all() and hits[0] > hits[-1]
