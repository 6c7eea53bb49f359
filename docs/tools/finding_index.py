"""Write docs/findings/index.json from the records of all causes: python -m docs.tools.finding_index."""

import json
from pathlib import Path

from zprof.causes import load_causes

INDEX = Path(__file__).parents[1] / "findings" / "index.json"


def write_index() -> str:
    """Return the index as JSON, one line per cause."""
    entries = [
        {"id": cause.id, "name": cause.name, "meaning": cause.meaning, "needs": list(cause.needs)}
        for cause in load_causes().values()
    ]
    return "[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries) + "\n]\n"


if __name__ == "__main__":
    INDEX.write_text(write_index(), encoding="utf-8")
