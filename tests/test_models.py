"""The models of `examples/models`: lazily they give what they give one instance at a time, and they train."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanewise as lw
import needs
from lanewise.dynamic import cut
from lanewise.dynamic.table import piece

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 8
# Sizes of instances that are small, and soon compiled.
SIZES: dict[str, dict[str, Any]] = {
    "tree_lstm": {"leaves": (1, 6)},
    "child_sum": {"size": (1, 7)},
    "tagger": {"words": (1, 4)},
    "mv_rnn": {"leaves": (1, 6)},
    "nested_rnn": {"sentences": (1, 3)},
    "dag": {"size": (5, 9)},
    "stack_rnn": {"pairs": (1, 4)},
    "drnn": {},
    "transition_parser": {"deep": 0.1},
}
DECIDES = ("stack_rnn", "drnn", "transition_parser")


def model_of(name: str) -> Any:
    needs.library("optax")
    if name == "nested_rnn":
        needs.library("flax")
    return importlib.import_module(name)


@pytest.mark.parametrize("name", SIZES)
def test_a_model_gives_what_it_gives_one_instance_at_a_time(name: str) -> None:
    model = model_of(name)
    params = model.init(WIDTH)
    instances = model.batch(3, 3, **SIZES[name])

    def both(found: Any) -> Any:
        """The loss of all instances, and what each gives."""
        return jnp.sum(found[:, 0]), found

    def plain(p: Any) -> Any:
        return both(jnp.stack([model.measure(p, x) for x in instances]))

    def ours(p: Any) -> Any:
        return both(lw.lazy_map(lambda x: model.measure(p, x), instances))

    # One program for the check, where nothing depends on values: an operation at a time takes longer.
    check = jax.value_and_grad(plain, has_aux=True)
    check = check if name in DECIDES else jax.jit(check)
    found, expected = jax.value_and_grad(ours, has_aux=True)(params), check(params)
    np.testing.assert_allclose(found[0][1], expected[0][1], rtol=1e-4, atol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), found[1], expected[1]
    )


@pytest.mark.parametrize("name", SIZES)
def test_pytorch_computes_the_same(name: str) -> None:
    """The peer of the benchmark, by values and gradients."""
    needs.library("torch")
    model = model_of(name)
    from dynamic import one_at_a_time as peer

    params = model.init(WIDTH)
    instances = model.batch(3, 4, **SIZES[name])
    weights = peer.torch_weights(params)
    mine = jnp.stack([model.measure(params, x) for x in instances])
    theirs = peer.forward(getattr(peer, name), weights, instances)
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


TRAINED = [
    "tree_lstm",
    *(pytest.param(n, marks=pytest.mark.slow) for n in SIZES if n != "tree_lstm"),
]


@pytest.mark.parametrize("name", TRAINED)
def test_an_example_trains(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A few steps: each shows its loss, and at the end what it is compared with."""
    model = model_of(name)
    right, baseline = model.main(steps=2)
    assert 0.0 <= right <= 1.0 and 0.0 < baseline < 1.0
    shown = capsys.readouterr().out
    assert "step    0: loss" in shown and "%" in shown.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_a_trained_model_beats_what_it_is_compared_with(name: str) -> None:
    right, baseline = model_of(name).main()
    assert right > baseline


def test_the_tree_lstm_is_forty_lines() -> None:
    text = (ROOT / "examples" / "models" / "tree_lstm.py").read_text()
    part = re.search(r"# --8<-- \[start:model\]\n(.*?)# --8<-- \[end:model\]", text, re.DOTALL)
    assert part is not None
    code = re.sub(r'""".*?"""', "", part[1], flags=re.DOTALL)
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 40


def test_data_is_the_same_for_one_seed() -> None:
    made = importlib.import_module("made")
    found = doctest.testmod(made)
    assert found.attempted >= 4 and not found.failed
    assert made.sentiment(5, 1) == made.sentiment(5, 1) != made.sentiment(5, 2)
    trees = lw.records.bracketed(made.sentiment(20, 0))
    for tree in trees:
        check_value(made, tree)


def check_value(made: Any, phrase: Any) -> int:
    """The label of a phrase is what the rule says."""
    if phrase.word is not None:
        value = made.VALUE.get(phrase.word, 0)
    else:
        parts = [(kid.word or "", check_value(made, kid)) for kid in phrase.children]
        value = made._value(parts)
    assert int(phrase.label) == value + 2
    return value


def test_the_oracle_of_the_parser_leads_to_the_right_tree() -> None:
    """Following transitions that lose nothing, from any sentence."""
    arc = model_of("transition_parser")
    for sentence in arc.batch(0, 30, deep=0.6):
        stack: list[int] = []
        front, heads = 0, [-1] * len(sentence.heads)
        while front < len(heads) or stack:
            legal, good = arc.oracle(sentence.heads, stack, front)
            act = int(np.flatnonzero(good)[-1])
            assert legal[act]
            if act == arc.SHIFT:
                stack.append(front)
                front += 1
            else:
                top = stack.pop()
                heads[top] = front if act == arc.LEFT else stack[-1]
        assert heads == sentence.heads


def test_the_parser_finds_the_tree_that_its_decisions_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an oracle for a network, the right one."""
    arc = model_of("transition_parser")

    def decide(_act: Any, _stack: Any, _buffer: Any, _legal: Any, good: Any, found: Any) -> Any:
        return np.flatnonzero(good)[0], found

    monkeypatch.setattr(arc, "decide", decide)
    monkeypatch.setattr(arc, "put", lambda _head, _cell, x, *_: (x, x, x))
    params = jax.tree.map(np.asarray, arc.init(WIDTH))
    for sentence in arc.batch(1, 30, deep=0.6):
        assert arc.parse(params, sentence)[1] == sentence.heads


def test_as_many_rows_as_another_axis_is_long() -> None:
    """With 96 rows of width 32 more equations look alike than there are repeats: the reverse is cut all the same."""
    model = model_of("tree_lstm")
    params = model.init(32)
    row, three = np.zeros(32, np.float32), np.zeros(3, np.float32)

    def code(*given: Any) -> Any:
        weights = dict(zip(params, given, strict=False))
        return model.of_pair.fun(weights, given[6:10], given[10:14], given[14])

    pair = piece(code, list(params.values()), [row, row, three, three] * 2 + [np.int32(0)])
    for size in (32, 96, 160):
        assert not cut.codes(pair, size, (True,) * 8 + (False,), (True,) * 6).again
