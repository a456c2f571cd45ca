"""The settings that decide the draws of a run, besides the density and the key."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lanewise.core.errors import OptionError
from lanewise.mcmc.samplers import Ensemble, Sampler, must_be_count, must_be_one_of

MASS_MATRICES = ("diagonal", "dense", "unit")
ADAPTATIONS = ("pooled", "chain")


@dataclass(frozen=True)
class Settings:
    """What decides the draws, besides the density and the key."""

    chains: int
    warmup: int
    sampler: Sampler | Ensemble
    mass_matrix: str
    adaptation: str
    step_size: float | None
    thin: int = 1
    keep_warmup: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.sampler, type) or not (
            isinstance(self.sampler, Ensemble) or callable(getattr(self.sampler, "draw", None))
        ):
            raise OptionError(
                f"sampler={self.sampler!r} must be NUTS(...), HMC(...), MCLMC(...), ChEES(...), Tempering(...) or a"
                " Sampler."
            )
        must_be_one_of("mass_matrix", self.mass_matrix, MASS_MATRICES)
        must_be_one_of("adaptation", self.adaptation, ADAPTATIONS)
        if not isinstance(self.keep_warmup, bool):
            raise OptionError(f"keep_warmup={self.keep_warmup!r} must be True or False.")
        if self.step_size is not None and not _is_positive(self.step_size):
            raise OptionError(f"step_size={self.step_size!r} must be a positive number.")
        if isinstance(self.sampler, Ensemble):
            self.sampler.must_fit(self)
        elif self.warmup == 0 and self.step_size is None:
            raise OptionError("warmup=0 adapts nothing: give step_size= as well.")

    @classmethod
    def of(cls, *, chains: Any, warmup: Any, thin: Any, **others: Any) -> Settings:
        """Settings as a caller gives them."""
        counts = {
            "chains": must_be_count("chains", chains, 1),
            "warmup": must_be_count("warmup", warmup, 0),
            "thin": must_be_count("thin", thin, 1),
        }
        return cls(**counts, **others)

    @property
    def dense(self) -> bool:
        return self.mass_matrix == "dense"

    @property
    def alone(self) -> bool:
        """Whether each chain has a scale of its own."""
        return self.adaptation == "chain" and self.mass_matrix != "unit"

    def kept(self, draws: int) -> dict[str, int]:
        """How many draws are kept, by group: of `draws` after the warm-up, and of the warm-up's."""
        return {"posterior": draws, "warmup_posterior": self.warmup // self.thin * self.keep_warmup}


def _is_positive(value: Any) -> bool:
    """Whether a value is one number above zero; one of JAX's counts."""
    try:
        return not isinstance(value, str) and 0.0 < float(value) < math.inf
    except (TypeError, ValueError):
        return False
