"""The `draftwood` command. One module a command; `options` and `io` hold what they share."""

from .app import main, run

__all__ = ["main", "run"]
