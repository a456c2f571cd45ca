"""The models of `examples/models`: a minibatch gives what one instance at a time gives, and they train."""

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
from lanewise.dynamic.levels import by_levels

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


def model_of(name: str) -> Any:
    needs.library("optax")
    if name == "nested_rnn":
        needs.library("flax")
    return importlib.import_module(name)


def both(found: Any) -> Any:
    """The loss of all instances, and what each gives."""
    return jnp.sum(found[:, 0]), found


def compare(ours: Any, expected: Any, params: Any) -> None:
    """Values and gradients."""
    found = jax.value_and_grad(lambda p: both(ours(p)), has_aux=True)(params)
    right = jax.value_and_grad(lambda p: both(expected(p)), has_aux=True)(params)
    np.testing.assert_allclose(found[0][1], right[0][1], rtol=1e-4, atol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), found[1], right[1]
    )


@pytest.mark.parametrize("name", needs.in_turns(SIZES, 3))
def test_a_model_gives_what_it_gives_one_instance_at_a_time(name: str) -> None:
    """As plain Python: without `jit` a program is the function that it was made from."""
    model = model_of(name)
    instances = model.batch(3, 2, **SIZES[name])
    forest = lw.pack(instances)

    def plainly(p: Any) -> Any:
        with jax.disable_jit():
            return jnp.stack([model.measure(p, forest[i]) for i in range(len(instances))])

    compare(lambda p: model.run(p, forest), plainly, model.init(WIDTH))


def test_the_messages_of_a_dag_recorded_lazily() -> None:
    model = model_of("dag")
    instances = model.batch(3, 3, **SIZES["dag"])
    compare(
        lambda p: lw.lazy_map(lambda x: model.lazily(p, x), instances),
        lambda p: model.run(p, lw.pack(instances)),
        model.init(WIDTH),
    )


@pytest.mark.parametrize("name", needs.in_turns(SIZES, 3))
def test_pytorch_computes_the_same(name: str) -> None:
    """The peer of the benchmark, by values and gradients."""
    needs.library("torch")
    model = model_of(name)
    from dynamic import one_at_a_time as peer

    params = model.init(WIDTH)
    instances = model.batch(3, 4, **SIZES[name])
    weights = peer.torch_weights(params)
    mine = model.run(params, lw.pack(instances))
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
    oracle = jax.jit(lambda heads, size, *at: arc.oracle(arc.Sentence(heads, heads, size), *at))
    for sentence in arc.batch(0, 20, deep=0.6):
        stack: list[int] = []
        front, heads = 0, [-1] * sentence.size
        while front < sentence.size or stack:
            on = np.isin(np.arange(arc.MOST), stack)
            top, under = ([-1, -1, *stack][-1], [-1, -1, *stack][-2])
            legal, good = map(
                np.asarray, oracle(sentence.heads, sentence.size, on, top, under, front)
            )
            act = int(np.flatnonzero(good)[-1])
            assert legal[act]
            if act == arc.SHIFT:
                stack.append(front)
                front += 1
            else:
                top = stack.pop()
                heads[top] = front if act == arc.LEFT else stack[-1]
        assert heads == sentence.heads[: sentence.size].tolist()


def test_the_parser_finds_the_tree_that_its_decisions_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an oracle for a network, the right one."""
    arc = model_of("transition_parser")

    def decide(_p: Any, _stack: Any, _buffer: Any, _legal: Any, good: Any) -> Any:
        return jnp.argmax(good).astype(jnp.int32), jnp.zeros(4)

    monkeypatch.setattr(arc, "decide", decide)
    sentences = arc.batch(1, 30, deep=0.6)
    # A width that no other test has: the code is traced here.
    right = lw.vmap(arc.parse, in_axes=(None, 0))(arc.init(3), lw.pack(sentences))[:, 3]
    assert right.astype(int).tolist() == [s.size for s in sentences]


def test_as_many_rows_as_another_axis_is_long() -> None:
    """With 96 rows of width 32 more equations look alike than there are repeats: the reverse is cut all the same."""
    model = model_of("tree_lstm")
    found = lw.inspect(
        model.measure.with_options(schedule="levels"),
        model.init(32),
        lw.pack(model.batch(0, 16)),
        in_axes=(None, 0),
    )
    pieces = by_levels(found.plan.job.program, found.plan.job.varying, None).slice.pieces
    for pair in pieces:
        rows = tuple(t.differentiable for t in pair.rows)
        for size in (32, 96, 160):
            shared = tuple(t.differentiable for t in pair.shared)
            assert not cut.codes(pair, size, rows, shared).again
