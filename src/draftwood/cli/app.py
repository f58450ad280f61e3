"""The `draftwood` command: exit codes, error lines, streams. One module a command; heavy imports are inside them.

Exit codes: 0 done, 1 the check failed or the run broke off, 2 wrong use or bad input, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from ..errors import DraftwoodError, UsageError
from .commands.bench import bench
from .commands.check import check
from .commands.demo import demo
from .commands.doctor import doctor
from .commands.generate import generate
from .commands.profile import profile
from .commands.record import record
from .commands.replay import replay
from .commands.show import show
from .commands.simulate import simulate
from .commands.version import version
from .grouped import GroupedCommand
from .io import ReaderGone, complain, drop_stdout, flush_stdout, prepare_streams
from .policies import with_policy_options

HELP = {"help_option_names": ["-h", "--help"]}
FAILED = 1
WRONG_USE = 2
INTERRUPTED = 130

COMMANDS: dict[str, Callable[..., None]] = {
    "generate": generate,
    "demo": demo,
    "profile": profile,
    "simulate": simulate,
    "bench": bench,
    "record": record,
    "replay": replay,
    "show": show,
    "check": check,
    "doctor": doctor,
    "version": version,
}


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:]))


def make_app(arguments: Sequence[str]) -> typer.Typer:
    """The commands; the one that is asked for with the options of all policies, as they are now."""
    app = typer.Typer(
        name="draftwood",
        help="Lossless tree speculative decoding with a one-pass block drafter.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=HELP,
    )
    app.callback(invoke_without_command=True)(_top)
    for name, command in COMMANDS.items():
        app.command(name, context_settings=HELP, cls=GroupedCommand)(
            with_policy_options(command, asked=name in arguments[:1])
        )
    return app


def _top(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Lossless tree speculative decoding with a one-pass block drafter."""
    if show_version:
        version()
    elif context.invoked_subcommand is None:
        raise UsageError(f"expected a command: {', '.join(COMMANDS)} (draftwood --help says what they do)")


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; errors become one line on standard error."""
    prepare_streams()
    # Read when tqdm is imported: one bar of transformers obeys no other switch and would end up in a log or a pipe.
    os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        code = make_app(arguments)(list(arguments), prog_name="draftwood", standalone_mode=False)
        flush_stdout()
    except typer.TyperException as error:
        complain(error.format_message())
        return WRONG_USE
    except UsageError as error:
        complain(str(error))
        return WRONG_USE
    except (DraftwoodError, OSError, MemoryError) as error:
        complain(str(error) or type(error).__name__)
        return FAILED
    except (ReaderGone, SystemExit):
        # typer exits by itself in one case: nobody reads its help text.
        drop_stdout()
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return code if isinstance(code, int) else 0
