"""LSTM: the gradient of a network's loss in all its weights.

One layer over n steps of a batch, then a dense layer and the mean squared error, with the sizes (batch, n, d, h)
of Schenck et al. 2022. Weights are uniform within 1/sqrt(h), as PyTorch draws them; inputs and targets are
normal. float32. PyTorch's is its own fused `lstm`.

The inputs' product is taken once before the loop, in ours and in JAX's. In ours a step begins where the gates are known
and ends with the product that makes the next step's. A step's state is saved and its body
re-executed on the way back, and what the body ends with is linear and known from the next state: no product
is done twice. Counted in products, the gradient costs (3 hh + 2 ih + 3 out) / (hh + ih + out) of the function,
2.5 for the first size and 2.8 for the second; elementwise work and its share of the time decide the rest.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lanewise as lw
from ad.case import Case, Entry, Pair, Torch, by_autograd

WEIGHTS = (0, 1, 2, 3, 4)


def activated(gates: Any, memory: Any) -> tuple[Any, Any]:
    """The state after a step, given its gates: in, forget, cell and out."""
    enter, forget, change, leave = jnp.split(gates, 4, axis=-1)
    memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(enter) * jnp.tanh(change)
    return jax.nn.sigmoid(leave) * jnp.tanh(memory), memory


# -- ours --------------------------------------------------------------------------------------------


@lw.program
def loss(w_in, w_hidden, bias, w_out, b_out, inputs, targets, hidden, memory):
    arriving = inputs @ w_in + bias
    gates = arriving[0] + hidden @ w_hidden

    def step(state, arriving):
        gates, memory = state
        hidden, memory = activated(gates, memory)
        return (arriving + hidden @ w_hidden, memory), hidden

    (gates, memory), outputs = lax.scan(step, (gates, memory), arriving[1:])
    last, _ = activated(gates, memory)
    outputs = jnp.concatenate([outputs, last[None]])
    return jnp.mean((outputs @ w_out + b_out - targets) ** 2)


# -- plain JAX ---------------------------------------------------------------------------------------


def loss_jax(
    w_in: Any,
    w_hidden: Any,
    bias: Any,
    w_out: Any,
    b_out: Any,
    inputs: Any,
    targets: Any,
    hidden: Any,
    memory: Any,
) -> jax.Array:
    def step(state: Any, arriving: Any) -> Any:
        hidden, memory = state
        hidden, memory = activated(arriving + hidden @ w_hidden, memory)
        return (hidden, memory), hidden

    _, outputs = lax.scan(step, (hidden, memory), inputs @ w_in + bias)
    return jnp.mean((outputs @ w_out + b_out - targets) ** 2)


# -- PyTorch -----------------------------------------------------------------------------------------


def torch_pair(torch: Any, compile: Any) -> Torch:
    def primal(
        w_in: Any, w_hidden: Any, bias: Any, w_out: Any, b_out: Any, inputs: Any, *rest: Any
    ) -> Any:
        targets, hidden, memory, none = rest
        weights = [w_in, w_hidden, bias, none]
        state, train = (hidden, memory), w_in.requires_grad
        outputs, _, _ = torch.lstm(inputs, state, weights, True, 1, 0.0, train, False, False)
        return ((outputs @ w_out + b_out - targets) ** 2).mean()

    def prepare(w_in: Any, w_hidden: Any, *rest: Any) -> list[Any]:
        """As its own layer holds them: weights by rows, a state for each layer, and a second bias."""
        bias, w_out, b_out, inputs, targets, hidden, memory = rest
        weights = [w_in.T.contiguous(), w_hidden.T.contiguous(), bias, w_out, b_out]
        return [*weights, inputs, targets, hidden[None], memory[None], torch.zeros_like(bias)]

    def finish(slopes: Any) -> Any:
        return [slopes[0].T, slopes[1].T, *slopes[2:]]

    return replace(by_autograd(torch, primal, WEIGHTS), prepare=prepare, finish=finish)


# -- data --------------------------------------------------------------------------------------------


def data(batch: int, steps: int, d: int, h: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(7)

    def uniform(*shape: int) -> np.ndarray:
        return (rng.uniform(-1.0, 1.0, shape) / math.sqrt(h)).astype(np.float32)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    weights = uniform(d, 4 * h), uniform(h, 4 * h), uniform(4 * h), uniform(h, d), uniform(d)
    series = normal(steps, batch, d), normal(steps, batch, d)
    return (*weights, *series, normal(batch, h), normal(batch, h))


def entry(batch: int, steps: int, d: int, h: int, target: str, large: bool = False) -> Entry:
    def case(small: bool) -> Case:
        return Case(
            Pair(loss, jax.grad(loss, argnums=WEIGHTS)),
            Pair(loss_jax, jax.grad(loss_jax, argnums=WEIGHTS)),
            torch_pair,
            data(3, 5, 4, 6) if small else data(batch, steps, d, h),
            compiles=False,  # its fused layer is compiled already
            rtol=1e-2,
            atol=1e-4,
        )

    return Entry(f"LSTM n{steps} d{d} h{h}", f"batch {batch}", case, target, large=large)


ENTRIES = (
    entry(1024, 20, 300, 192, "<= 2.1"),
    entry(1024, 300, 80, 256, "<= 2.2", large=True),
)
