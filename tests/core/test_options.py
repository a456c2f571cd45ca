"""Options: what is wrong is named, with what would be right; NumPy's numbers and bools count."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
from lanewise.core.errors import OptionError
from lanewise.core.options import Options
from programs.small import collatz


@pytest.mark.parametrize(
    ("option", "value", "right"),
    [
        ("throw", "no", "must be True or False"),
        ("throw", None, "must be True or False"),
        ("throw", 0, "must be True or False"),
        ("stats", "yes", "must be True or False"),
        ("stats", 1, "must be True or False"),
        ("progress", 1.0, "must be True or False"),
        ("lanes", 2.0, "must be a positive int"),
        ("lanes", 0, "must be a positive int"),
        ("lanes", True, "must be a positive int"),
        ("lanes", np.bool_(True), "must be a positive int"),
        ("lanes", "8", "must be a positive int"),
        ("max_steps", -1, "must be a positive int"),
        ("max_steps", np.int64(0), "must be a positive int"),
        ("max_steps", np.float32(3), "must be a positive int"),
        ("max_depth", [3], "must be a positive int"),
        ("tape", 1.5, "must be a positive int"),
        ("checkpoints", "some", "'auto', 'all', 'sqrt', or a number of states"),
        ("checkpoints", 0, "'auto', 'all', 'sqrt', or a number of states"),
        ("checkpoints", None, "'auto', 'all', 'sqrt', or a number of states"),
        ("checkpoints", np.arange(3), "'auto', 'all', 'sqrt', or a number of states"),
        (
            "schedule",
            "fastest",
            "'auto', 'lowest', 'most', 'sweep', 'meet', 'fork', 'local', 'plain', 'levels'",
        ),
        ("schedule", None, "'auto', 'lowest'"),
        ("schedule", ["most"], "'auto', 'lowest'"),
        ("carrier", "gpu", "'auto', 'ticks', 'native', 'kernel'"),
        ("carrier", 3, "'auto', 'ticks', 'native', 'kernel'"),
        ("offload", "disk", "'host', None"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_right(option: str, value: Any, right: str) -> None:
    for made in (
        lambda: lw.vmap(collatz, **{option: value}),
        lambda: lw.program(**{option: value})(lambda n: n),
        lambda: lw.grad(collatz, **{option: value}),
    ):
        with pytest.raises(OptionError) as caught:
            made()
        assert f"{option}=" in str(caught.value)
        assert right in str(caught.value)


def test_an_unknown_option_is_named_with_those_there_are() -> None:
    with pytest.raises(OptionError, match=r"'lane' is not an option.*lanes.*did you mean 'lanes'"):
        lw.vmap(collatz, lane=3)


def test_numpys_numbers_and_bools_count() -> None:
    given = Options(
        max_steps=np.int64(100),  # type: ignore[arg-type]
        max_depth=np.uint8(7),  # type: ignore[arg-type]
        lanes=np.int64(3),  # type: ignore[arg-type]
        tape=np.int32(64),  # type: ignore[arg-type]
        checkpoints=np.int16(5),  # type: ignore[arg-type]
        throw=np.bool_(False),  # type: ignore[arg-type]
        stats=np.bool_(True),  # type: ignore[arg-type]
    )
    plain = Options(
        max_steps=100, max_depth=7, lanes=3, tape=64, checkpoints=5, throw=False, stats=True
    )
    # One compilation serves both: they are equal, and so are their types.
    assert given == plain and hash(given) == hash(plain)
    assert all(type(a) is type(b) for a, b in zip(vars(given).values(), vars(plain).values()))
    answers = lw.vmap(collatz, lanes=np.int64(3))(jnp.array([1, 8, 1000, 2, 5]))
    assert answers.tolist() == [0, 3, 111, 1, 5]
