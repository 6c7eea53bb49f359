"""Run a process, or code in one of its own, and measure its seconds and its peak memory."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[1]
#: Starts a command without its output, and prints its wall seconds, the processor seconds of it and of its
#: children, the peak KiB of the largest of them, and its exit code. It imports next to nothing: the kernel
#: counts the peak of the process that starts another as that of the other, and so nothing smaller than this
#: can be measured.
_LAUNCHER = """
import os, sys, time
silence = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
begin = time.perf_counter()
started = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=silence)
_, status, used = os.wait4(started, 0)
seconds = time.perf_counter() - begin
print(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss, os.waitstatus_to_exitcode(status))
"""
#: Runs code on the file in ``path``, which sets ``found``, and prints the figures of ``CodeUse``. ``VmHWM``
#: instead of ``ru_maxrss``, which starts with the peak of the parent process.
_CODE = """
import json, resource, sys, time, warnings
from pathlib import Path
warnings.simplefilter("ignore")
path = Path(sys.argv[1])
{before}
status = Path("/proc/self/status")
peak = lambda: int(status.read_text().partition("VmHWM:")[2].split()[0])
processor = lambda: time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
idle, begin, used = peak(), time.perf_counter(), processor()
{work}
seconds, used = time.perf_counter() - begin, processor() - used
child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps([seconds, used, idle, peak(), child, found]))
"""
_SAMPLE_INTERVAL_S = 0.01


class ProcessUse(Struct, frozen=True, kw_only=True):
    """What a command took: wall seconds, processor seconds with its children, and peak memory.

    ``peak_mib``: of the largest process. ``tree_peak_mib``: of all its processes at the same time; None if
    that was not sampled.
    """

    seconds: float
    cpu_s: float
    peak_mib: float
    tree_peak_mib: float | None = None


class CodeUse(Struct, frozen=True, kw_only=True):
    """What code took within its process; ``idle_mib``: the peak before it, ``found``: what it found."""

    seconds: float
    processor_s: float
    idle_mib: float
    peak_mib: float
    child_peak_mib: float
    found: int


def run_process(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path = ROOT,
    exit_code: int = 0,
    is_tree_sampled: bool = False,
) -> ProcessUse:
    """Run a command to its end and return what it took.

    The peak memory of one process is the kernel's own count, exact. That of several at the same time is
    sampled, each 10 ms while there are several: the sum of their PSS, which counts a page that two of them
    share once. Sampling takes time: seconds of such a run are not to be reported.

    Raises:
        RuntimeError: the command ended with another exit code.
    """
    launcher = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=dict(os.environ if environment is None else environment),
        start_new_session=True,
    )
    sampler = TreeSampler(launcher.pid) if is_tree_sampled else None
    output, errors = launcher.communicate()
    sampled_mib = None if sampler is None else sampler.stop()
    if launcher.returncode:
        raise RuntimeError(f"cannot start {command[0]}: {errors}")
    seconds, cpu_s, peak_kib, ended = output.split()
    if int(ended) != exit_code:
        raise RuntimeError(f"exit code {ended} instead of {exit_code}: {' '.join(command)}\n{errors}")
    peak_mib = int(peak_kib) / 1024
    return ProcessUse(
        seconds=float(seconds),
        cpu_s=float(cpu_s),
        peak_mib=peak_mib,
        tree_peak_mib=None if sampled_mib is None else max(peak_mib, sampled_mib),
    )


class TreeSampler:
    """Samples the memory of the processes of a session, while there are several beside its leader."""

    def __init__(self, session: int) -> None:
        self._session, self._peak_kib, self._ended = session, 0, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """Return the largest sum of PSS in MiB; 0 if there was never more than one process."""
        self._ended.set()
        self._thread.join()
        return self._peak_kib / 1024

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_INTERVAL_S):
            processes = _list_session(self._session)
            if len(processes) > 1:
                self._peak_kib = max(self._peak_kib, sum(map(_read_pss_kib, processes)))


def _list_session(session: int) -> list[Path]:
    """Return the folders in /proc of the processes of a session, without its leader."""
    return [
        path
        for path in Path("/proc").iterdir()
        if path.name.isdigit() and int(path.name) != session and _read_session(path) == session
    ]


def _read_session(process: Path) -> int | None:
    try:
        # "pid (name) state parent group session": the name may have spaces and brackets
        return int((process / "stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, IndexError):  # it has just ended
        return None


def _read_pss_kib(process: Path) -> int:
    try:
        return int((process / "smaps_rollup").read_text().partition("\nPss:")[2].split()[0])
    except (OSError, IndexError):
        return 0


def run_code(before: str, work: str, path: Path, environment: Mapping[str, str] | None = None) -> CodeUse:
    """Run ``work`` on a file in a process of its own, after ``before``, which is not measured."""
    done = subprocess.run(
        [sys.executable, "-c", _CODE.format(before=before, work=work), str(path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=dict(os.environ if environment is None else environment),
    )
    seconds, processor_s, idle_kib, peak_kib, child_kib, found = json.loads(done.stdout.splitlines()[-1])
    return CodeUse(
        seconds=seconds,
        processor_s=processor_s,
        idle_mib=idle_kib / 1024,
        peak_mib=peak_kib / 1024,
        child_peak_mib=child_kib / 1024,
        found=found,
    )
