"""A batch over two processes, which find each other by `jax.distributed` and talk by Gloo."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from apart import cases_of


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def test_two_processes_share_a_batch() -> None:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    script, address = Path(__file__).parent / "on_hosts.py", f"localhost:{free_port()}"

    def host(number: int) -> dict[str, str]:
        return cases_of(script, address, "2", str(number), XLA_FLAGS=flags)

    with ThreadPoolExecutor(2) as pool:
        for cases in pool.map(host, range(2)):
            assert cases["ticks"] == cases["native"] == "right 2"
            assert cases["gradient"] == "right"
            assert "in 1 of 6 lanes: 4." in cases["failure"]
            assert cases["exchange"] == "right"
