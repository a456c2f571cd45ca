"""The way of a call through the rooms of `src/lanewise`, found by making the call and recording which functions run.

`docs/how-it-works.md` describes each way in steps that name modules; `tests/test_docs.py` holds them to what is found
here. A drawing shows every room on a way, in the order in which a call first comes to it, and the modules that run.

    python docs/_ways.py        # "way: module module ...", a line each
"""

from __future__ import annotations

import functools
import html
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import jax
import jax.numpy as jnp
import numpy as np
from _drawings import WIDTH, figure, picture, text

import lanewise as lw

ROOT = Path(lw.__file__).parent
# What all others stand on, and the front door.
EVERYWHERE = ("_jax", "core")
OF_A_FUNCTION = 1  # CO_OPTIMIZED: the code of a function, not of a module or a class


def modules_that_run(call: Callable[[], object]) -> list[str]:
    """The modules whose functions run during a call, as paths below the package, in order of first use."""
    root = str(ROOT) + "/"
    seen: dict[str, None] = {}

    def see(frame: FrameType, event: str, argument: object) -> None:
        del argument
        code = frame.f_code
        if event == "call" and code.co_flags & OF_A_FUNCTION and code.co_filename.startswith(root):
            seen[code.co_filename[len(root) :]] = None

    before = sys.getprofile()
    threading.setprofile(see)
    sys.setprofile(see)
    try:
        jax.block_until_ready(call())
    finally:
        sys.setprofile(before)
        threading.setprofile(before)
    return list(seen)


# -- the calls ---------------------------------------------------------------------------------------


@lw.program
def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@lw.program
def fib(n):
    if n < 2:
        return n
    return fib(n - 1) + fib(n - 2)


@lw.program
def settled(x):
    while x > 0.1:
        x = x * jnp.cos(x)
    return x


@lw.record
class Tree:
    word: int
    left: Tree | None = None
    right: Tree | None = None


@lw.program
def encoded(tree, words):
    if tree.left is None:
        return words[tree.word]
    return jnp.tanh(encoded(tree.left, words) + encoded(tree.right, words))


def passed_on(w, x):
    encode = lw.placed(lambda x: jnp.tanh(x @ w), "encoder")
    decode = lw.placed(lambda h, code: jnp.tanh(h + code), "decoder")

    def step(h, x):
        return decode(h, encode(x)), None

    return jax.lax.scan(step, jnp.zeros(4), x)[0].sum()


def on_native() -> object:
    return jax.vmap(collatz.with_options(carrier="native"))(jnp.arange(1, 9))


def on_ticks() -> object:
    return jax.vmap(fib.with_options(carrier="ticks"))(jnp.arange(8))


def gradient() -> object:
    return jax.vmap(jax.grad(settled))(jnp.linspace(0.5, 1.5, 8))


def tree() -> object:
    forest = lw.pack([Tree(0, Tree(1), Tree(2)), Tree(1)])
    by_levels = lw.vmap(encoded, in_axes=(0, None), schedule="levels")
    return jax.grad(lambda words: by_levels(forest, words).sum())(jnp.ones((3, 4)))


def placed() -> object:
    places = {"encoder": jax.devices()[0], "decoder": jax.devices()[-1]}
    return lw.run(jax.grad(passed_on), places)(jnp.eye(4), np.ones((3, 4), np.float32))


WAYS: dict[str, tuple[str, Callable[[], object]]] = {
    "native": ("a first call on <code>native</code>", on_native),
    "ticks": ("a first call on <code>ticks</code>", on_ticks),
    "gradient": ("the gradient of a loop", gradient),
    "tree": ("the gradient of a recursion over trees, by levels", tree),
    "placed": ("the gradient of a placed loop", placed),
}


@functools.cache
def way(name: str) -> list[str]:
    return modules_that_run(WAYS[name][1])


# -- the drawings ------------------------------------------------------------------------------------

BOX, GAP, LINE, HEAD = 112, 14, 13, 24
IN_A_ROW = WIDTH // (BOX + GAP)


def by_room(modules: list[str]) -> dict[str, list[str]]:
    """The modules of each room, in the order of first use.

    >>> by_room(["tracing/decorator.py", "core/program.py", "cpp/emit/emit.py", "cpp/kernels.py"])
    {'tracing': ['decorator'], 'cpp': ['emit/emit', 'kernels']}
    """
    rooms: dict[str, list[str]] = {}
    for module in modules:
        room, _, rest = module.removesuffix(".py").partition("/")
        if room not in EVERYWHERE and rest:
            rooms.setdefault(room, []).append(rest.removesuffix("/__init__"))
    return rooms


def drawn(name: str) -> str:
    """The rooms of a way, each with the modules that run there."""
    rooms = list(by_room(way(name)).items())
    parts: list[str] = []
    top = 0.0
    for first in range(0, len(rooms), IN_A_ROW):
        row = rooms[first : first + IN_A_ROW]
        height = HEAD + LINE * max(len(modules) for _, modules in row) + 8
        for place, (room, modules) in enumerate(row):
            x = place * (BOX + GAP)
            parts.append(
                f'<rect x="{x + 1}" y="{top + 1:.0f}" width="{BOX}" height="{height:.0f}" rx="6" class="box"/>'
            )
            parts.append(text(x + 8, top + 17, f"{first + place + 1} {room}"))
            for line, module in enumerate(modules):
                words = html.escape(module)
                y = top + HEAD + LINE * line + 11
                parts.append(
                    f'<text x="{x + 8}" y="{y:.0f}" class="faint" style="font-size: 9px">{words}</text>'
                )
        top += height + GAP
    title, _ = WAYS[name]
    about = f"Where {title} comes, in the order in which it comes to each room of <code>src/lanewise</code> first:"
    return figure(
        picture(parts, top, title=f"The way of {name}"),
        f"{about} every module whose functions run, found by running it. <code>core</code> and <code>_jax</code>, on"
        " which all stand, are left out.",
    )


DRAWINGS: dict[str, Callable[[], str]] = {
    f"way_{name}": functools.partial(drawn, name) for name in WAYS
}

if __name__ == "__main__":
    for name in WAYS:
        print(f"{name}: {' '.join(way(name))}")
