"""The cases: what stands in a folder, and what a user types there.

The jobs of :mod:`zprof.simulator` are the smallest ones whose planted cause is found, with all engines and
kinds of recordings among them.
"""

from collections.abc import Iterator

from benchmarks.frozen.inputs import (
    ROOT,
    SHARED,
    copy,
    copy_run,
    simulate_hang,
    simulate_hang_log,
    simulate_job,
    simulate_snapshot,
    write_text,
)
from benchmarks.frozen.run_case import Case

#: Cases with this prefix need ../shared/data.
SHARED_PREFIX = "shared-"

_RUNS = (
    "zprof-demo/zero3.zprof",
    "zprof-demo/ddp.zprof",
    "zprof-demo/zero3-prefetch.zprof",
    "run.zprof",
    "zero2.zprof",
    "zero3.zprof",
    "loop.zprof",
    "trainer.zprof",
)
_DEMO = tuple(copy_run(f"zprof-demo/{name}.zprof") for name in ("zero3", "ddp", "zero3-prefetch"))

#: Cause and seed.
_JOBS = {
    "needless_reshard_after_forward": 2,
    "data_loader": 10,
    "rate_limited_prefetch": 4,
    "last_unit_regathered": 30,
    "straggler_rank": 31,
    "rotating_straggler": 8,
    "offload_on_critical_path": 21,
    "copy_overhead": 38,
    "compute_blocks_comm": 18,
    "measurement_artifact": 10,
    "blocking_sync": 4,
    "single_unit": 34,
    "comm_slows_compute": 38,
    "allocator_retries": 37,
    "units_too_small": 6,
    "no_prefetch": 24,
    "cpu_bound_launch": 22,
    "fp32_reduce": 33,
    "fp32_gather": 31,
    "unhidden_optimizer_gather": 15,
    "latency_bound_collectives": 22,
    "accumulation_syncs": 37,
    "accumulation_regathers": 34,
    "checkpoint_regathers": 19,
    "sharding_spans_nodes": 1,
}
#: Kinds of recordings without a planted cause, each with the first seed.
_SHAPES = ("healthy", "skewed", "partial", "cut", "damaged", "inference", "several_steps")
#: Planted causes, seed, and the one that the baseline does not have.
_BEFORE_AFTER = (
    ("low_bus_bandwidth", 8, "low_bus_bandwidth"),
    ("lost_compute_efficiency", 35, "lost_compute_efficiency"),
    ("no_prefetch+straggler_rank", 8, "straggler_rank"),
    ("fp32_reduce+data_loader", 10, "data_loader"),
    ("blocking_sync+straggler_rank", 2, "blocking_sync"),
    ("fp32_gather+rotating_straggler", 11, "fp32_gather"),
    ("copy_overhead+no_prefetch", 1, "no_prefetch"),
)
#: Of zprof's own simulator: what the traces of jobs above do not have.
_SIMULATED = {
    "gloo": "--vendor gloo --ranks 2 --cause no_prefetch",
    "amd": "--vendor amd --stage 2 --ranks 4 --cause straggler_rank",
    "spans-nodes": "--ranks 4 --cause sharding_spans_nodes",
    "uneven": "--ranks 4 --cause uneven_shapes",
}
_HANGS = {
    "host_stuck": 4,
    "never_entered": 3,
    "skipped_and_shifted": 4,
    "different_collectives": 2,
    "mismatched": 9,
    "circular_wait": 1,
    "receive_cycle": 4,
    "device_stopped": 9,
    "not_finished": 6,
    "rank_died": 5,
    "shut_down": 6,
    "running": 4,
}
#: Fault, seed, version of the log, and how it was cut.
_HANG_LOGS = (
    ("never_entered", 3, "2.13", "complete"),
    ("never_entered", 3, "2.4", "one_rank"),
    ("rank_died", 5, "2.7", "torchrun_folder"),
    ("mismatched", 9, "2.10", "interleaved"),
    ("mismatched", 9, "nccl-2.21", "complete"),
    ("host_stuck", 4, "2.2", "two_lines"),
    ("not_finished", 6, "2.6", "wrapped"),
    ("different_collectives", 2, "2.5", "prefixed"),
)
_SNAPSHOTS = ("adamw_foreach", "mixed_deepspeed", "fsdp2", "lora", "checkpointed", "inference_kv_cache")

_PLANS = {
    "params": "--params 13e9 --dp 64",
    "llama": "--preset llama-3-8b --dp 8 --hardware h100 --sequence 8192",
    "sensitivity": "--preset 1t --dp 1024 --sensitivity",
    "checkpointing": "--preset 7.5b --dp 64 --hardware h100 --micro-batch 4 --sequence 1024 --checkpointing",
    "shape": "--layers 36 --hidden 4096 --dp 64 --hardware v100 --device-memory 16GB",
    "tensor": "--preset 60b --dp 25 --mp 16 --hardware v100 --partition-activations --checkpointing",
    "pipeline": "--preset llama-3-70b --dp 8 --mp 4 --pp 4 --micro-batch 1 --micro-batches 16",
    "one-stage": "--preset qwen2.5-7b --dp 16 --stage 3 --prefetch 2 --keep-last --assumptions",
    "too-large": "--preset llama-3-405b --dp 8 --hardware a100-40gb",
    "experts": "--preset mixtral-8x7b --dp 32 --hardware h200 --sequence 4096",
    "offload": "--preset 100b --dp 25 --mp 16 --checkpointing --partition-activations --offload-activations",
    "fp32-gloo": "--params 350e6 --dp 2 --precision fp32 --optimizer sgd --backend gloo --hardware a100",
    "buffers": "--preset 1.5b --dp 4 --hardware v100 --constant-buffers 5e8 --defragment --micro-batches 4",
    "file": "--preset llama-2-7b --dp 16 --hardware ours.toml --micro-batch 2 --sequence 4096",
}
_HARDWARE = 'base = "a100"\nname = "ours"\nmemory_gb = 64\ndevices_per_node = 4\n'
_CHANGES = {
    "stage": "--stage 2",
    "link": "--prefetch 2 --bandwidth x2 --latency x0.5",
    "keep": "--keep all",
    "units": "--merge-units 2 --reduce-bytes 2",
    "batch": "--micro-batches 2 --even",
    "shards": "--shard-ranks 2 --assumptions",
}
#: On the demo's runs, one after the other in a folder.
_CHECKS = {
    "limits": (
        "check zero3.zprof --peak-memory 10MiB --untagged-ratio 0.1% --tenant activations=8MiB",
        "check ddp.zprof --peak-memory 64MiB --collective-count 48",
    ),
    "baseline-file": (
        "baseline save zero3.zprof -o kept.json",
        "baseline show kept.json",
        "check zero3.zprof --baseline kept.json --require-baseline",
        "check zero3-prefetch.zprof --baseline kept.json",
        "baseline update zero3-prefetch.zprof kept.json",
    ),
    "baseline-run": (
        "check zero3.zprof --baseline zero3-prefetch.zprof --step-time +3%@0.95 --exposed-wait +10%",
        "check zero3.zprof --baseline zero3-prefetch.zprof --exposed-ratio +3pt",
        "check zero3.zprof --baseline zero3-prefetch.zprof --overlap-ratio=-5pt --github",
    ),
    "other-conditions": (
        "check zero3.zprof --baseline ddp.zprof",
        "check zero3.zprof --baseline ddp.zprof --any-conditions",
    ),
    "refused": (
        "check zero3.zprof --require-baseline",
        "check zero3.zprof --baseline missing.json",
        "check zero3.zprof --peak-memory much",
        "check missing.zprof",
        "check zero3.zprof --config limits.toml",
    ),
    "formula": ("check zero3.zprof --collective-bytes-law '3 psi' --stage 3 --config limits.toml",),
}
_LIMITS = '[check]\npeak_memory = "24 MiB"\noverlap_ratio = ">=0.7"\n'


def list_own_cases() -> list[Case]:
    """Return the cases whose inputs are in the repository or simulated."""
    return [
        *_list_run_cases(),
        *_list_job_cases(),
        *(
            Case(
                name=f"simulate-{name}",
                commands=(f"simulate -o traces {options} --seed 7", "report traces", "diagnose traces"),
            )
            for name, options in _SIMULATED.items()
        ),
        *(
            Case(name=f"hang-{fault}", inputs=(simulate_hang(seed, fault),), commands=("hang dumps",))
            for fault, seed in _HANGS.items()
        ),
        *(
            Case(
                name=f"hang-log-{fault}-{version}-{cut}",
                inputs=(simulate_hang_log(seed, fault, version, cut),),
                commands=("hang log",),
            )
            for fault, seed, version, cut in _HANG_LOGS
        ),
        *_list_snapshot_cases(),
        *(
            Case(
                name=f"plan-{name}",
                inputs=(write_text("ours.toml", _HARDWARE),),
                commands=(f"plan {options}",),
            )
            for name, options in _PLANS.items()
        ),
        Case(
            name="lists", commands=("explain --list", "plan --preset list", "explain ZP301", "explain ZP999")
        ),
    ]


def _list_run_cases() -> Iterator[Case]:
    for path in _RUNS:
        run = path.split("/")[-1]
        yield Case(
            name="run-" + path.replace("/", "-").removesuffix(".zprof"),
            inputs=(copy_run(path),),
            commands=(f"report {run}", f"diagnose {run}", f"whatif {run}", f"check {run}"),
        )
    for run, baseline in (("zero3", "ddp"), ("zero3-prefetch", "zero3"), ("ddp", "zero3")):
        pair = f"{run}.zprof {baseline}.zprof"
        yield Case(
            name=f"pair-{run}-{baseline}",
            inputs=_DEMO,
            commands=(
                f"report {pair}",
                f"diagnose {pair}",
                f"compare {baseline}.zprof {run}.zprof",
                f"compare {baseline}.zprof {run}.zprof --all",
            ),
        )
    yield Case(
        name="other-formats",
        inputs=_DEMO,
        commands=(
            "report zero3.zprof ddp.zprof -o ci.sarif -o ci.xml -o memory.svg",
            "diagnose zero3.zprof ddp.zprof -o diagnosis.html",
            "report zero3.zprof --only memory",
            "report zero3.zprof --only time",
            "diagnose zero3.zprof --window trace",
            "diagnose zero3.zprof -f json",
            "diagnose missing.zprof",
        ),
    )
    for name, options in _CHANGES.items():
        yield Case(name=f"whatif-{name}", inputs=_DEMO, commands=(f"whatif zero3.zprof {options}",))
    for name, commands in _CHECKS.items():
        inputs = (*_DEMO, write_text("limits.toml", _LIMITS))
        yield Case(name=f"check-{name}", inputs=inputs, commands=commands)
    yield Case(
        name="check-engine",
        inputs=(copy_run("zprof-demo/zero3.zprof"), copy(ROOT / "zprof-baseline.json")),
        commands=("check zero3.zprof --baseline zprof-baseline.json --any-conditions",),
    )


def _list_job_cases() -> Iterator[Case]:
    read = ("report job", "diagnose job")
    for cause, seed in _JOBS.items():
        yield Case(name=f"job-{cause}", inputs=(simulate_job(seed, cause),), commands=read)
    for shape in _SHAPES:
        yield Case(name=f"job-{shape}", inputs=(simulate_job(1, None, shape),), commands=read)
    yield Case(
        name="job-uneven_shapes",
        inputs=(simulate_job(25, "uneven_shapes"),),
        commands=("report job --stage 3 --parameters 680665536",),
    )
    for planted, seed, changed in _BEFORE_AFTER:
        yield Case(
            name=f"before-{planted}-without-{changed}".replace("+", "-"),
            inputs=(simulate_job(seed, planted, without=changed),),
            commands=("report job before", "diagnose job before", "compare before job"),
        )


def _list_snapshot_cases() -> Iterator[Case]:
    for variant in _SNAPSHOTS:
        yield Case(
            name=f"snapshot-{variant}",
            inputs=(simulate_snapshot(1, variant),),
            commands=("report snapshot.pickle", "diagnose snapshot.pickle"),
        )
    yield Case(
        name="snapshot-pair",
        inputs=(
            simulate_snapshot(1, "adamw_foreach", "before.pickle"),
            simulate_snapshot(1, "checkpointed", "after.pickle"),
        ),
        commands=("compare before.pickle after.pickle", "diagnose after.pickle before.pickle"),
    )


def list_shared_cases() -> list[Case]:
    """Return a case for each trace, snapshot, folder of dumps and log of ../shared/data that is there."""
    read = ("report {name}", "diagnose {name}")
    kinds = (
        ("traces", "*", read),
        ("snapshots", "*.pickle", read),
        ("nsight", "*", ("diagnose {name}",)),
        ("flight_recorder", "*", ("hang {name}", "report {name}")),
        ("watchdog_logs", "*.log", ("hang {name}",)),
        ("watchdog_logs", "torchrun_logs", ("hang {name}",)),
    )
    cases = []
    for kind, pattern, commands in kinds:
        for path in sorted((SHARED / kind).glob(pattern)):
            lines = tuple(command.format(name=path.name) for command in commands)
            name = f"{SHARED_PREFIX}{kind}-{path.name}"
            cases.append(Case(name=name, inputs=(copy(path),), commands=lines))
    return cases
