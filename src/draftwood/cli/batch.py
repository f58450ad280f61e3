"""What `draftwood generate --prompts` asks of the engine: how many prompts run at once, and how they share a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from .options import at_least_one, integer

if TYPE_CHECKING:
    from ..engine import EngineConfig

BatchOption = Annotated[
    int | None,
    typer.Option("--batch", parser=at_least_one, metavar="R", help="Prompts that run at once; default 64."),
]
ShareOption = Annotated[
    str | None,
    typer.Option("--share", metavar="HOW", help="How prompts divide a round's nodes: shared (default) or uniform."),
]
MinNodesOption = Annotated[
    int | None,
    typer.Option(
        "--min-nodes",
        parser=integer,
        metavar="N",
        help="Least nodes of a prompt in a round that is divided; default 0.",
    ),
]


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What was asked for about requests that run together; None: not given."""

    batch: int | None
    share: str | None
    min_nodes: int | None

    def check_alone(self) -> None:
        """Raise UsageError if anything was given for a request that runs alone."""
        given = {"--batch": self.batch, "--share": self.share, "--min-nodes": self.min_nodes}
        for option, value in given.items():
            if value is not None:
                raise UsageError(f"{option} {value}: needs several prompts, give --prompts")

    def config(self, policy: str) -> EngineConfig:
        """The engine's settings. Raises UsageError for values out of range or that `policy` does not use."""
        from ..engine import EngineConfig
        from ..policy import SharedPolicy, make_policy
        from ..policy.batch import Sharing

        rule = make_policy(policy)
        if not isinstance(rule, SharedPolicy):
            for option, value in {"--share": self.share, "--min-nodes": self.min_nodes}.items():
                if value is not None:
                    raise UsageError(f"{option} {value} is not used by policy {policy!r}, which shares nothing")
        sharing = Sharing(self.share or "shared", self.min_nodes or 0)
        if self.min_nodes is not None and not rule.shares and sharing.share == "uniform":
            raise UsageError(f"--min-nodes {self.min_nodes}: policy {policy!r} has one width under --share uniform")
        if self.batch is None:
            return EngineConfig(sharing=sharing)
        return EngineConfig(sharing=sharing, max_requests=self.batch)
