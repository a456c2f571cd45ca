"""Programs copied and pickled, in another process too; and as plain Python, under `jax.disable_jit()`."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import lanewise as lw
from lanewise.tracing import decorator


@pytest.fixture
def cloudpickle() -> Any:
    return pytest.importorskip("cloudpickle")


def _steps_of(factor: int) -> Any:
    """A closure: `pickle` cannot keep it, `cloudpickle` can."""

    @lw.program
    def steps(n: Any) -> Any:
        count = 0
        while n > 1:
            n = n // factor
            count += 1
        return count

    return steps


BATCH = [1, 9, 1000]


def test_a_copy_is_the_program_itself() -> None:
    program = _steps_of(3)
    program(9)  # traces are there
    assert copy.deepcopy(program) is program
    assert copy.deepcopy({"f": [program]})["f"][0](9) == 2
    assert copy.copy(program)(9) == 2


def test_a_program_that_its_module_holds_is_pickled_by_name(cloudpickle: Any) -> None:
    from programs.integers import collatz

    collatz(7)
    assert pickle.loads(pickle.dumps(collatz)) is collatz
    again = pickle.loads(pickle.dumps(collatz.with_options(max_steps=3, throw=False)))
    assert again.options.max_steps == 3 and again.python is collatz.python
    assert cloudpickle.loads(cloudpickle.dumps(collatz)) is collatz
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(_steps_of(2))


def test_cloudpickle_keeps_closures_and_what_is_made_of_them(cloudpickle: Any) -> None:
    program = _steps_of(3).with_options(max_steps=50)
    assert program(9) == 2
    again = cloudpickle.loads(cloudpickle.dumps(program))
    assert again is not program
    assert again.options == program.options and again(1000) == program(1000) == 6
    batched = cloudpickle.loads(cloudpickle.dumps(lw.vmap(program)))
    assert batched(jnp.array(BATCH)).tolist() == [0, 2, 6]


@pytest.mark.parametrize(
    ("module", "by_value"),
    [
        ("cloudpickle.cloudpickle", True),
        ("joblib.externals.cloudpickle.cloudpickle", True),
        ("pickle", False),
    ],
)
def test_copies_of_cloudpickle_count(module: str, by_value: bool) -> None:
    pickler: dict[str, Any] = {"__name__": module}
    exec("def dumps(reduced):\n    return (lambda: reduced('__main__'))()", pickler)
    assert pickler["dumps"](decorator._by_value) is by_value


def test_programs_of_registered_modules_are_kept_by_value(cloudpickle: Any) -> None:
    from programs import small

    cloudpickle.register_pickle_by_value(small)
    try:
        again = cloudpickle.loads(cloudpickle.dumps(small.collatz))
    finally:
        cloudpickle.unregister_pickle_by_value(small)
    assert again is not small.collatz and int(again(27)) == int(small.collatz(27))


SCRIPT = """
import sys
import cloudpickle, jax.numpy as jnp
import lanewise as lw

@lw.program
def depth(n):
    return 0 if n <= 1 else 1 + depth(n // 2)

double = lw.program(lambda n: 2 * n if n > 2 else n)
assert depth(9) == 3
sys.stdout.buffer.write(cloudpickle.dumps((depth, double, lw.vmap(depth))))
"""

LOADED = """
import sys
import cloudpickle, jax.numpy as jnp
depth, double, batched = cloudpickle.loads(sys.stdin.buffer.read())
print(depth(9), double(5), batched(jnp.array([1, 9, 1000])).tolist())
"""


def test_programs_of_a_script_run_in_a_process_that_does_not_have_it(
    tmp_path: Path, cloudpickle: Any
) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(lw.__file__).parent.parent)}

    def run(*arguments: Any, **more: Any) -> Any:
        command = [sys.executable, *arguments]
        return subprocess.run(command, capture_output=True, check=True, env=environment, **more)

    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    written = run(script)
    script.unlink()
    loaded = run("-c", LOADED, input=written.stdout)
    assert loaded.stdout.decode().split("\n")[0] == "3 10 [0, 3, 9]"


# -- as plain Python: real values, each example separately -------------------------------------------

seen: list[Any] = []


@lw.program
def power(x: Any, n: Any) -> Any:
    seen.append(float(jax.lax.stop_gradient(x)))  # what `print` and `pdb` would show
    result = 1.0
    while n > 0:
        result = result * x
        n = n - 1
    assert result < 100.0, f"{result} is too much"
    return {"power": result, "nothing": None}


def of(x: Any, n: Any = 2) -> Any:
    return power(x, n)["power"]


@pytest.fixture(autouse=True)
def plainly() -> Any:
    seen.clear()
    with jax.disable_jit():
        yield


def test_a_call_sees_values() -> None:
    assert of(3.0) == 9.0 and seen == [3.0]


def test_each_example_of_a_batch_sees_its_own() -> None:
    xs, ns = jnp.array([1.0, 2.0, 3.0]), jnp.array([0, 1, 3])
    for batched in (jax.vmap(power), lw.vmap(power), lw.vmap(power, lanes=2, carrier="native")):
        seen.clear()
        assert batched(xs, ns)["power"].tolist() == [1.0, 2.0, 27.0]
        assert seen == [1.0, 2.0, 3.0]
    nested = jax.vmap(lw.vmap(of))(jnp.arange(4.0).reshape(2, 2), jnp.ones((2, 2), int))
    assert nested.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    shared = lw.vmap(power, in_axes=(0, None))(xs, 2)
    assert shared["power"].tolist() == [1.0, 4.0, 9.0]


def test_extras_have_their_places() -> None:
    answers, outcomes, stats = lw.vmap(of, throw=False, stats=True)(jnp.array([1.0, 2.0]))
    assert answers.tolist() == [1.0, 4.0] and outcomes.ok().tolist() == [True, True]
    assert stats.ticks == 0


def test_derivatives_see_values_too() -> None:
    assert jax.grad(of)(3.0, 3) == 27.0 and seen == [3.0]
    assert lw.grad(of)(3.0) == 6.0
    through = jax.grad(lambda xs: lw.vmap(of)(xs).sum())(jnp.array([1.0, 3.0]))
    assert through.tolist() == [2.0, 6.0]


def test_an_assertion_is_pythons_own() -> None:
    with pytest.raises(AssertionError, match=r"125\.0 is too much"):
        of(5.0, 3)


def test_a_stream_runs_one_after_the_other() -> None:
    assert dict(lw.stream(of, [1.0, 2.0])) == {0: 1.0, 1: 4.0}
    assert seen == [1.0, 2.0]


def test_where_there_are_no_values_it_is_traced() -> None:
    @lw.program
    def smaller(x: Any) -> Any:
        while x > 1.0:
            x = x / 2.0
        return x

    assert jax.eval_shape(smaller, 3.0).shape == ()
    assert jax.vmap(smaller)(jnp.zeros((0,))).shape == (0,)
    slopes = jax.vmap(jax.grad(smaller))(jnp.array([0.5, 3.0]))
    assert slopes.tolist() == [1.0, 0.25]
