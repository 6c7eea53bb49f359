"""Record the runs of docs/frameworks: programs of tests/programs, with the frameworks' own launchers.

They need the extra ``frameworks``. The runs stand beside the others in docs/pictures/runs.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from docs.tools.examples import ROOT, select_notes
from docs.tools.recordings import OUTPUTS, RUNS, shorten_paths

_PROGRAMS = ROOT / "tests/programs"
#: Names of the programs on the pages.
_FILES = {
    "train.py": "deepspeed_zero.py",
    "loop.py": "accelerate_loop.py",
    "trainer.py": "hf_trainer.py",
    "zero2.yaml": "accelerate_deepspeed.yaml",
    **{name: name for name in ("parts.py", "plants.py", "walk.py")},
}
#: What is typed on the pages, by the name of its run.
COMMANDS = {
    "zero2": "zprof record -o zero2.zprof -- deepspeed --num_accelerators 2 train.py --stage 2 --groups 2",
    "zero3": "zprof record -o zero3.zprof -- torchrun --nproc-per-node 2 train.py --stage 3 --groups 2",
    "loop": "zprof record -o loop.zprof -- accelerate launch --config_file zero2.yaml loop.py",
    "trainer": "zprof record -o trainer.zprof -- torchrun --nproc-per-node 2 trainer.py "
    "--sharding deepspeed3 --micro-batches 2",
}


def record_framework_runs() -> None:
    """Replace the runs of the frameworks by new recordings; takes about five minutes."""
    outputs = json.loads(OUTPUTS.read_text(encoding="utf-8"))
    for name, command in COMMANDS.items():
        with tempfile.TemporaryDirectory() as folder_name:
            folder = Path(folder_name)
            for target, source in _FILES.items():
                shutil.copy(_PROGRAMS / source, folder / target)
            outputs[command] = _record(command, folder)
            run = folder / f"{name}.zprof"
            shorten_paths(run, folder)
            shutil.rmtree(RUNS / run.name, ignore_errors=True)
            shutil.copytree(run, RUNS / run.name)
    OUTPUTS.write_text(json.dumps(outputs, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _record(command: str, folder: Path) -> str:
    tools = str(Path(sys.executable).parent)
    environment = os.environ | {
        "COLUMNS": "80",
        "DS_ACCELERATOR": "cpu",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "STEPS": "16",
    }
    arguments = [sys.executable, "-m", *command.split()]
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return select_notes(done.stderr).replace(f"{folder}/", "")


if __name__ == "__main__":
    record_framework_runs()
