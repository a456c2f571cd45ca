"""Sampling with many chains: the No-U-Turn sampler in its textbook form, and others."""

from lanewise.mcmc.by_numpyro import from_numpyro
from lanewise.mcmc.by_pymc import from_pymc
from lanewise.mcmc.by_tfp import from_tfp
from lanewise.mcmc.chees import ChEES
from lanewise.mcmc.diagnosis import SamplingWarning
from lanewise.mcmc.hmc import HMC
from lanewise.mcmc.mclmc import MCLMC
from lanewise.mcmc.models import Model
from lanewise.mcmc.nuts import NUTS
from lanewise.mcmc.pathfinder import Pathfinder
from lanewise.mcmc.predict import log_likelihood, posterior_predictive, prior_predictive
from lanewise.mcmc.sample import sample
from lanewise.mcmc.samplers import Info, Sampler
from lanewise.mcmc.tempering import Tempering

__all__ = [
    "HMC",
    "MCLMC",
    "NUTS",
    "ChEES",
    "Info",
    "Model",
    "Pathfinder",
    "Sampler",
    "SamplingWarning",
    "Tempering",
    "from_numpyro",
    "from_pymc",
    "from_tfp",
    "log_likelihood",
    "posterior_predictive",
    "prior_predictive",
    "sample",
]
