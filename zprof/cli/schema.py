"""``zprof schema``: print the JSON schemas of zprof's documents."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DOCUMENTS = ("report", "check", "baseline", "plan", "whatif")


class SchemaCommand:
    """Print the JSON schema of a report, a check, a baseline, a plan or a prediction.

    Draft 2020-12. Within a schema version fields may be added, but none are removed.

    examples:
      zprof schema report
      zprof schema check -o check.schema.json
    """

    name = "schema"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the document and the output file."""
        parser.add_argument("document", choices=DOCUMENTS, help=f"one of: {', '.join(DOCUMENTS)}")
        parser.add_argument(
            "-o", "--output", metavar="FILE", type=Path, help="write to FILE instead of stdout"
        )
        parser.add_argument("--force", action="store_true", help="overwrite FILE")

    def run(self, arguments: argparse.Namespace) -> int:
        """Generate the schema from the types and write it."""
        from zprof.cli.output import write_document
        from zprof.model.json_format import to_json

        write_document(to_json(make_schema(arguments.document)), arguments.output, force=arguments.force)
        return 0


def make_schema(document: str) -> Mapping[str, Any]:
    """Return the schema of one of ``DOCUMENTS``, as a tree of JSON values."""
    from zprof.model.baseline import Baseline
    from zprof.model.comparison import Check
    from zprof.model.json_format import make_json_schema
    from zprof.model.plan import Plan
    from zprof.model.report import Report, WhatIf

    kinds: dict[str, type] = {
        "report": Report,
        "check": Check,
        "baseline": Baseline,
        "plan": Plan,
        "whatif": WhatIf,
    }
    return make_json_schema(kinds[document], title=f"zprof {document}")
