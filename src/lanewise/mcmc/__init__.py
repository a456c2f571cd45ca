"""Sampling with many chains: the No-U-Turn sampler as the textbook has it, and its like."""

from lanewise.mcmc.hmc import HMC
from lanewise.mcmc.mclmc import MCLMC
from lanewise.mcmc.models import Model, from_numpyro, from_pymc
from lanewise.mcmc.nuts import NUTS
from lanewise.mcmc.sample import sample
from lanewise.mcmc.samplers import Sampler, Told
from lanewise.mcmc.trouble import SamplingWarning

__all__ = [
    "HMC",
    "MCLMC",
    "NUTS",
    "Model",
    "Sampler",
    "SamplingWarning",
    "Told",
    "from_numpyro",
    "from_pymc",
    "sample",
]
