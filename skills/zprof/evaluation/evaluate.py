"""Make the twelve cases of the evaluation, and grade answers to them. No model is called here.

    python evaluate.py make FOLDER              write each case's input, and the questions without the truth
    python evaluate.py grade FOLDER ANSWERS     print the points of each case

ANSWERS is a JSON list of objects with these fields; a field that was not found out is null:

    id          of the case
    cause       name or id of the first cause
    ranks       list of the ranks that are to blame
    saving_ns   [least, most] that the fix gains per step
    unknown     true if the recording cannot answer the question

Points: 1 for the cause (or for none where there is none); 1 for the ranks; 1 if the range holds the true
saving and is at most three times as wide as the saving. Where the recording cannot tell, 1 for saying so, and
none for naming a cause.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: A file that is cut off has this many bytes left.
_CUT_BYTES = 100
#: A range of savings is not wider than this, against the true saving: "0 to 1 s" says nothing.
_MAX_WIDTH_RATIO = 3.0


def main(arguments: list[str]) -> int:
    """Make or grade; return the exit code."""
    if len(arguments) == 2 and arguments[0] == "make":
        make_cases(Path(arguments[1]))
        return 0
    if len(arguments) == 3 and arguments[0] == "grade":
        answers = json.loads(Path(arguments[2]).read_text(encoding="utf-8"))
        points = grade(Path(arguments[1]), answers)
        for name, (got, possible) in points.items():
            print(f"{name:20} {got} of {possible}")
        got, possible = (sum(each) for each in zip(*points.values(), strict=True))
        print(f"{'all':20} {got} of {possible}")
        return 0
    print(__doc__, file=sys.stderr)
    return 2


def read_cases() -> list[dict[str, Any]]:
    """Return the cases."""
    cases: list[dict[str, Any]] = json.loads((HERE / "cases.json").read_text(encoding="utf-8"))
    return cases


def make_cases(folder: Path) -> None:
    """Write each case's input to FOLDER/inputs, its truth to FOLDER/truths, and FOLDER/questions.json."""
    (folder / "truths").mkdir(parents=True)
    for case in read_cases():
        target = folder / "inputs" / case["id"]
        command = [sys.executable, "-m", "zprof", *shlex.split(case["input"]), "--out", str(target)]
        subprocess.run(command, check=True, capture_output=True)
        (target / "truth.json").rename(folder / "truths" / f"{case['id']}.json")
        for path in target.iterdir():
            if case.get("keep") and path.name not in case["keep"]:
                path.unlink()
            elif path.name in case.get("truncate", ()):
                path.write_bytes(path.read_bytes()[:_CUT_BYTES])
    questions = [
        {"id": case["id"], "input": f"inputs/{case['id']}", "question": case["question"]}
        for case in read_cases()
    ]
    (folder / "questions.json").write_text(json.dumps(questions, indent=1), encoding="utf-8")


def grade(folder: Path, answers: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Return the points got and possible of each case; a case without an answer gets none."""
    by_case = {answer["id"]: answer for answer in answers}
    return {
        case["id"]: grade_case(
            case["expect"],
            json.loads((folder / "truths" / f"{case['id']}.json").read_text(encoding="utf-8")),
            by_case.get(case["id"]),
        )
        for case in read_cases()
    }


def grade_case(
    expected: dict[str, Any], truth: dict[str, Any], answer: dict[str, Any] | None
) -> tuple[int, int]:
    """Return the points got and possible of one case."""
    cause = expected["cause"]
    if expected.get("unknown"):
        said = answer is not None and answer.get("unknown") is True and not answer.get("cause")
        return int(said), 1
    possible = 1 + ("who" in expected) + ("saving" in expected)
    if answer is None or answer.get("unknown"):
        return 0, possible
    got = int(_name_cause(answer.get("cause")) == cause)
    if not got:
        return 0, possible
    if "who" in expected:
        got += set(answer.get("ranks") or ()) == set(_find_culprits(truth, cause))
    if "saving" in expected:
        got += _holds(answer.get("saving_ns"), truth["saving_ns"][cause])
    return got, possible


def _name_cause(given: str | None) -> str | None:
    """Return the name of a cause that is given by name or id."""
    if not given:
        return None
    from zprof.model.findings import read_index

    names = {entry.id: entry.name for entry in read_index()}
    return names.get(given, given)


def _find_culprits(truth: dict[str, Any], cause: str) -> list[int]:
    """Return the planted ranks; a late rank of a simple job is the one that computes longest."""
    planted: list[int] = (truth.get("culprits") or {}).get(cause) or []
    if planted:
        return planted
    compute_ns: dict[int, int] = {}
    for step in truth["per_step"]:
        compute_ns[step["rank"]] = compute_ns.get(step["rank"], 0) + step["compute_ns"]
    return [max(compute_ns, key=lambda rank: compute_ns[rank])]


def _holds(given: list[float] | None, true_ns: float) -> bool:
    if not given or len(given) != 2:
        return False
    least, most = given
    return least <= true_ns <= most and most - least <= _MAX_WIDTH_RATIO * true_ns


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
