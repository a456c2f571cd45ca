"""The same loops in TensorFlow, over two workers that talk by gRPC.

A graph of version 1, whose `while_loop` is made of nodes that every worker runs on its own, started by one call from
Python that is prepared once. The client is in the process of the first worker. The functional form (`While` of version
2) was slower in the same loops. `parallel_iterations` was tried with 1, 10 and 32, threads with 1, 2 and the default;
what is set was the fastest, or as fast as any.

    python -m place.in_tensorflow RANK PORTS
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingImports, reportMissingModuleSource]

from place.numbers import numbers
from place.serving import serve, use_cores

v1: Any = tf.compat.v1
PARALLEL = 32
FIRST, SECOND = "/job:worker/task:0/cpu:0", "/job:worker/task:1/cpu:0"


def threads() -> Any:
    return v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)


def graph_of(kind: str, values: list[np.ndarray], parallel: int) -> tuple[Any, Any, Any]:
    """A graph, the placeholder of the number of iterations, and the result."""
    graph = v1.Graph()
    with graph.as_default():
        times = tf.matmul if values[0].ndim else tf.multiply
        with tf.device(FIRST):
            steps = v1.placeholder(tf.int32, ())
            start, w0 = tf.constant(values[0]), tf.constant(values[1])
        with tf.device(SECOND):
            there, w1 = tf.constant(values[0]), tf.constant(values[2])

        def turn(i: Any, x: Any, s: Any) -> Any:
            with tf.device(FIRST):
                y, i = tf.tanh(times(x, w0)), i + 1
            with tf.device(SECOND):
                if kind == "round":
                    return i, times(y, w1), s
                return i, y, tf.tanh(times(s, w1) + y)

        with tf.device(FIRST):
            begin = (tf.constant(0), start, there)
            _, z, s = v1.while_loop(
                lambda i, x, s: i < steps, turn, begin, parallel_iterations=parallel
            )
        with tf.device(SECOND):
            result = tf.reduce_sum(z if kind == "round" else s)
    return graph, steps, result


class Client:
    def __init__(self, server: Any) -> None:
        self.server = server
        self.ready: dict[Any, Any] = {}

    def run(self, kind: str, size: int, steps: int, in_flight: int = PARALLEL) -> dict[str, float]:
        start = time.perf_counter()
        key = (kind, size, in_flight)
        if key not in self.ready:
            graph, given, result = graph_of(kind, numbers(size), in_flight)
            session = v1.Session(self.server.target, graph=graph, config=threads())
            self.ready[key] = session.make_callable(result, [given])
        found = float(self.ready[key](steps))
        return {"seconds": time.perf_counter() - start, "result": found}


def main() -> None:
    rank, ports = int(sys.argv[1]), sys.argv[2].split(",")
    v1.disable_eager_execution()
    v1.disable_control_flow_v2()
    cluster = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{port}" for port in ports]})
    server = v1.train.Server(cluster, job_name="worker", task_index=rank, config=threads())
    # The second one's share is run by the session of the first.
    run: Callable[..., Any] = Client(server).run if rank == 0 else lambda **_: None
    serve({"cores": use_cores, "run": run})


if __name__ == "__main__":
    main()
