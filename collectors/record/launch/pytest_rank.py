"""Run one rank of a training recorded by a test, in its own process.

    python -m zprof.collectors.record.launch.pytest_rank FOLDER   RANK and WORLD_SIZE are in the environment

FOLDER contains the plan, a pickle written by the parent process, and receives failure reports. The ranks
rendezvous through a file in it, because another test could take a port.
"""

import faulthandler
import importlib.util
import json
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from zprof.base.errors import ZprofError

PLAN, STORE = "plan.pickle", "store"
#: Signal upon which a rank dumps its stack.
ASK = signal.SIGUSR1
_MAX_LINE_LENGTH = 300


class RankPlan(Struct, frozen=True, kw_only=True):
    """Work of each rank.

    ``train`` is the pickled function, which refers to its ``module``. The module is imported from ``file`` if
    its name does not resolve to that file.
    """

    module: str
    file: str
    train: bytes
    run: str
    schedule: bytes
    memory_mode: str
    backend: str
    timeout_s: float


def failure_path(folder: Path, rank: int) -> Path:
    """Return the path of a rank's failure: a JSON object with ``time_ns`` and ``line``."""
    return folder / f"failed{rank}.json"


def stack_path(folder: Path, rank: int) -> Path:
    """Return the path of a rank's stack dump, written by faulthandler upon the signal."""
    return folder / f"place{rank}.txt"


def main(arguments: Sequence[str]) -> int:
    """Run the plan as the rank given by the environment and return the exit code."""
    folder, rank = Path(arguments[0]), int(os.environ["RANK"])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    plan: RankPlan = pickle.loads((folder / PLAN).read_bytes())
    with stack_path(folder, rank).open("w") as stack_file:
        faulthandler.register(ASK, file=stack_file, all_threads=False)
        try:
            import torch.distributed as dist

            from zprof.collectors.record.recorder import record

            _import_module(plan.module, plan.file)
            train, schedule = pickle.loads(plan.train), pickle.loads(plan.schedule)
            dist.init_process_group(
                plan.backend,
                init_method=f"file://{folder / STORE}",
                rank=rank,
                world_size=int(os.environ["WORLD_SIZE"]),
            )
            train(partial(record, plan.run, steps=schedule, memory_mode=plan.memory_mode))
            if dist.is_initialized():  # the training may have destroyed its process group itself
                dist.barrier()  # the first rank to leave closes the connections of the others
                dist.destroy_process_group()
        except BaseException as error:
            # Print the traceback to stderr and write one line for the test.
            path = failure_path(folder, rank)
            now_ns = time.time_ns()
            traceback.print_exception(error)
            message = error.message if isinstance(error, ZprofError) else f"{type(error).__name__}: {error}"
            first_line = message.strip().splitlines()[0][:_MAX_LINE_LENGTH]
            # Describe the innermost frame in the test's own file.
            frames = [
                frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == plan.file
            ]
            location = f" ({Path(plan.file).name}:{frames[-1].lineno})" if frames else ""
            path.write_text(json.dumps({"time_ns": now_ns, "line": f"{first_line}{location}"}))
            return 1
        finally:
            faulthandler.unregister(ASK)
    return 0


def _import_module(name: str, file: str) -> None:
    """Import the function's module under its name, from ``file`` if necessary."""
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if not file or (found is not None and found.origin is not None and Path(found.origin) == Path(file)):
        return
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _end_with_parent() -> None:
    """Exit when the pipe to the test's process closes, even if that process was killed."""
    os.read(0, 1)  # not sys.stdin, whose lock the interpreter takes at exit
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
