"""Errors of Draftwood.

::

    DraftwoodError
    ├── UsageError               wrong use or bad input: the command line exits with 2
    │   ├── ModelError           a target or checkpoint that cannot be loaded
    │   ├── UnsupportedError     a model, layer, rope or option that Draftwood refuses
    │   ├── RequestError         one request is unusable (empty prompt, too long, ...)
    │   ├── CostError            a cost profile that is missing, broken or measured elsewhere
    │   └── TraceError           a trace or results file that cannot be used
    ├── NonFiniteLogitsError     the target produced NaN or +inf for a request
    └── PoolExhaustedError       the KV pool may not grow any further

A message is one line that names the offending value and what is allowed.
"""


class DraftwoodError(Exception):
    """Base of every error that Draftwood raises on purpose."""

    prompt: int | None = None
    """Index of the prompt that it is about, where several run together."""


class UsageError(DraftwoodError):
    """Wrong use or bad input; the message names the value and the allowed set."""


class ModelError(UsageError):
    """A target or drafter that cannot be loaded as given."""


class UnsupportedError(UsageError):
    """Something that Draftwood refuses rather than computes wrongly."""


class RequestError(UsageError):
    """One request cannot be served; its neighbours are untouched."""


class CostError(UsageError):
    """A cost profile that is missing, malformed or belongs to another machine."""


class TraceError(UsageError):
    """A trace or results file that is cut, malformed or of another schema."""


class NonFiniteLogitsError(DraftwoodError):
    """The target gave NaN or +inf logits; the message names the absolute position."""


class PoolExhaustedError(DraftwoodError):
    """The KV pool has no free rows and may not grow."""
