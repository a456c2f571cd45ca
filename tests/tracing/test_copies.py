"""Programs copied and pickled: the copy gives the same answers, in another process too."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import lanewise as lw
from lanewise.tracing import copies

cloudpickle = pytest.importorskip("cloudpickle")


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


def test_a_program_that_its_module_holds_is_pickled_by_name() -> None:
    from programs.integers import collatz

    collatz(7)
    assert pickle.loads(pickle.dumps(collatz)) is collatz
    again = pickle.loads(pickle.dumps(collatz.with_options(max_steps=3, throw=False)))
    assert again.options.max_steps == 3 and again.python is collatz.python
    assert cloudpickle.loads(cloudpickle.dumps(collatz)) is collatz
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(_steps_of(2))


def test_cloudpickle_keeps_closures_and_what_is_made_of_them() -> None:
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
    assert pickler["dumps"](copies.by_value) is by_value


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


def test_programs_of_a_script_run_in_a_process_that_does_not_have_it(tmp_path: Path) -> None:
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
