"""How a process learns its rank and where to meet the others: from `lanewise launch`, or from `jax.distributed`.

The launcher sets four variables. `LANEWISE_RANK` and `LANEWISE_SIZE` say which of how many processes this is,
`LANEWISE_ADDRESS` where rank 0 listens, `LANEWISE_SECRET` what only processes of this run know. Where they are not set
and `jax.distributed` is initialized, rank 0 picks a port and a secret, and the others read them from JAX's coordinator.
"""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass, field

from lanewise import _jax
from lanewise.core.errors import OptionError
from lanewise.place.transports.rendezvous import Meeting

RANK, SIZE = "LANEWISE_RANK", "LANEWISE_SIZE"
ADDRESS, SECRET = "LANEWISE_ADDRESS", "LANEWISE_SECRET"
SECRET_BYTES = 32


@dataclass(frozen=True)
class Launched:
    """One of `size` processes, and where they meet."""

    rank: int
    size: int
    host: str
    port: int
    secret: str = field(repr=False)

    def meeting(self, run: str = "", patience: float = 120.0) -> Meeting:
        """How the processes meet; `run` distinguishes sessions that are opened at the same time."""
        secret = self.secret.encode()
        return Meeting(self.rank, self.size, self.host, self.port, secret, run, patience)

    def environment(self) -> dict[str, str]:
        """The variables that say so.

        >>> Launched(1, 2, "127.0.0.1", 5000, "x").environment()["LANEWISE_ADDRESS"]
        '127.0.0.1:5000'
        """
        host = f"[{self.host}]" if ":" in self.host else self.host
        values = (str(self.rank), str(self.size), f"{host}:{self.port}", self.secret)
        return dict(zip((RANK, SIZE, ADDRESS, SECRET), values))


def launched() -> Launched | None:
    """What this process was started as; None if it is alone."""
    given = {name: os.environ.get(name) for name in (RANK, SIZE, ADDRESS, SECRET)}
    missing = [name for name, value in given.items() if not value]
    if len(missing) == len(given):
        return _by_jax()
    if missing:
        raise OptionError(
            f"{', '.join(missing)}: not set, though others are; use `lanewise launch`."
        )
    rank, size, address, secret = (str(value) for value in given.values())
    host, _, port = address.rpartition(":")
    if not (rank.isdecimal() and size.isdecimal() and port.isdecimal() and host):
        raise OptionError(
            f"{RANK}={rank}, {SIZE}={size}, {ADDRESS}={address}: two numbers and host:port were expected."
        )
    if not int(rank) < int(size):
        raise OptionError(f"{RANK}={rank}: ranks are 0 to {int(size) - 1} ({SIZE}={size}).")
    return Launched(int(rank), int(size), host.strip("[]"), int(port), secret)


def local_group(size: int) -> list[Launched]:
    """Processes of this machine, which meet at a port that is free now, with a fresh secret."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    secret = secrets.token_hex(SECRET_BYTES)
    return [Launched(rank, size, "127.0.0.1", port, secret) for rank in range(size)]


def _by_jax() -> Launched | None:
    found = _jax.processes()
    if found is None or found.size == 1:
        return None

    def published() -> str:
        with socket.socket() as sock:
            sock.bind(("", 0))
            port = sock.getsockname()[1]
        return f"{found.own_host()} {port} {secrets.token_hex(SECRET_BYTES)}"

    host, port, secret = found.shared("lanewise/meeting", published).split()
    return Launched(found.rank, found.size, host, int(port), secret)
