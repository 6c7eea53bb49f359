"""Pages of the site that are made from the program when it is built: commands, findings, the report."""

import contextlib
import io
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from zprof.cli import main as run_zprof
from zprof.cli.registry import COMMANDS

_DOCS = Path(__file__).parents[1]
_WIDTH = "88"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages; called by MkDocs."""
    pages = {
        "reference/commands.md": write_commands(),
        "reference/findings.md": write_findings(),
        "reference/report.md": write_schema(),
    }
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def write_commands() -> str:
    """Return the page of all commands, as their own help says it."""
    parts = ["# Commands", "", "```text", _read_help("--help"), "```", ""]
    for entry in COMMANDS:
        parts += [f"## zprof {entry.name}", "", "```text", _read_help(entry.name, "--help"), "```", ""]
    return "\n".join(parts)


def write_findings() -> str:
    """Return the page that lists all findings, each with the sentence in bold on its own page."""
    rows = [
        "# Findings",
        "",
        "`zprof explain ID` prints the same pages.",
        "",
        "| | finding | what it is |",
        "|---|---|---|",
    ]
    for page in sorted((_DOCS / "findings").glob("ZP*.md")):
        text = page.read_text(encoding="utf-8")
        title = re.match(r"# (ZP\d+) (\w+)\n", text)
        sentence = re.search(r"\*\*(.+?)\*\*", text, re.DOTALL)
        if title is None or sentence is None:
            raise ValueError(f"{page}: no title '# ZPnnn cause' or no sentence in bold")
        rows.append(
            f"| [{title[1]}](../findings/{page.name}) | `{title[2]}` | {' '.join(sentence[1].split())} |"
        )
    return "\n".join([*rows, ""])


def write_schema() -> str:
    """Return the page of the report's JSON schema: one table of leaves for each type."""
    schema = json.loads((_DOCS / "schemas" / "report.json").read_text(encoding="utf-8"))
    parts = [
        "# Report",
        "",
        "`zprof report RUN -f json` prints this tree; `zprof schema report` the JSON Schema itself. "
        "Leaves may be added; those that are here stay.",
        "",
    ]
    for name, kind in sorted(schema["$defs"].items(), key=lambda item: (item[0] != schema["$ref"], item[0])):
        parts += [f"## {name.rpartition('.')[2]}", "", " ".join(kind.get("description", "").split()), ""]
        if "properties" in kind:
            parts += ["| leaf | type |", "|---|---|"]
            parts += [f"| `{leaf}` | {_describe_type(of)} |" for leaf, of in kind["properties"].items()]
            parts.append("")
        elif "enum" in kind:
            parts += [", ".join(f"`{value}`" for value in kind["enum"]), ""]
    return "\n".join(parts)


def _describe_type(of: Mapping[str, Any]) -> str:
    if "$ref" in of:
        name = of["$ref"].rpartition(".")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in of:
        return " or ".join(_describe_type(one) for one in of["anyOf"])
    if of.get("type") == "array":
        return f"list of {_describe_type(of.get('items') or {})}"
    if of.get("type") == "object":
        return f"map to {_describe_type(of.get('additionalProperties') or {})}"
    return str(of.get("type", "value"))


def _read_help(*arguments: str) -> str:
    output = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = _WIDTH  # argparse reads nothing else
    try:
        with contextlib.redirect_stdout(output):
            run_zprof([*arguments])
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    return output.getvalue().strip()
