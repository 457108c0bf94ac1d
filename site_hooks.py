"""What MkDocs does beside its configuration: pages from files outside docs/, their links and lists, and docstrings.

The pages of docs/ are also read on GitHub. So a link there is a path from file to file, and some lead out of docs/.
Here such a link becomes a link to the page of the site that shows the file, or to the file on GitHub.
"""

from __future__ import annotations

import posixpath
import re
import textwrap
from pathlib import Path
from pprint import pformat
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from spark_purgatory import schema

ROOT = Path(__file__).resolve().parent
ON_GITHUB = "https://github.com/spark-purgatory/spark-purgatory/blob/main/"
OUTSIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
    "notebooks/README.md": "notebooks/index.md",
}
"""Pages whose file is not below docs/: path in the repository -> path in the site."""
LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
HEADING = re.compile(r"^# (.*)$", re.MULTILINE)
NESTED = re.compile(r"^ {2,3}(?=\S)")
ITEM = re.compile(r"^(?:\d+\.|[*-]) ")
NESTED_ITEM = re.compile(r"^ {2,4}[*-] ")
EXAMPLE = re.compile(r"^Example::\n\n((?:    .*\n?|\n)+)", re.MULTILINE)
SEARCH_BOOST = {
    "Project": 0.3,
    "Reference": 0.3,
    "Notebooks": 0.4,
    "How it works": 3,
    "Something looks wrong": 2,
    "Criteria, deadlines": 2.5,
    "Upgrade, change a query": 1.5,
    "From Kafka topics": 3,
    "Kafka's classes": 0.3,
    "Test your pipeline": 0.5,
}
"""By a page's name in the navigation, or by the part that it is in: who looks for a word wants to use the library."""
INCLUDED = re.compile(r"^<!-- file: (\S+\.yaml) -->$", re.MULTILINE)
SENTENCES = re.compile(r"^```text\n(?=(?:(?![|+│┃┏]).+\n)+```$)", re.MULTILINE)
"""The beginning of a block without a table, such as an error: its lines may be broken."""
PROMPTS = re.compile(r"^Example:$", re.MULTILINE)
TABS = re.compile(r"^<!-- tabs -->\n(.*?)^<!-- /tabs -->\n", re.MULTILINE | re.DOTALL)
TAB = re.compile(r"(.*?)^```(python|yaml)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
TAB_TITLES = {"python": "Python", "yaml": "Job's file (YAML)"}
PAGE = re.compile(r"\b(docs/([\w/-]+)\.md)\b")
"""A page that a docstring names; all docstrings are shown on pages of docs/reference."""
COLONS = re.compile(r"::$", re.MULTILINE)
RETURNS = re.compile(r"^Returns:\n(?:    .*\n?|\n)+", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages whose file is not below docs/."""
    for path, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Map the links that lead out of docs/, or into it from outside; show the job files that a page asks for; indent
    nested lists as MkDocs needs them.
    """
    if boost := SEARCH_BOOST.get(page.title, SEARCH_BOOST.get(page.parent.title if page.parent else "")):
        page.meta["search"] = {"boost": boost}
    if page.parent is None:
        page.meta["hide"] = ["navigation"]  # it is alone in its part of the navigation
    here = page.file.src_uri
    source = next((path for path, name in OUTSIDE.items() if name == here), f"docs/{here}")
    markdown = tabbed(markdown)
    markdown = SENTENCES.sub("``` {.text .sentences}\n", markdown)
    markdown = INCLUDED.sub(lambda found: f"```yaml\n{(ROOT / found[1]).read_text('utf-8')}```", markdown)
    return deeper_lists(LINK.sub(lambda link: mapped(link, here, source), markdown))


def tabbed(markdown: str) -> str:
    """Blocks between ``<!-- tabs -->`` and ``<!-- /tabs -->`` side by side: what GitHub shows one below the other."""

    def side_by_side(region: re.Match[str]) -> str:
        parts = []
        for before, language, code in TAB.findall(region[1]):
            body = f"{before.strip()}\n\n```{language}\n{code}```".strip()
            parts.append(f'=== "{TAB_TITLES[language]}"\n\n' + textwrap.indent(body, "    ") + "\n")
        return "\n".join(parts)

    return TABS.sub(side_by_side, markdown)


def mapped(link: re.Match[str], here: str, source: str) -> str:
    """A link of the file ``source``, as its page ``here`` must have it; a path as its text becomes the title."""
    text, path, anchor = link[1], link[2], link[3] or ""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    file = ROOT / target
    if not file.is_file():
        return link[0]  # MkDocs reports it
    on_site = target.removeprefix("docs/") if target.startswith("docs/") else OUTSIDE.get(target)
    named_by_path = path.endswith(".md") and text in (path, target, posixpath.basename(target))
    if named_by_path:
        text = title_of(target)
    if on_site is None:
        return f"[{text}]({ON_GITHUB}{target}{anchor})"
    return f"[{text}]({posixpath.relpath(on_site, posixpath.dirname(here) or '.')}{anchor})"


def title_of(path: str) -> str:
    """The first heading of a page."""
    heading = HEADING.search((ROOT / path).read_text("utf-8"))
    return heading[1] if heading else path


def deeper_lists(markdown: str) -> str:
    """Two or three spaces nest a list on GitHub; Python's Markdown needs four, and blank lines around the list."""
    lines: list[str] = []
    fenced = nested = False  # in a code block; below a paragraph or a list inside an item
    for line in markdown.splitlines():
        fenced ^= line.startswith("```")
        last = lines[-1] if lines else ""
        if not fenced and last.strip():
            opens = NESTED_ITEM.match(line) and not last.startswith("    ")
            if opens or (nested and ITEM.match(line)):
                lines.append("")
                nested = bool(opens)
        elif line.startswith("  "):
            nested = True
        elif line.strip():
            nested = False
        lines.append(line if fenced else NESTED.sub("    ", line))
    return "\n".join(lines) + "\n"


class PlainDocstrings(griffe.Extension):
    """Docstrings and types as a reader wants them: examples are Python, and an option's type stands alone."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Write a docstring as Griffe reads it."""
        if obj.docstring is not None:
            text = EXAMPLE.sub(
                lambda found: f"Examples:\n    ```python\n{found[1].rstrip()}\n    ```\n\n", obj.docstring.value
            )
            text = PAGE.sub(lambda found: f"[{title_of(found[1])}](../{found[2]}.md)", text)
            text = COLONS.sub(":", PROMPTS.sub("Examples:", text))
            # Griffe would take the words before a colon for the type.
            obj.docstring.value = RETURNS.sub(lambda found: re.sub(r"(?<!^Returns):(?=\s)", "&#58;", found[0]), text)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """``Annotated[str, Option(...)]`` becomes ``str``, and 10000000 becomes 10,000,000."""
        kind = attr.annotation
        if isinstance(kind, griffe.ExprSubscript) and str(kind.left) == "Annotated":
            attr.annotation = kind.slice.elements[0]
        if str(attr.value).isdigit():
            attr.value = f"{int(str(attr.value)):,}"
        if attr.parent is not None and attr.parent.path == schema.__name__:
            attr.value = pformat(getattr(schema, attr.name), width=88)  # the names, not how they are made
