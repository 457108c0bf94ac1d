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

| You want to | Command |
| --- | --- |
| see it work, with sample data | [`spark-purgatory demo`](#demo) |
| check this machine, a checkpoint or a table | [`spark-purgatory doctor`](#doctor) |
| get a job's file to begin with | [`spark-purgatory example > job.yaml`](#example) |
| check a job's file | [`spark-purgatory check job.yaml`](#check) |
| run a job | [`spark-purgatory run job.yaml`](#run) |
| see the state of a query at once | [`spark-purgatory status CHECKPOINT`](#status) |
| see why an order still waits | [`spark-purgatory pending CHECKPOINT`](#pending) |
| get one page about a query, to send to someone | [`spark-purgatory report CHECKPOINT TABLE`](#report) |
| change the number of shards, the host or the need | [`spark-purgatory move job.yaml --from CHECKPOINT`](#move) |
| get what waits as tables, to edit them | [`spark-purgatory export-state CHECKPOINT FOLDER`](#export-state) |
| restart a query whose staging log has two entries with one number | [`spark-purgatory repair CHECKPOINT`](#repair) |

Most commands start their own Spark session. They may read a checkpoint and a table while the query runs. Places are
paths or URIs for Spark; for an object store, pass its settings with `--conf`. See also [Run a job](operations.md).

`spark-purgatory --install-completion` lets bash, zsh, fish or PowerShell complete commands, options and files with the
tab key; `--show-completion` prints the script instead. An editor with a YAML language server completes the job's file,
because its first line names the [JSON schema](schema.json) of its fields.
"""
ORDER = ("demo", "doctor", "example", "check", "run", "status", "pending", "report", "move", "export-state", "repair")


def page() -> str:
    """The whole page."""
    group: Any = typer.main.get_command(app)
    assert set(ORDER) == set(group.commands), "a command has no place on the page"
    return "".join([HEAD, *(_section(name, group.commands[name]) for name in ORDER)])


def _section(name: str, command: Any) -> str:
    paragraphs = re.split(r"\n\n+", inspect.cleandoc(command.help))
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    shown = (_upper(each.name) if each.required else f"[{_upper(each.name)}]" for each in arguments)
    usage = " ".join(["spark-purgatory", name, *shown])
    lines = [f"\n## {name}\n\n{text}\n\n    {usage}{' [OPTIONS]' if options else ''}\n"]
    if command.params:
        lines.append("\n| Argument or option | Meaning | Default |\n| --- | --- | --- |\n")
        lines += [f"| `{_upper(each.name)}` | {each.help} | {_must(each)} |\n" for each in arguments]
        lines += [_row(each) for each in options]
    return "".join(lines)


def _row(option: Any) -> str:
    text, _, said = option.help.partition(" [default: ")
    default = said.rstrip("]") or _must(option)
    names = ", ".join(f"`{each}`" for each in (*reversed(option.opts), *option.secondary_opts))
    again = " May be given again." if option.multiple else ""
    return f"| {names} | {text}{again} | {default} |\n"


def _must(option: Any) -> str:
    if option.required:
        return "must be given"
    if getattr(option, "is_flag", False):
        return "no"
    return "none" if option.default in (None, "", ()) else f"`{option.default}`"


def _upper(name: str) -> str:
    return "FILE" if name == "job_file" else name.upper()


if __name__ == "__main__":
    print(page(), end="")
