"""Samplers of the neighbourhoods that mini-batches of roots are trained on, and their features."""

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.base import CountingSampler, Sampler
from retexo_fl.additions.devices.sampling.full import FullSampler
from retexo_fl.additions.devices.sampling.gns import GnsSampler
from retexo_fl.additions.devices.sampling.neighbour import NeighbourSampler
from retexo_fl.additions.devices.sampling.sample import Block, Sample
from retexo_fl.additions.devices.sampling.shadow import ShadowSampler
from retexo_fl.additions.devices.sampling.workloads import root_workloads

__all__ = [
    "Adjacency",
    "Block",
    "CountingSampler",
    "FullSampler",
    "GnsSampler",
    "NeighbourSampler",
    "Sample",
    "Sampler",
    "ShadowSampler",
    "root_workloads",
]
