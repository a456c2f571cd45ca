"""The models of `examples/models` in PyTorch, an instance at a time, as a PyTorch user writes them.

The same algebra, with the same weights and instances: each function gives `[loss, right, of]` of an instance. A model's
weights are a dictionary of tensors, by the way to them in the JAX model (`torch_weights`).
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch

import made
import transition_parser as arc

Weights = dict[str, torch.Tensor]


def torch_weights(params: Any) -> Weights:
    """Leaves by name: `cell.w` for `params["cell"]["w"]` and `params.cell.w`."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = ".".join(str(getattr(k, "key", getattr(k, "name", ""))) for k in path)
        found[name] = torch.tensor(
            np.asarray(leaf), requires_grad=True, device=torch.get_default_device()
        )
    return found


def judged(logits: torch.Tensor, label: int) -> torch.Tensor:
    loss = torch.logsumexp(logits, 0) - logits[label]
    # Compared where it is: a GPU is not waited for.
    right = (logits.detach().argmax() == label).to(loss.dtype)
    return torch.stack([loss, right, torch.ones_like(right)])


def lstm(p: Weights, cell: str, x: Any, h: Any, c: Any) -> tuple[torch.Tensor, torch.Tensor]:
    z = torch.addmv(p[f"{cell}.b"], p[f"{cell}.w"].T, torch.cat([x, h]))
    i, f, o, u = z.chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(u)
    return torch.sigmoid(o) * torch.tanh(c), c


def tree_lstm(p: Weights, tree: Any) -> torch.Tensor:
    def visit(tree: Any) -> Any:
        if tree.left is None:
            z = torch.addmv(p["leaf_bias"], p["leaf"].T, p["words"][tree.word])
            i, o, u = z.chunk(3)
            c = torch.sigmoid(i) * torch.tanh(u)
            found = None
        else:
            (h0, c0, found0), (h1, c1, found1) = visit(tree.left), visit(tree.right)
            z = torch.addmv(p["pair_bias"], p["pair"].T, torch.cat([h0, h1]))
            i, f, g, o, u = z.chunk(5)
            c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f) * c0 + torch.sigmoid(g) * c1
            found = found0 + found1
        h = torch.sigmoid(o) * torch.tanh(c)
        here = judged(h @ p["out"], tree.label)
        return h, c, here if found is None else here + found

    return visit(tree)[2]


def child_sum(p: Weights, tree: Any) -> torch.Tensor:
    def visit(node: Any) -> Any:
        x = p["words"][node.word]
        total, kept, found = torch.zeros_like(x), torch.zeros_like(x), None
        for child in node.children:
            h, c, below = visit(child)
            z = torch.addmv(p["forget.bias"], p["forget.weight"], torch.cat([x, h]))
            total, kept = total + h, kept + torch.sigmoid(z) * c
            found = below if found is None else found + below
        z = torch.addmv(p["gates.bias"], p["gates.weight"], torch.cat([x, total]))
        i, o, u = z.chunk(3)
        c = torch.sigmoid(i) * torch.tanh(u) + kept
        h = torch.sigmoid(o) * torch.tanh(c)
        here = judged(torch.addmv(p["out.bias"], p["out.weight"], h), node.label)
        return h, c, here if found is None else here + found

    return visit(tree)[2]


def tagger(p: Weights, sentence: Any) -> torch.Tensor:
    zero = torch.zeros(p["words"].shape[1])

    def vector(word: Any) -> torch.Tensor:
        if word.number >= 0:
            return p["words"][word.number]
        h, c = zero, zero
        for letter in word.letters:
            h, c = lstm(p, "spell", p["letters"][letter], h, c)
        return h

    def run(cell: str, vectors: Any) -> list[torch.Tensor]:
        h, c, found = zero, zero, []
        for x in vectors:
            h, c = lstm(p, cell, x, h, c)
            found.append(h)
        return found

    words = []
    while sentence is not None:
        words.append(sentence)
        sentence = sentence.after
    vectors = [vector(word) for word in words]
    before, after = run("forwards", vectors), run("backwards", vectors[::-1])[::-1]
    found = [
        judged(torch.addmv(p["tag.b"], p["tag.w"].T, torch.cat([f, b])), word.label)
        for f, b, word in zip(before, after, words)
    ]
    return torch.stack(found).sum(0)


def mv_rnn(p: Weights, tree: Any) -> torch.Tensor:
    def visit(tree: Any) -> Any:
        if tree.left is None:
            a = torch.tanh(p["words"][tree.word])
            return a, p["matrix_of"][tree.word], judged(a @ p["out"], tree.label)
        (a, first, below), (b, second, beside) = visit(tree.left), visit(tree.right)
        vector = torch.tanh(torch.cat([a @ second, b @ first]) @ p["vector"])
        matrix = torch.cat([first, second], 1) @ p["matrix"]
        return vector, matrix, judged(vector @ p["out"], tree.label) + below + beside

    return visit(tree)[2]


def nested_rnn(p: Weights, document: Any) -> torch.Tensor:
    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return torch.addmv(p[f"{name}.bias"], p[f"{name}.kernel"].T, x)

    zero = torch.zeros(p["out.kernel"].shape[0])
    h = zero
    for sentence in document.sentences:
        x = zero
        for word in sentence.words:
            x = torch.tanh(linear("inner", torch.cat([p["words.embedding"][word], x])))
        z, r = torch.sigmoid(linear("gates", torch.cat([x, h]))).chunk(2)
        h = z * h + (1 - z) * torch.tanh(linear("change", torch.cat([x, r * h])))
    return judged(linear("out", h), document.label)


def dag(p: Weights, circuit: Any) -> torch.Tensor:
    sent, found = [], []
    for gate in circuit.gates:
        x = p["gate_of"][gate.kind]
        h = torch.zeros_like(x)
        for i in gate.reads:
            h = h + sent[i]
        both = torch.addmv(p["gates_bias"], p["gates"].T, torch.cat([x, h]))
        z, r = torch.sigmoid(both).chunk(2)
        h = z * h + (1 - z) * torch.tanh(torch.cat([x, r * h]) @ p["change"])
        sent.append(torch.tanh(h @ p["message"]))
        found.append(judged(h @ p["out"], gate.label))
    return torch.stack(found).sum(0)


def stack_rnn(p: Weights, brackets: Any) -> torch.Tensor:
    zero = torch.zeros(p["bias"].shape)
    h, stack, found = zero, [], torch.zeros(3)
    only_loss = torch.tensor([1.0, 0.0, 0.0])
    for symbol, kind in zip(brackets.symbols, brackets.kinds):
        x = p["symbol_of"][symbol]
        top = stack[-1] if stack else zero
        h = torch.tanh(torch.addmv(p["bias"], p["step"].T, torch.cat([x, h, top])))
        act = h @ p["act"]
        closes = symbol == made.CLOSE
        found = found + judged(act, int(closes)) * only_loss
        if closes:
            found = found + judged(h @ p["kind"], kind)
        if int(act.detach().argmax()) == 0:
            stack.append(torch.tanh(h @ p["push"]))
        elif stack:
            stack.pop()
    return found


def drnn(p: Weights, task: Any) -> torch.Tensor:
    zero = torch.zeros(p["symbol_of"].shape[1])
    found = torch.zeros(3)

    def visit(right: Any, above: Any, above_is: int, beside: Any, is_: int) -> None:
        nonlocal found
        down = torch.tanh(torch.cat([above, p["symbol_of"][above_is]]) @ p["down"])
        across = torch.tanh(torch.cat([beside, p["symbol_of"][is_]]) @ p["across"])
        h = torch.tanh(torch.cat([down, across]) @ p["node"])
        stops = h @ p["stops"] + p["stops_bias"]
        here = judged(h @ p["label"], right.symbol)
        here = here + judged(stops[:2], int(right.child is not None))
        here = here + judged(stops[2:], int(right.sibling is not None))
        all_right = float(here[1].item() == 3.0)
        found = found + torch.stack([here[0], here.new_tensor(all_right), here.new_tensor(1.0)])
        stop, children, last, more = stops.detach().tolist()
        if children > stop and right.child is not None:
            visit(right.child, h, right.symbol, zero, 0)
        if more > last and right.sibling is not None:
            visit(right.sibling, above, above_is, h, right.symbol)

    plan = torch.tanh(p["symbol_of"][task.symbol] + p["depth_of"][task.depth])
    visit(task.tree, plan, task.symbol, zero, 0)
    return found


def oracle(heads: list[int], stack: list[int], front: int) -> tuple[np.ndarray, np.ndarray]:
    """Which transitions are legal, and which of these lose no arc."""
    root = len(heads)
    legal = np.array([front < root, bool(stack), len(stack) > 1])
    if front == root and len(stack) > 1:
        legal[arc.LEFT] = False
    lost = np.zeros(3, int)
    if front < root:
        lost[arc.SHIFT] = (heads[front] in stack[:-1]) + sum(heads[s] == front for s in stack)
    if stack:
        top = stack[-1]
        waiting = sum(heads[b] == top for b in range(front, root))
        lost[arc.LEFT] = waiting + (heads[top] > front or heads[top] in stack[-2:-1])
        lost[arc.RIGHT] = waiting + (heads[top] >= front)
    return legal, legal & (lost == lost[legal].min())


def transition_parser(p: Weights, sentence: Any) -> torch.Tensor:
    words = sentence.words[: sentence.size + 1].tolist()
    heads = sentence.heads[: sentence.size].tolist()
    zero = torch.zeros(p["words"].shape[1])
    start = (zero, zero, zero)

    def enter(cell: str, x: Any, h: Any, c: Any) -> Any:
        return x, *lstm(p, cell, x, h, c)

    def attach(cell: str, x: Any, dependent: Any, h: Any, c: Any) -> Any:
        x = torch.tanh(torch.addmv(p["head.b"], p["head.w"].T, torch.cat([x, dependent])))
        return enter(cell, x, h, c)

    buffer = [start]
    for word in reversed(words):
        buffer.append(enter("buffer", p["words"][word], *buffer[-1][1:]))
    stack: list[Any] = []
    front, found = 0, torch.zeros(3)
    while front < len(heads) or stack:
        top = stack[-1][1] if stack else start
        under = stack[-2][1] if len(stack) > 1 else start
        legal, good = oracle(heads, [i for i, _ in stack], front)
        both = torch.cat([top[1], buffer[-1][1]])
        hidden = torch.tanh(torch.addmv(p["act.b"], p["act.w"].T, both))
        scores = (hidden @ p["act.out"]).masked_fill(torch.tensor(~legal), -1e9)
        chosen = torch.logsumexp(scores.masked_fill(torch.tensor(~good), -1e9), 0)
        act = int(scores.detach().argmax())
        loss = torch.logsumexp(scores, 0) - chosen
        found = found + torch.stack([loss, loss.new_tensor(float(good[act])), loss.new_tensor(1.0)])
        if act == arc.SHIFT:
            stack.append((front, enter("stack", buffer.pop()[0], *top[1:])))
            front += 1
        elif act == arc.LEFT:
            stack.pop()
            x = buffer.pop()[0]
            buffer.append(attach("buffer", x, top[0], *buffer[-1][1:]))
        else:
            stack.pop()
            head, _ = stack.pop()
            below = stack[-1][1] if stack else start
            stack.append((head, attach("stack", under[0], top[0], *below[1:])))
    return found


def forward(model: Any, p: Weights, instances: Any) -> torch.Tensor:
    with torch.inference_mode():
        return torch.stack([model(p, x) for x in instances])


def training(model: Any, p: Weights, instances: Any) -> torch.Tensor:
    for w in p.values():
        w.grad = None
    found = torch.stack([model(p, x) for x in instances]).sum(0)
    (found[0] / found[2].detach()).backward()
    return found.detach()
