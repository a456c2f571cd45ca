"""Each file of C++ is one that a compiler, and so an editor, understands on its own; and kernels get what they need."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp

import lanewise
import needs
from cpp.checking import kernel_of
from lanewise.core.sources import composed, source
from lanewise.cpp.emit import rules
from lanewise.cpp.toolchain import host

ROOT = Path(lanewise.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*") if path.suffix in (".h", ".cpp", ".cu"))
RUNTIME = [path for path in FILES if path.parent.name == "runtime"]
STAND_IN = Path(__file__).with_name("cuda_stand_in.h")
# What the emitter defines where lanes meet and add to sums.
MEETING = ("-DLW_COMMON={nullptr, nullptr}", "-DLW_SUMS_BYTES=16", "-DLW_FIXED_BYTES=0ll")
GPU = ("-D__CUDACC__", "-DLW_STOPS=1000", "-include", str(STAND_IN))


def errors_of(paths: list[Path], flags: tuple[str, ...] = ()) -> list[str]:
    """What the host's compiler has against each file, taken alone."""
    language = ("-std=c++17", "-nostdinc++", "-w", "-fsyntax-only", "-x", "c++", os.devnull)
    command = [*host.command(), f"-I{jax.ffi.include_dir()}", *language, *flags, "-include"]
    runs = [
        subprocess.Popen([*command, str(path)], stderr=subprocess.PIPE, text=True) for path in paths
    ]
    return [
        f"{path.name}: {said}" for path, run in zip(paths, runs) if (said := run.communicate()[1])
    ]


@needs.compiler
def test_each_file_compiles_on_its_own() -> None:
    assert len(FILES) > 30
    assert errors_of(FILES) == []
    assert errors_of([path for path in RUNTIME if path.stem in ("products", "work")], MEETING) == []


@needs.compiler
def test_the_side_of_a_gpu_compiles_on_its_own() -> None:
    assert errors_of([path for path in RUNTIME if path.stem != "work"], GPU) == []


@needs.compiler
def test_what_a_gpu_gets_compiles(tmp_path: Path) -> None:
    def much(key, x, matrix):
        y = jnp.sort(jnp.tanh(matrix @ x)) + jax.random.normal(key, (40,))
        z = jax.lax.while_loop(lambda y: y[0] < 3, lambda y: y * jnp.exp(y) + y @ matrix, y)
        return jax.lax.erf_inv(z), jnp.fft.fft(z[:4]), z.astype(jnp.bfloat16), jnp.argmax(z)

    args = (jax.random.key(0), jnp.ones(40), jnp.ones((40, 40)))
    kernel = tmp_path / "kernel.cu"
    kernel.write_text(kernel_of(much, args, (True, True, False)).text)
    assert errors_of([kernel], GPU) == []


def test_no_header_is_forgotten() -> None:
    beginning = re.findall(r'"(\w+)\.h"', source("cpp/runtime/kernel.h"))
    known = {"kernel", "work", *beginning, *rules.HEADERS}
    assert {path.stem for path in RUNTIME} == known


def test_a_file_is_composed_of_those_it_includes_each_once() -> None:
    text = composed("cpp/toolchain/feeding.h")
    assert text.count("struct lw_feed {") == text.count("lanewise_ffi(XLA_FFI_CallFrame*") == 1
    assert '#include "' not in text and "#pragma once" not in text
    within = composed("cpp/toolchain/feeding.h", known=["cpp/runtime/kernel.h"])
    assert "struct lw_feed {" not in within
    assert text.replace(rules.beginning(), "") == within


def test_a_kernel_gets_the_helpers_that_it_names_and_no_other() -> None:
    found = rules.needed("lw_clamp(a, b, c)")
    assert [
        name for name in ("lw_max", "lw_min", "lw_bits", "lw_sign") if f" {name}(" in found
    ] == [*("lw_max", "lw_min", "lw_bits")]
    assert found.index("lw_bits(From") < found.index("lw_max(") < found.index("T lw_clamp(")
