"""Help texts in groups: what is needed often first, what is needed rarely last."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

FIRST = "Options"
GROUPS: dict[str, tuple[str, ...]] = {
    "Policy and tree": (
        "--policy", "--policies", "--budget", "--budgets", "--candidates", "--max-nodes", "--block-size", "--recipe",
    ),
    "Answer": ("--max-tokens", "--temperature", "--temperatures", "--seed", "--seeds", "--generation-config"),
    "Prompt": ("--raw", "--system", "--chat-template", "--chat-template-kwargs", "--parse-special"),
    "Model and machine": ("--drafter", "--dtype", "--device", "--threads", "--kv-memory"),
    "Costs": ("--profile", "--allow-stale-profile", "--live-costs"),
    "Options of single policies, needed rarely": (
        "--min-width", "--grid", "--fit-rows", "--rate", "--fixed-rate", "--calibration", "--skipping", "--share",
        "--min-nodes",
    ),
}  # fmt: skip
"""Names of options by group, in the order of their sections; every other option stands in the first one."""


class GroupedCommand(TyperCommand):
    """A command whose help lists its options in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then a section a group."""
        arguments: list[tuple[str, str]] = []
        sections: dict[str, list[tuple[str, str]]] = {FIRST: [], **{name: [] for name in GROUPS}}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                arguments.append(record)
                continue
            group = next((name for name, options in GROUPS.items() if {*parameter.opts} & {*options}), FIRST)
            sections[group].append(record)
        for name, records in {"Arguments": arguments, **sections}.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)
