"""The version of this installation."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("retexo-fl")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
