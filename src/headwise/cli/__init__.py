"""The `headwise` command: one file per verb; each parses, calls the library and prints."""

from headwise.cli.app import main

__all__ = ["main"]
