"""How long a stretch is: as many draws as take a fraction of a second.

Between stretches the host can show how far a run is, save it and stop it. But chains meet there, and one that has more
steps to take than others keeps them waiting, the more the fewer draws a stretch has. So a stretch should take
`SECONDS`, and where that is fewer than `FEW` draws it may take longer, up to `MOST_SECONDS`.
"""

from __future__ import annotations

from dataclasses import dataclass

SECONDS, MOST_SECONDS = 0.4, 2.0
FEW = 50
# The first stretch of a run, and how many times longer one may be than the one before it.
FIRST, GROWTH = 16, 8


@dataclass
class Pace:
    """How many draws the next stretch has.

    >>> pace = Pace()
    >>> pace.draws
    16
    >>> pace.took(16, seconds=0.016)
    >>> pace.draws
    128
    >>> pace.took(128, seconds=0.128)
    >>> pace.draws
    400
    """

    draws: int = FIRST

    def took(self, draws: int, seconds: float) -> None:
        """A stretch of `draws` draws took this long."""
        each = max(seconds, 1e-9) / draws
        wanted = SECONDS / each
        if wanted < FEW:
            wanted = min(FEW, MOST_SECONDS / each)
        # A short stretch says little about a long one.
        most = max(self.draws, GROWTH * draws)
        self.draws = max(1, min(round(wanted), most))
