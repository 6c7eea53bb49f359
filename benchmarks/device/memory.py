"""Measure a GPU's memory term by term in a small training that zprof records, and check the report.

Other cases leave frees waiting for a stream, or free pieces between used ones.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import zprof
from benchmarks.device.checks import CheckFailed
from zprof.analysis.memory.analyse import MemoryAnalysis, analyse_memory
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.model.memory import DeviceMemory

WIDTH, LAYERS, BATCH, CLASSES = 1024, 8, 8192, 1000
WARM_UP = 2
#: Relative to the allocator's own counter, and the share of the peak without an owner.
PEAK_TOLERANCE, UNTAGGED_RATIO = 0.01, 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """zprof's analysis of a recorded step, and of the same step's snapshot, dumped at its end and imported.

    ``counter_bytes``: the allocator's own peak over that step.
    """

    analysis: MemoryAnalysis
    imported: MemoryAnalysis
    counter_bytes: int

    @property
    def devices(self) -> dict[str, DeviceMemory]:
        """The GPU's memory terms by moment."""
        return {leaf.moment: leaf for leaf in self.analysis.memory.devices}


Program = tuple[nn.Module, torch.optim.Optimizer, Callable[[], torch.Tensor]]


def make_program(device: str, *, fused: bool = True) -> Program:
    """Return a model, its optimizer, and a forward pass that returns the loss."""
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    inputs = torch.randn(BATCH, WIDTH, device=device)
    labels = torch.randint(CLASSES, (BATCH,), device=device)
    return model, optimizer, lambda: F.cross_entropy(model(inputs), labels)


def record_step(
    folder: Path, *, fused: bool = True, after_forward: Callable[[], object] = object
) -> RecordedStep:
    """Train and record one step; what ``after_forward`` returns is kept until the step's end."""
    model, optimizer, loss = make_program("cuda", fused=fused)
    path, snapshot, counter = folder / "run.zprof", folder / "snapshot.pickle", 0
    with zprof.record(
        path, model=model, optimizer=optimizer, steps=zprof.steps(skip=WARM_UP, memory=1, time=0)
    ) as recording:
        for step in range(WARM_UP + 1):
            torch.cuda.reset_peak_memory_stats()
            value = loss()
            kept = after_forward() if step == WARM_UP else None
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            del value, kept
            if step == WARM_UP:
                counter = torch.cuda.max_memory_allocated()
                torch.cuda.memory._dump_snapshot(str(snapshot))  # type: ignore[no-untyped-call]
            recording.step()
    import_paths([snapshot], folder / "imported.zprof")
    return RecordedStep(
        analysis=analyse_memory(zprof.load(path)),
        imported=analyse_memory(zprof.load(folder / "imported.zprof")),
        counter_bytes=counter,
    )


def find_report_faults(run: RecordedStep) -> list[str]:
    """Return what is wrong with the report of a run."""
    memory = run.analysis.memory.per_rank[0]
    found = [line for leaf in run.analysis.memory.devices for line in find_identity_faults(leaf)]
    if set(run.devices) != {"allocated peak", "reserved peak"}:
        found.append(f"moments: {sorted(run.devices)}")
    if abs(memory.peak_bytes - run.counter_bytes) > PEAK_TOLERANCE * run.counter_bytes:
        found.append(f"peak {memory.peak_bytes}, the allocator counted {run.counter_bytes}")
    if memory.untagged_bytes > UNTAGGED_RATIO * memory.peak_bytes:
        found.append(f"untagged {memory.untagged_bytes} of {memory.peak_bytes}")
    imported = run.imported.memory.per_rank[0]
    if abs(memory.peak_bytes - imported.peak_bytes) > PEAK_TOLERANCE * memory.peak_bytes:
        found.append(f"peak {memory.peak_bytes}, of the snapshot {imported.peak_bytes}")
    return found


def find_identity_faults(leaf: DeviceMemory) -> list[str]:
    """Return where a device's terms are negative, unknown, or do not sum up."""
    terms = _terms(leaf)
    unknown = [name for name, size in terms.items() if size is None]
    negative = [name for name, size in terms.items() if size is not None and size < 0]
    found = [f"{leaf.moment}: {name} is unknown" for name in unknown]
    found += [f"{leaf.moment}: {name} is negative" for name in negative]
    total = sum(size or 0 for size in terms.values())
    if not unknown and total != leaf.reserved_bytes:
        found.append(f"{leaf.moment}: the terms sum to {total}, reserved are {leaf.reserved_bytes}")
    return found + _find_outside_faults(leaf)


def _terms(leaf: DeviceMemory) -> dict[str, int | None]:
    return {
        "live": leaf.live_bytes,
        "rounding": leaf.rounding_bytes,
        "awaiting free": leaf.awaiting_free_bytes,
        "split": leaf.split_bytes,
        "free segments": leaf.free_segments_bytes,
        "private pools": leaf.private_pools_bytes,
    }


def _find_outside_faults(leaf: DeviceMemory) -> list[str]:
    """Check terms outside the allocator; values missing in NVML are no fault: containers hide processes."""
    found = []
    for whole, parts in (
        (leaf.process_bytes, (leaf.reserved_bytes, leaf.collectives_bytes, leaf.context_bytes)),
        (leaf.device_used_bytes, (leaf.process_bytes, leaf.other_processes_bytes)),
    ):
        if whole is not None and _known(parts) and whole != sum(part or 0 for part in parts):
            found.append(f"{leaf.moment}: {parts} do not sum to {whole}")
    return found


def _known(parts: Sequence[int | None]) -> bool:
    return all(part is not None for part in parts)


AWAITED_BYTES = 256 << 20
#: Blocks of a size that shares a segment of 20 MiB with others; every second one is freed.
PIECE_BYTES, PIECES = 4 << 20, 64
BUSY_CYCLES = 2_000_000_000


def leave_free_waiting() -> object:
    """Free a block that another stream still uses."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    block = torch.empty(AWAITED_BYTES, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(side):
        torch.cuda._sleep(BUSY_CYCLES)  # type: ignore[no-untyped-call]
        block.record_stream(side)
    return None


def leave_fragments() -> object:
    """Leave free pieces between used ones."""
    pieces = [torch.empty(PIECE_BYTES, dtype=torch.uint8, device="cuda") for _ in range(PIECES)]
    return pieces[::2]


def measure_memory_identity() -> dict[str, Any]:
    """Return the memory terms of each case, and the figures of the same step's imported snapshot.

    Raises:
        CheckFailed: a term is negative or unknown, a sum is off, or the peak is not the allocator's own.
    """
    cases: Mapping[str, Mapping[str, Any]] = {
        "fused": {},
        "foreach": {"fused": False},
        "awaiting free": {"after_forward": leave_free_waiting},
        "fragments": {"after_forward": leave_fragments},
    }
    figures: dict[str, Any] = {}
    wrong: list[str] = []
    for name, options in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            run = record_step(Path(folder), **options)
        figures[name] = _collect_figures(run)
        wrong += [f"{name}: {line}" for line in find_report_faults(run)]
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    if wrong:
        raise CheckFailed("; ".join(wrong), figures)
    return figures


def _collect_figures(run: RecordedStep) -> dict[str, Any]:
    live, imported = run.analysis.memory.per_rank[0], run.imported.memory.per_rank[0]
    return {
        "devices": [asdict(leaf) for leaf in run.analysis.memory.devices],
        "counter_bytes": run.counter_bytes,
        "peak_bytes": live.peak_bytes,
        "tenants": dict(live.tenants),
        "untagged_bytes": live.untagged_bytes,
        "snapshot": {
            "peak_bytes": imported.peak_bytes,
            "tenants": dict(imported.tenants),
            "method": imported.method,
        },
        "gaps": [f"{gap.what}: {gap.reason}" for gap in run.analysis.gaps],
    }
