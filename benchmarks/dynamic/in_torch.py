"""The Tree-LSTM in PyTorch: level by level as well as we can write it, and node by node as people first do.

By level: one embedding and one `addmm` for all leaves, then one gather and one `addmm` a level. Children's h and c
are in one buffer. Without gradients it is allocated once and written in place. With gradients, autograd wants each
level's rows appended (`cat`): writing them in place makes its backward copy the whole buffer for each level.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch

from dynamic.forest import Forest

Params = dict[str, torch.Tensor]
Tables = tuple[torch.Tensor, torch.Tensor, list[int], torch.Tensor]


def parameters(weights: dict[str, np.ndarray], device: str = "cpu") -> Params:
    return {name: torch.tensor(w, device=device, requires_grad=True) for name, w in weights.items()}


def levels(forest: Forest) -> tuple[np.ndarray, list[int]]:
    """Nodes ordered by level, and where levels begin: rounds over the edges that are left."""
    level = np.zeros(len(forest.left), np.int32)
    reader = np.flatnonzero(forest.left >= 0)
    pending = np.zeros(len(level), bool)
    k = 0
    while len(reader):
        k += 1
        pending[:] = False
        pending[reader] = True
        level[reader] = k
        reader = reader[pending[forest.left[reader]] | pending[forest.right[reader]]]
    order = np.argsort(level.astype(np.uint16), kind="stable")
    return order, [0, *np.cumsum(np.bincount(level)).tolist()]


def tables(forest: Forest, device: torch.device) -> Tables:
    """Words of leaves, children's rows (left, then right, by level), level starts and the roots' rows."""
    order, starts = levels(forest)
    row = np.empty(len(order), np.int64)
    row[order] = np.arange(len(order))
    inner = order[starts[1] :]
    children = np.empty((2, len(inner)), np.int64)
    children[0], children[1] = row[forest.left[inner]], row[forest.right[inner]]
    words = torch.from_numpy(forest.word[order[: starts[1]]].astype(np.int64))
    roots = torch.from_numpy(row[forest.root])
    return words.to(device), torch.from_numpy(children).to(device), starts, roots.to(device)


def leaf_cell(p: Params, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    e = torch.nn.functional.embedding(words, p["words"])
    i, o, u = torch.addmm(p["leaf_bias"], e, p["leaf"]).chunk(3, 1)
    c = torch.sigmoid(i) * torch.tanh(u)
    return torch.sigmoid(o) * torch.tanh(c), c


def inner_cell(p: Params, x: torch.Tensor, c0: Any, c1: Any) -> tuple[torch.Tensor, torch.Tensor]:
    i, f0, f1, o, u = torch.addmm(p["inner_bias"], x, p["inner"]).chunk(5, 1)
    c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f0) * c0 + torch.sigmoid(f1) * c1
    return torch.sigmoid(o) * torch.tanh(c), c


def by_level_forward(p: Params, forest: Forest, ready: Tables | None = None) -> torch.Tensor:
    words, children, starts, roots = ready or tables(forest, p["words"].device)
    width = p["words"].shape[1]
    with torch.inference_mode():
        rows = torch.empty(len(forest.left), 2 * width, device=words.device)
        h, c = leaf_cell(p, words)
        rows[: starts[1], :width], rows[: starts[1], width:] = h, c
        for a, b in itertools.pairwise(starts[1:]):
            at = children[:, a - starts[1] : b - starts[1]]
            left, right = rows[at[0]], rows[at[1]]
            x = torch.cat([left[:, :width], right[:, :width]], 1)
            h, c = inner_cell(p, x, left[:, width:], right[:, width:])
            rows[a:b, :width], rows[a:b, width:] = h, c
        return rows[roots, :width]


def by_level_training(p: Params, forest: Forest, ready: Tables | None = None) -> torch.Tensor:
    words, children, starts, roots = ready or tables(forest, p["words"].device)
    width = p["words"].shape[1]
    for w in p.values():
        w.grad = None
    rows = torch.cat(leaf_cell(p, words), 1)
    for a, b in itertools.pairwise(starts[1:]):
        at = children[:, a - starts[1] : b - starts[1]]
        left, right = rows.index_select(0, at.reshape(-1)).chunk(2)
        x = torch.cat([left[:, :width], right[:, :width]], 1)
        h, c = inner_cell(p, x, left[:, width:], right[:, width:])
        rows = torch.cat([rows, torch.cat([h, c], 1)])
    loss = (rows.index_select(0, roots)[:, :width] ** 2).sum()
    loss.backward()
    return loss.detach()


def by_node(p: Params, trees: list[Any]) -> torch.Tensor:
    def visit(tree: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if type(tree) is int:
            return leaf_cell(p, torch.tensor([tree], device=p["words"].device))
        h0, c0 = visit(tree[0])
        h1, c1 = visit(tree[1])
        return inner_cell(p, torch.cat([h0, h1], 1), c0, c1)

    return torch.cat([visit(tree)[0] for tree in trees])


def by_node_forward(p: Params, trees: list[Any]) -> torch.Tensor:
    with torch.inference_mode():
        return by_node(p, trees)


def by_node_training(p: Params, trees: list[Any]) -> torch.Tensor:
    for w in p.values():
        w.grad = None
    loss = (by_node(p, trees) ** 2).sum()
    loss.backward()
    return loss.detach()
