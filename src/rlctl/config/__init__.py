"""Configuration: typed sections, loading with provenance, and error messages that name file and line."""

from rlctl.config.load import Loaded, load
from rlctl.config.root import Config

__all__ = ["Config", "Loaded", "load"]
