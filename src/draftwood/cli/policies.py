"""Options of the command line that policies bring along: one for each option of a policy in `POLICIES`.

A command that lets the user choose a policy has a parameter `chosen`. `with_policy_options` puts `--policy` and the
policies' own options in its place, so that a new policy, or a new field of one, needs no line here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from .options import Switch, integer, number

if TYPE_CHECKING:
    from ..policy import Option

CHOSEN = "chosen"
DEFAULT_POLICY, BUDGET_POLICY = "auto", "ddtree"
_PREFIX = "policy_"  # keeps the parameters of policies apart from those of a command


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """What the user said about policies."""

    asked: str | None = None
    """The name; None: not given."""
    options: dict[str, Any] = field(default_factory=dict)
    """By the names that `make_policy` takes; what was not given is left out."""

    @property
    def name(self) -> str:
        """The policy asked for, or the one that the options imply."""
        return self.asked or (DEFAULT_POLICY if "budget" not in self.options else BUDGET_POLICY)


UNASKED = PolicyChoice()


def with_policy_options(command: Callable[..., Any], *, asked: bool) -> Callable[..., Any]:
    """Return `command` as typer shall see it; one without a parameter `chosen` stays as it is.

    Policies are imported, which takes a second, only for the command that the user `asked` for. Raises TypeError for
    an option of a policy whose flag is taken.
    """
    signature = inspect.signature(command, eval_str=True)
    if CHOSEN not in signature.parameters:
        return command
    offered = _offered() if asked else {}
    own = {name: item for name, item in signature.parameters.items() if name != CHOSEN}
    _check_flags(own.values(), offered.values())
    parameters: list[inspect.Parameter] = []
    for name, item in signature.parameters.items():
        parameters += [_parameter(option) for option in offered.values()] if name == CHOSEN else [item]
    if asked:
        parameters.insert(list(signature.parameters).index(CHOSEN), _policy_parameter())

    @wraps(command)
    def run(**given: Any) -> Any:
        policy = given.pop(_PREFIX + "name", None)
        said = {name: given.pop(_PREFIX + option.field) for name, option in offered.items()}
        options = {name: _plain(value) for name, value in said.items() if value is not None}
        return command(**given, chosen=PolicyChoice(policy, options))

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _offered() -> dict[str, Option]:
    """All options of all policies; of one that several have the first stands for the rest."""
    from ..policy import POLICIES, policy_options

    offered: dict[str, Option] = {}
    for policy in POLICIES:
        for name, option in policy_options(policy).items():
            first = offered.setdefault(name, option)
            if (first.kind, first.flag) != (option.kind, option.flag):
                raise TypeError(f"option {name!r} of policy {policy}: another policy has it with another type or flag")
    return offered


def _policy_parameter() -> inspect.Parameter:
    from ..policy import POLICIES

    *names, last = POLICIES
    info = typer.Option(
        "--policy",
        metavar="NAME",
        help=f"Rule that sizes the draft tree: {', '.join(names)} or {last}; "
        f"default: {DEFAULT_POLICY}, {BUDGET_POLICY} with --budget.",
    )
    return _keyword(_PREFIX + "name", Annotated[str | None, info])


def _parameter(option: Option) -> inspect.Parameter:
    """The parameter of a command for one option; None stands for one that was not given."""
    name = _PREFIX + option.field
    if option.kind is bool:
        return _keyword(name, Annotated[Switch | None, typer.Option(option.flag, help=option.help)])
    parser, metavar = _PARSERS[option.kind]
    info = typer.Option(option.flag, parser=parser, metavar=option.metavar or metavar, help=option.help)
    return _keyword(name, Annotated[str | None, info])


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=annotation)


def _check_flags(own: Iterable[inspect.Parameter], offered: Iterable[Option]) -> None:
    taken = {"--help", "--policy"}
    for item in own:
        for info in get_args(item.annotation)[1:]:
            taken |= {str(flag) for flag in (info.default, *(info.param_decls or ())) if flag is not None}
    for option in offered:
        if option.flag in taken:
            raise TypeError(f"option {option.name!r} of a policy: the flag {option.flag} is taken, name another one")
        taken.add(option.flag)


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not whole numbers between commas") from error


_PARSERS: dict[type, tuple[Callable[[str], Any], str]] = {
    int: (integer, "N"),
    float: (number, "X"),
    tuple: (_integers, "N,N"),
    str: (str, "TEXT"),
}


def _plain(value: Any) -> Any:
    return value is Switch.ON if isinstance(value, Switch) else value
