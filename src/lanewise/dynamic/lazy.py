"""Plain Python, recorded: ops that are called one instance at a time and run for many.

Neubig et al. 2017 (DyNet) showed that code written for one instance can be batched when it is run: calls are
recorded, and executed together later. Here a call of an `op` inside a lazy block costs about a microsecond: it gives
a `Lazy` value, whose shape and dtype are known as the op was traced for its arguments' types, once. What was recorded
is a table (`table.py`), and runs as one, when a value is needed or the block ends.

What an argument of an op is decides what it becomes:

* a `Lazy` value is a row;
* a JAX array, concrete or traced, is shared: the same for all calls that get this very object. Weights are;
* a Python or NumPy number and a NumPy array are payload: a row of its own for each call;
* a dictionary, list, tuple or registered class is looked into; anything else (a string, None) is part of the op's
  code, which is traced again for each value it has.

Considered and not done: recording JAX primitives, as a tracer would. A call of an op is one piece for XLA, however
many operations it has; recording each of them costs fifteen times as much, and leaves as many levels.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lanewise import _jax
from lanewise.dynamic.quick import quick_way
from lanewise.dynamic.record import (
    NO_WAY,
    STATE,
    TYPES,
    Kind,
    LazyError,
    Recorder,
    Tag,
    Way,
    type_number,
)
from lanewise.dynamic.traced import Signature, traced

# The most arrays that one argument of an op may be shared as: more are data, which should be NumPy arrays.
MOST_SHARED = 64

# The most kinds of an op that are recorded the quick way.
QUICK_WAYS = 8


class Lazy:
    """A value that is not computed yet: a result of an op in a lazy block.

    `shape`, `dtype` and `ndim` are known. `.value` is the array; `.item()`, `float(x)`, `int(x)` and `if x:` give a
    number. All of these run what was recorded so far, unless it has run; in `lazy_map` they first wait for the other
    instances. Arithmetic, comparisons, `@` and indexing with constants are ops.
    """

    __slots__ = ("_number", "_of")

    def __init__(self, of: Tag, number: int) -> None:
        self._of = of
        self._number = number

    @property
    def _recorder(self) -> Recorder:
        return self._of.recorder

    @property
    def _kind(self) -> int:
        return self._of.kind

    @property
    def shape(self) -> tuple[int, ...]:
        return TYPES[self._kind].shape

    @property
    def dtype(self) -> Any:
        return TYPES[self._kind].dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def value(self) -> Any:
        """The array."""
        self._ready()
        return self._recorder.rows(self._kind, np.array([self._number]))[0]

    def item(self) -> Any:
        """The number, which is known: not inside `jax.jit`."""
        return self._concrete().item()

    def _ready(self) -> None:
        recorder = self._recorder
        if self._number >= recorder.base:
            if recorder.wait is not None:
                recorder.wait()
            else:
                recorder.flush()

    def _concrete(self) -> np.ndarray:
        self._ready()
        return self._recorder.concrete(self._number)

    def __bool__(self) -> bool:
        return bool(self._concrete())

    def __float__(self) -> float:
        return float(self._concrete())

    def __int__(self) -> int:
        return int(self._concrete())

    def __index__(self) -> int:
        return operator.index(self._concrete().item())

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        del copy
        return np.asarray(self._concrete(), dtype)

    @property
    def __jax_array__(self) -> Callable[[], Any]:
        # A property: JAX asks whether there is one, and most of its functions then refuse in words of their own.
        if STATE.recorder is self._recorder:
            raise LazyError(
                f"{self!r} was given to a JAX function inside its lazy block, which would run it for one instance."
                " Put that code in a function with `@lw.op`, or take `.value`."
            )
        return lambda: self.value

    def __repr__(self) -> str:
        return f"Lazy({TYPES[self._kind]})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a lazy value without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        return _item(self, index)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class _Index:
    """A constant index: part of an op's code."""

    parts: tuple[Any, ...]


def _frozen(index: Any) -> Any:
    parts = index if isinstance(index, tuple) else (index,)
    if all(isinstance(p, int | np.integer) or p is None or p is Ellipsis for p in parts) or all(
        isinstance(p, int | slice | type(None) | type(...)) for p in parts
    ):
        made = tuple(
            ("slice", p.start, p.stop, p.step) if isinstance(p, slice) else p for p in parts
        )
        return _Index(made)
    return None


def _item(value: Any, index: Any) -> Any:
    constant = _frozen(index)
    return _take(value, index) if constant is None else _at(value, constant)


class Op:
    """Code for one row that lazy blocks record. Made by `op`."""

    def __init__(self, fun: Callable[..., Any], name: str | None = None) -> None:
        self.fun = fun
        self.name = name or getattr(fun, "__name__", "op")
        self.__doc__ = fun.__doc__
        self.__name__ = self.name
        self.__wrapped__ = fun
        self._signatures: dict[tuple[Any, ...], Signature] = {}
        self._last = NO_WAY

    def __repr__(self) -> str:
        return f"op {self.name!r}"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: `self` is the first argument, and has to be a pytree."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = STATE.recorder
        if recorder is None:
            return self.fun(*map(_value, args), **{k: _value(v) for k, v in kwargs.items()})
        if not kwargs:
            last = self._last
            if last.recorder is recorder and last.many == len(args):
                found = last.run(*args)
                if found is not None:
                    return found
            for way in recorder.quick.get(self, ()):
                if way is not last and way.many == len(args):
                    found = way.run(*args)
                    if found is not None:
                        return found
        return self._record(recorder, args, kwargs)

    def _record(self, recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The slow way: arguments that are looked into, and calls whose types were not met before."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        key: list[Any] = [self, tree]
        rows: list[int] = []
        shared: list[int] = []
        roles: list[Any] = []
        payload: list[tuple[int, int, Any]] = []
        for i, leaf in enumerate(leaves):
            if leaf.__class__ is Lazy:
                if leaf._recorder is not recorder:
                    raise LazyError(
                        f"{_argument(self, args, kwargs, i)} is a value of another lazy block; give its `.value`."
                    )
                key.append(leaf._kind)
                roles.append(("row", leaf._kind))
                rows.append(leaf._number)
            elif isinstance(leaf, jax.Array):
                if _jax.is_extended(leaf.dtype):
                    raise LazyError(
                        f"{_argument(self, args, kwargs, i)} is a typed PRNG key. Give its `jax.random.key_data`, as a"
                        " NumPy array where each call has its own, and wrap it in the op (`jax.random.wrap_key_data`)."
                    )
                number = recorder.share(leaf)
                key.append(~number)
                roles.append(("shared", leaf.shape, leaf.dtype))
                shared.append(number)
            elif isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex):
                kind = _payload_kind(leaf)
                key.append(kind)
                roles.append(("row", kind))
                payload.append((len(rows), kind, leaf))
                rows.append(kind)
            else:
                if not _is_constant(leaf):
                    raise LazyError(
                        f"{_argument(self, args, kwargs, i)} is a {type(leaf).__name__}, which is no array, number or"
                        " constant. Give the arrays that it holds, or register its class with"
                        " `jax.tree_util.register_dataclass`."
                    )
                key.append(("static", leaf))
                roles.append(("static", leaf))
        found = recorder.kinds.get(tuple(key))
        if found is None:
            found = self._kind(recorder, tree, roles, shared, tuple(key))
        for at, kind, leaf in payload:
            column = recorder.columns.setdefault(kind, [])
            rows[at] = ~len(column)
            # The caller may write into its array before what is recorded runs.
            column.append(leaf.copy() if isinstance(leaf, np.ndarray) else leaf)
        recorder.calls.append(found.number)
        recorder.operands += rows
        n, recorder.count = recorder.count, recorder.count + len(found.results)
        made = [Lazy(recorder.tag(k), n + j) for j, k in enumerate(found.results)]
        if not kwargs and (run := quick_way(recorder, found, args, Lazy)) is not None:
            ways = recorder.quick.setdefault(self, [])
            self._last = Way(recorder, len(args), run)
            ways[:] = [self._last, *ways[: QUICK_WAYS - 1]]
        if found.tree is None:
            return made[0]
        return tuple(made) if found.tree == "tuple" else found.tree.unflatten(made)

    def _kind(
        self,
        recorder: Recorder,
        tree: Any,
        roles: Sequence[Any],
        shared: Sequence[int],
        key: tuple[Any, ...],
    ) -> Kind:
        signature = self._signatures.get((tree, *roles))
        if signature is None:
            signature = self._signatures[(tree, *roles)] = traced(self.name, self.fun, tree, roles)
        captured = [recorder.share(c) for c in signature.captures]
        kind = Kind(
            len(recorder.kinds),
            signature.piece,
            signature.serial,
            (*captured, *shared),
            signature.results,
            signature.tree,
        )
        alike = sum(k.piece is kind.piece for k in recorder.kinds.values())
        if alike >= MOST_SHARED:
            raise LazyError(
                f"{self!r} was called with {alike} different JAX arrays as the same argument. A JAX array is shared by"
                " all calls that get it, and calls with other arrays do not run together. Give data of one instance as"
                " a NumPy array or number, or as a result of an op; compute what depends on weights alone outside."
            )
        recorder.kinds[key] = kind
        return kind


# Numbers have one type each, found by their class.
_NUMBERS = {
    cls: np.dtype(cls)
    for cls in (bool, int, float, complex, np.bool_, np.int8, np.int16, np.int32, np.int64)
    + (np.uint8, np.float16, np.float32, np.float64)
}


def _payload_kind(leaf: Any) -> int:
    plain = _NUMBERS.get(leaf.__class__)
    return type_number(leaf.shape, leaf.dtype) if plain is None else type_number((), plain)


def _value(tree: Any) -> Any:
    """A tree with lazy values replaced by arrays."""
    if tree.__class__ is Lazy:
        return tree.value
    if isinstance(tree, dict | list | tuple):
        return jax.tree.map(lambda x: x.value if x.__class__ is Lazy else x, tree)
    return tree


def _is_constant(leaf: Any) -> bool:
    try:
        hash(leaf)
    except TypeError:
        return False
    return True


def _argument(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], leaf: int) -> str:
    """How a message names the leaf of this number among the arguments."""
    paths = jax.tree_util.tree_leaves_with_path((args, kwargs))
    where, *rest = paths[leaf][0][1:]
    name = f"argument {where.idx}" if hasattr(where, "idx") else f"argument {where.key!r}"
    return f"{name}{jax.tree_util.keystr(tuple(rest))} of {op!r}"


def op(fun: Callable[..., Any]) -> Op:
    """Make a function of one row something that lazy blocks record.

    >>> import jax.numpy as jnp
    >>> import lanewise as lw
    >>> @lw.op
    ... def blend(weight, x, y):
    ...     return jnp.tanh(weight * x + y)
    >>> with lw.lazy():
    ...     a = blend(jnp.float32(2.0), 1.0, 0.5)
    ...     b = blend(jnp.float32(2.0), a, 1.0)
    >>> print(f"{b.item():.3f}")
    0.995

    Outside of a lazy block it is the function itself.
    """
    return fun if isinstance(fun, Op) else Op(fun)


@contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    """Ops called inside are recorded here."""
    before = STATE.recorder
    try:
        STATE.recorder = recorder
        yield recorder
    finally:
        STATE.recorder = before
        recorder.close()


@contextmanager
def lazy(*, order: str = "depth") -> Iterator[None]:
    """Record the ops that are called inside; they run together, when a value is needed.

    >>> import lanewise as lw
    >>> double = lw.op(lambda x: 2 * x)
    >>> with lw.lazy():
    ...     values = [double(float(i)) for i in range(3)]
    >>> [v.item() for v in values]
    [0.0, 2.0, 4.0]
    """
    with recording(Recorder(order)):
        yield


def _get(value: Any, index: _Index) -> Any:
    parts = tuple(slice(*p[1:]) if isinstance(p, tuple) else p for p in index.parts)
    return value[parts]


_at = Op(_get, "indexing")
_take = Op(lambda value, index: value[index], "indexing")


def _operators() -> None:
    """Arithmetic and comparisons of lazy values are ops."""

    def of_two(made: Op) -> Callable[[Any, Any], Any]:
        def call(self: Any, other: Any) -> Any:
            # As in `Op.__call__`, which would be another call.
            last = made._last
            if last.recorder is STATE.recorder and last.many == 2:
                found = last.run(self, other)
                if found is not None:
                    return found
            return made(self, other)

        return call

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_"):
        name, run = name.strip("_"), of_two(Op(getattr(operator, name), name.strip("_")))
        setattr(Lazy, f"__{name}__", run)
        setattr(Lazy, f"__r{name}__", lambda self, other, run=run: run(other, self))
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(Lazy, f"__{name}__", of_two(Op(getattr(operator, name), name)))
    for name in ("neg", "abs", "invert"):
        made = Op(getattr(operator, name), name)
        setattr(Lazy, f"__{name}__", lambda self, made=made: made(self))


_operators()
