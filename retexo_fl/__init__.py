"""Federated training of graph neural networks by lazy message passing, on Flower."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("retexo-fl")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
