"""Draft trees: growth over a drafter's scores, and how a tree lies in a pack."""

from __future__ import annotations

from . import follow as _follow
from . import grow as _grow
from . import layout as _layout
from . import merge as _merge


def warm_up() -> None:
    """Compile every kernel of this package, so that loading pays for it and not the first round."""
    _follow.warm_up()
    _grow.warm_up()
    _layout.warm_up()
    _merge.warm_up()
