"""The command line."""

from streampca.cli.app import main

__all__ = ["main"]
