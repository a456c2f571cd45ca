"""The processes that `jax.distributed` knows, and the strings that its coordinator stores for them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jax._src import distributed as _distributed

# How long to wait for a string that another process sets.
SHARED_MILLISECONDS = 120_000


@dataclass(frozen=True)
class Processes:
    """This process among those that `jax.distributed.initialize` has joined."""

    rank: int
    size: int
    coordinator: str
    _client: Any = field(repr=False, compare=False)

    def shared(self, name: str, make: Callable[[], str]) -> str:
        """A string that rank 0 makes, and all have; made once."""
        return _shared(self, name, make if self.rank == 0 else None)

    def own_host(self) -> str:
        """The address of this machine from which it reaches the coordinator."""
        host, _, port = self.coordinator.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Nothing is sent: this only looks up the route.
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((host.strip("[]"), int(port)))
            return sock.getsockname()[0]


_made: dict[tuple[str, str], str] = {}


def _shared(processes: Processes, name: str, make: Callable[[], str] | None) -> str:
    key = (processes.coordinator, name)
    if key not in _made:
        if make is not None:
            processes._client.key_value_set(name, make())
        _made[key] = processes._client.blocking_key_value_get(name, SHARED_MILLISECONDS)
    return _made[key]


def processes() -> Processes | None:
    """The processes of `jax.distributed`; None where it is not initialized."""
    state = _distributed.global_state
    if state.client is None:
        return None
    return Processes(
        state.process_id or 0,
        state.num_processes or 1,
        state.coordinator_address or "",
        state.client,
    )
