"""The `draftwood` command: exit codes, error lines, streams. One module a command; heavy imports are inside them.

Exit codes: 0 done, 1 the check failed or the run broke off, 2 wrong use or bad input, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from . import (
    cli_bench,
    cli_check,
    cli_demo,
    cli_doctor,
    cli_generate,
    cli_profile,
    cli_record,
    cli_replay,
    cli_show,
    cli_simulate,
    cli_version,
)
from .cli_io import ReaderGone, complain, drop_stdout, flush_stdout, prepare_streams
from .errors import DraftwoodError, UsageError

FAILED = 1
WRONG_USE = 2
INTERRUPTED = 130

app = typer.Typer(
    name="draftwood",
    help="Lossless tree speculative decoding with a one-pass block drafter.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("generate")(cli_generate.generate)
app.command("demo")(cli_demo.demo)
app.command("profile")(cli_profile.profile)
app.command("simulate")(cli_simulate.simulate)
app.command("bench")(cli_bench.bench)
app.command("record")(cli_record.record)
app.command("replay")(cli_replay.replay)
app.command("show")(cli_show.show)
app.command("check")(cli_check.check)
app.command("doctor")(cli_doctor.doctor)
app.command("version")(cli_version.version)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; errors become one line on standard error."""
    prepare_streams()
    try:
        code = app(list(arguments), prog_name="draftwood", standalone_mode=False)
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


if __name__ == "__main__":
    main()
