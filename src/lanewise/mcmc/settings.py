"""What decides the draws of a run, beside the density and the key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lanewise.core.errors import OptionError
from lanewise.mcmc.samplers import Sampler, must_be_count

MASS_MATRICES = ("diagonal", "dense", "unit")
ADAPTATIONS = ("pooled", "chain")


@dataclass(frozen=True)
class Settings:
    """What decides the draws, beside the density and the key."""

    chains: int
    warmup: int
    sampler: Sampler
    mass_matrix: str
    adaptation: str
    step_size: float | None
    thin: int = 1
    keep_warmup: bool = False

    def __post_init__(self) -> None:
        must_be_count("chains", self.chains, 1)
        must_be_count("warmup", self.warmup, 0)
        must_be_count("thin", self.thin, 1)
        if isinstance(self.sampler, type) or not callable(getattr(self.sampler, "draw", None)):
            raise OptionError(
                f"sampler={self.sampler!r} must be NUTS(...), HMC(...), MCLMC(...) or a Sampler."
            )
        for name, value, allowed in (
            ("mass_matrix", self.mass_matrix, MASS_MATRICES),
            ("adaptation", self.adaptation, ADAPTATIONS),
        ):
            if value not in allowed:
                known = ", ".join(map(repr, allowed))
                raise OptionError(f"{name}={value!r} is not known; choose one of {known}.")
        if not isinstance(self.keep_warmup, bool):
            raise OptionError(f"keep_warmup={self.keep_warmup!r} must be True or False.")
        if self.step_size is not None and not _is_positive(self.step_size):
            raise OptionError(f"step_size={self.step_size!r} must be a positive number.")
        if self.warmup == 0 and self.step_size is None:
            raise OptionError("warmup=0 adapts nothing: give step_size= as well.")

    @property
    def dense(self) -> bool:
        return self.mass_matrix == "dense"

    @property
    def alone(self) -> bool:
        """Whether each chain has a scale of its own."""
        return self.adaptation == "chain" and self.mass_matrix != "unit"

    def kept(self, draws: int) -> dict[str, int]:
        """How many draws are kept, by group: of so many after the warm-up, and of the warm-up's."""
        return {"posterior": draws, "warmup_posterior": self.warmup // self.thin * self.keep_warmup}


def _is_positive(value: Any) -> bool:
    """Whether a value is one number above zero; one of JAX's counts."""
    try:
        return not isinstance(value, str) and float(value) > 0.0
    except (TypeError, ValueError):
        return False
