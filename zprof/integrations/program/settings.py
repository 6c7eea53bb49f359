"""What ``zprof record`` was asked for, and how a child process hears of it: one environment variable."""

import json
import os
from collections.abc import MutableMapping
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "ZPROF_RECORD"
#: Goes in front of PYTHONPATH, so that each Python child runs the ``sitecustomize`` in it.
STARTUP = Path(__file__).parents[1] / "startup"
#: The folder that holds the package ``zprof``, for children that start elsewhere.
HOME = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSettings:
    """``session`` is a folder in which the children leave word; none where this process is the program."""

    run: str
    skip: int = 2
    memory: int = 2
    time: int = 8
    memory_mode: str = "full"
    init: bool = True
    session: str = ""
    home: str = str(HOME)

    def to_json(self) -> str:
        """As the variable holds it."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "ProgramSettings":
        """Raises ValueError or TypeError where it is not what :meth:`to_json` wrote."""
        return ProgramSettings(**json.loads(text))


def child_environment(settings: ProgramSettings) -> dict[str, str]:
    """This process's environment, and in it what starts the recorder in its Python children."""
    environment = dict(os.environ)
    before = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(STARTUP), *([before] if before else [])])
    environment[VARIABLE] = settings.to_json()
    return environment


def forget(environment: MutableMapping[str, str]) -> None:
    """Take it out again: the children of a process that records are none that train."""
    environment.pop(VARIABLE, None)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    rest = [path for path in paths if path != str(STARTUP)]
    if len(rest) == len(paths):
        return
    if rest:
        environment["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        del environment["PYTHONPATH"]
