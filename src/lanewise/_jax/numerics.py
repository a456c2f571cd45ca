"""What functions answer otherwise from one version of JAX, and so of XLA, to the next."""

from __future__ import annotations

import jax

# `lax.digamma` at its pole at zero: minus infinity, or NaN as at its other poles.
DIGAMMA_AT_ZERO_IS_INFINITE = jax.__version_info__ >= (0, 12)
