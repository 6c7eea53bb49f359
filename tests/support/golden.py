"""Golden files: ``ZPROF_UPDATE_GOLDEN=1`` writes them anew, and the difference is read by a person."""

import json
import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"


def without_pages(sarif: str) -> str:
    """SARIF without the pages of findings, which change for reasons of their own."""
    tree = json.loads(sarif)
    for rule in tree["runs"][0]["tool"]["driver"]["rules"]:
        if "markdown" in rule["help"]:
            rule["help"] = {"text": "the page", "markdown": "the page"}
    return json.dumps(tree, indent=2) + "\n"


def hold(name: str, document: str) -> None:
    """The document is that of the file ``tests/golden/NAME``."""
    path = FOLDER / name
    if os.environ.get("ZPROF_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document, encoding="utf-8")
    assert document == path.read_text(encoding="utf-8")
