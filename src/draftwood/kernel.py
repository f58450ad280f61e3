"""Compilation of the few loops that numpy cannot express."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(function: Kernel) -> Kernel:
    """Return `function` compiled by numba on its first call, kept on disk where there is a writable place for it.

    numba refuses to decorate when neither the source folder nor the user's cache folder can be written. A read-only
    installation must still decode, so there the machine code lives in memory only; results are the same.
    """
    try:
        kernel: Any = njit(cache=True)(function)
    except RuntimeError:  # no place to cache
        kernel = njit(function)
    return cast(Kernel, kernel)


def first_call(call: Callable[[], Any]) -> None:
    """Run `call` so that its kernels compile now; a cache that cannot be written (disk full) costs nothing else.

    numba registers the machine code before it saves it, so after a failed save the second call just runs.
    """
    try:
        call()
    except OSError:
        call()
