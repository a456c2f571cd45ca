"""The block graph: every block and every way is there, and what is drawn is well-formed."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import jax.numpy as jnp

import lanewise as lw

SVG = "{http://www.w3.org/2000/svg}"


@lw.program
def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@lw.program
def even(n):
    return True if n == 0 else odd(n - 1)


@lw.program
def odd(n):
    return False if n == 0 else even(n - 1)


@lw.program
def fib(n):
    if n < 2:
        return n
    return fib(n - 1) + fib(n - 2)


def drawn(program: lw.ProgramFunction, *args: object, **options: object) -> ElementTree.Element:
    found = lw.inspect(program.with_options(carrier="ticks", **options), *args)
    tree = ElementTree.fromstring(found.svg())
    boxes = {g.get("data-block") for g in tree.iter(f"{SVG}g")}
    assert boxes == {str(block.label) for _, block in found.blocks.all_blocks()}
    return tree


def classes(tree: ElementTree.Element) -> list[str]:
    return [path.get("class") or "" for path in tree.iter(f"{SVG}path")]


def test_a_loop_leads_back() -> None:
    tree = drawn(collatz, jnp.arange(1, 5), schedule="sweep")
    assert sum("lw-back" in kind for kind in classes(tree)) == 1
    assert {"yes", "no"} <= {text.text for text in tree.iter(f"{SVG}text")}


def test_calls_lead_to_the_head_of_a_function() -> None:
    assert sum("lw-call" in kind for kind in classes(drawn(fib, jnp.arange(5)))) == 2
    both = drawn(even, jnp.arange(5))
    # A name that other tests have traced before has a number.
    named = {re.sub(r"\.\d+$", "", text.text or "") for text in both.iter(f"{SVG}text")}
    assert {"even", "odd"} <= named
    assert any("lw-call" in kind for kind in classes(both))


def test_nothing_is_outside_of_the_picture() -> None:
    tree = drawn(fib, jnp.arange(5))
    width, height = float(tree.get("width", 0)), float(tree.get("height", 0))
    for box in tree.iter(f"{SVG}rect"):
        x, y = float(box.get("x", 0)), float(box.get("y", 0))
        assert 0 <= x and x + float(box.get("width", 0)) <= width
        assert 0 <= y and y + float(box.get("height", 0)) <= height


def test_expensive_blocks_are_marked() -> None:
    weights = jnp.ones((64, 64))

    @lw.program
    def layers(x, n):
        while n > 0:
            x = jnp.tanh(weights @ x)
            n = n - 1
        return x

    tree = drawn(layers, jnp.ones((128, 64)), jnp.arange(128), schedule="sweep")
    assert any(g.get("class") == "lw-expensive" for g in tree.iter(f"{SVG}g"))
    assert not any(
        g.get("class") == "lw-expensive" for g in drawn(fib, jnp.arange(5)).iter(f"{SVG}g")
    )
