"""`python -m tools.command_line_page`: docs/command_line.md, made from the commands' own help."""

from __future__ import annotations

import inspect
import re
from typing import Any

import typer

from spark_purgatory.cli import app

HEAD = """# Command line

The extra `cli` installs `spark-purgatory`; `python -m spark_purgatory` is the same. `spark-purgatory COMMAND --help`
has the text of this page.

Most commands start their own Spark session, and may read a checkpoint and a table while the query runs
([Run a job](operations.md)). Places are paths or URIs that Spark reads. `CHECKPOINT` is the query's checkpointLocation.
The exit code is 0 if all is well, 1 if Spark or the query failed (`doctor`, `status`: there is something to do, or an
allowed time was exceeded), 2 if an argument or the file is wrong or nobody agreed. `run` has four more: 2 also if the
start was refused, 3 if the outcomes do not add up (rows that others deleted are no loss), 4 if more rows were late or
rejected than `--fail-above` allows, 130 after ctrl-C. Two options may be repeated:

| Option | Meaning |
| --- | --- |
| `--conf` | A setting of the Spark session: NAME=VALUE, for example of an object store. |
| `--set` | Change a field of the job's file: operations.timeout='5 minutes'. |

`spark-purgatory --install-completion` lets bash, zsh, fish or PowerShell complete commands, options and files with the
tab key; `--show-completion` prints the script. An editor with a YAML language server completes the job's file: its
first line names the [JSON schema](schema.json).
"""
EXIT_CODE = re.compile(r"Exit code: [^.]*\.")
"""What the head says for all commands; a command's help has its own."""
SHARED = ("--conf", "--set")
"""Options that the head explains."""
COMMANDS = "demo doctor example check run status pending report rebuild move repair"
ORDER = tuple(COMMANDS.split())


def page() -> str:
    """The whole page."""
    group: Any = typer.main.get_command(app)
    assert set(ORDER) == set(group.commands), "a command has no place on the page"
    return "".join([HEAD, *(_section(name, group.commands[name]) for name in ORDER)])


def _section(name: str, command: Any) -> str:
    paragraphs = re.split(r"\n\n+", inspect.cleandoc(command.help))
    text = "\n\n".join(EXIT_CODE.sub("", " ".join(paragraph.split())).strip() for paragraph in paragraphs)
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    shown = (_upper(each.name) if each.required else f"[{_upper(each.name)}]" for each in arguments)
    shared = [f"[{name}]" for each in options for name in each.opts if name in SHARED]
    own = [each for each in options if not {*each.opts} & {*SHARED}]
    usage = " ".join(["spark-purgatory", name, *shown, *shared, *(["[OPTIONS]"] if own else [])])
    lines = [f"\n## {name}\n\n{text.strip()}\n\n    {usage}\n"]
    rows = [f"| `{_upper(each.name)}` | {each.help} |\n" for each in arguments if not _plain(each)]
    rows += [_row(each) for each in own]
    return "".join([*lines, *(["\n| Argument | Meaning |\n| --- | --- |\n", *rows] if rows else [])])


def _plain(argument: Any) -> bool:
    """Return True if the head and the usage line explain the argument."""
    return str(argument.help) in ("The query's checkpointLocation.", "The job's YAML file.")


def _row(option: Any) -> str:
    text, _, said = option.help.partition(" [default: ")
    if option.required:
        text += " It must be given."
    elif default := said.rstrip("]") or _default(option):
        text += f" Default: {default}."
    names = ", ".join(f"`{each}`" for each in (*reversed(option.opts), *option.secondary_opts))
    return f"| {names} | {text}{' May be repeated.' if option.multiple else ''} |\n"


def _default(option: Any) -> str:
    flag = getattr(option, "is_flag", False)
    return "" if flag or option.default in (None, "", ()) else f"`{option.default}`"


def _upper(name: str) -> str:
    return "FILE" if name == "job_file" else name.upper()


if __name__ == "__main__":
    print(page(), end="")
