"""A process that is asked for measurements: a JSON line in, a JSON line out. It needs no JAX and no TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent.parent


def use_cores(cores: Sequence[int]) -> None:
    """Run all threads of this process on these cores; those that start later do the same."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


def serve(answers: Mapping[str, Callable[..., Any]]) -> None:
    """Answer requests until there are no more: `{"do": name, ...arguments}`."""
    # What libraries print must not come between the answers.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps("ready"), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(answers[asked.pop("do")](**asked)), file=out, flush=True)


class Server:
    """A process that serves, as the one that asks sees it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = " ".join(command)
        self._process = subprocess.Popen(
            command,
            cwd=HERE,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **asked: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with status {self._process.wait()}")
        return json.loads(line)

    def stop(self) -> None:
        """End the process, whatever it does."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Group:
    """Processes that run a program together: each is asked the same, the first says how long it took."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = servers
        try:
            for server in servers:
                server.answer()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def ask(self, **asked: Any) -> Any:
        """Ask all, and have the answer of the first."""
        for server in self.servers:
            server.ask(**asked)
        first, *_ = [server.answer() for server in self.servers]
        return first

    def alone(self, rank: int, **asked: Any) -> Any:
        """Ask one of them while the others rest."""
        self.servers[rank].ask(**asked)
        return self.servers[rank].answer()

    def use_cores(self, apart: bool) -> None:
        """A core for each process, or all cores for all."""
        cores = sorted(os.sched_getaffinity(0))
        for rank, server in enumerate(self.servers):
            server.ask(do="cores", cores=[cores[rank % len(cores)]] if apart else cores)
        for server in self.servers:
            server.answer()

    def stop(self) -> None:
        for server in self.servers:
            server.stop()
