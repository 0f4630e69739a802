# SPDX-License-Identifier: Apache-2.0
"""The command line. Results go to stdout, everything else to stderr; exit codes are in `errors`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

import click
from click.shell_completion import ShellComplete, get_completion_class

from imagebuild import __version__
from imagebuild.catalog import arch_names, project_root
from imagebuild.command_audit import audit
from imagebuild.command_bench import bench
from imagebuild.command_build import build, fetch, gc, unpack
from imagebuild.command_bundle import bundle
from imagebuild.command_compare import diff, explain
from imagebuild.command_compose import compose
from imagebuild.command_kubernetes import kubernetes
from imagebuild.command_metrics import metrics
from imagebuild.command_models import models
from imagebuild.command_patches import patches
from imagebuild.command_plan import lock, plan, render
from imagebuild.command_probe import probe
from imagebuild.command_receipt import promote, receipt
from imagebuild.command_slim import slim
from imagebuild.errors import ImageBuildError, IntegrityError, PreconditionError
from imagebuild.layer.entries import LayerError

PROGRAM = "build.py"
_COMPLETE = "_BUILD_PY_COMPLETE"
_INTERRUPTED = 130


class DefaultGroup(click.Group):
    """A group whose default command is `build`, so that `build.py --arch A` works."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `build` before arguments that name no command."""
        own = {"--help", "-h", "--version"}
        if args and args[0].startswith("-") and args[0] not in own:
            args = ["build", *args]
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say which archs there are."""
        archs = ", ".join(arch_names(project_root() / "images"))
        formatter.write_paragraph()
        formatter.write_text(f"Archs: {archs}. `--arch A` alone means `build --arch A`.")
        formatter.write_text(
            "Exit codes: 0 ok, 1 a check failed, 2 usage or manifest, 3 something is missing "
            "(engine, GPU, disk, network), 4 lock or hash mismatch, 5 build failed, 130 interrupted."
        )


@click.group(cls=DefaultGroup, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """Build a pinned LLM-serving stack into one container image per GPU architecture."""


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell; it completes `build.py` on the PATH and `./build.py`."""
    found = get_completion_class(shell)
    assert found is not None
    # The base class: bash's own one would start a bash here to ask its version.
    click.echo(ShellComplete.source(found(cli, {}, PROGRAM, _COMPLETE)))


for command in (
    audit,
    bench,
    build,
    bundle,
    compose,
    diff,
    explain,
    fetch,
    gc,
    kubernetes,
    lock,
    metrics,
    models,
    patches,
    plan,
    probe,
    promote,
    receipt,
    render,
    slim,
    unpack,
):
    cli.add_command(command)


def _fail(message: str) -> None:
    plain = False if os.environ.get("NO_COLOR") else None  # no-color.org; None: colours on a terminal
    click.secho("error: ", nl=False, err=True, fg="red", bold=True, color=plain)
    click.echo(message, err=True)


def _status(error: BaseException) -> int:
    """Say what went wrong and return the exit status for it."""
    if isinstance(error, ImageBuildError):
        _fail(str(error))
        return error.exit_code
    if isinstance(error, LayerError):
        _fail(str(error))
        return IntegrityError.exit_code
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    if isinstance(error, OSError):
        _fail(f"{error.filename or 'system'}: {error.strerror or error}")
        return PreconditionError.exit_code
    _fail("interrupted; run the same command again to go on")
    return _INTERRUPTED


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit status; no exception of ours leaves it."""
    try:
        left = cli.main(list(arguments), prog_name=PROGRAM, complete_var=_COMPLETE, standalone_mode=False)
    except (click.exceptions.Exit, BrokenPipeError) as leaving:
        return getattr(leaving, "exit_code", 0)
    except (ImageBuildError, LayerError, click.ClickException, OSError) as error:
        return _status(error)
    except (KeyboardInterrupt, click.Abort) as error:
        return _status(error)
    return left if isinstance(left, int) else 0  # click hands back the status that a command left with


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Entry point of `python build.py`; SIGTERM ends it as Ctrl-C does, with all that it started."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
