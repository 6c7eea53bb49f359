"""What each rank of a simulated job does: its operations in the order in which its host enqueues them."""

import random
from collections.abc import Sequence

from msgspec import Struct

from benchmarks.hang_jobs.mesh import Group, Mesh

#: Steps of a program that are no operation of a group: the host waits for the device; the compute stream
#: waits for every operation before.
SYNC, JOIN = "sync", "join"
HIDDEN = 1024
TOKENS = 512


class Op(Struct, frozen=True, kw_only=True, gc=False):
    """One step of a rank's program.

    ``waits``: the compute stream waits for it, and so does all that is enqueued later. ``peer``: the global
    rank at the other end of a send or receive. ``parts``: the sends and receives of a coalesced operation.
    ``is_dead``: the network never delivers it.
    """

    kind: str
    group: Group | None = None
    in_sizes: list[list[int]] = []
    out_sizes: list[list[int]] = []
    dtype: str = "BFloat16"
    waits: bool = True
    site: str = "step"
    peer: int = -1
    parts: tuple["Op", ...] = ()
    is_dead: bool = False

    @property
    def is_collective(self) -> bool:
        """Whether all members of a group take part."""
        return self.group is not None and self.peer < 0 and not self.parts


class Shape(Struct, frozen=True, kw_only=True):
    """The sizes of a program. ``log_every``: steps from one report of the loss to the next; 0: none."""

    steps: int
    layers: int
    micro_batches: int
    buckets: int
    syncs_per_layer: bool = False
    is_batched: bool = False
    log_every: int = 0


Program = list[Op]


def draw_shape(rng: random.Random, mesh: Mesh, steps: int | None = None) -> Shape:
    """Return the sizes of a program, smaller for many ranks."""
    is_large = mesh.world > 64
    return Shape(
        steps=steps or rng.randint(2, 3 if is_large else 5),
        layers=rng.randint(1, 2 if is_large else 3),
        micro_batches=max(rng.randint(2, 4), mesh.pipeline),
        buckets=rng.randint(2, 5),
        syncs_per_layer=rng.random() < 0.4,
        is_batched=rng.random() < 0.3,
    )


def write_programs(
    rng: random.Random, mesh: Mesh, shape: Shape, ranks: Sequence[int] | None = None
) -> list[Program]:
    """Return the program of each rank, or of each of ``ranks``."""
    writers = {"ddp": _write_ddp_step, "fsdp": _write_fsdp_step, "pairs": _write_pair_step}
    write_step = writers.get(mesh.kind, _write_mesh_step)
    programs = []
    for rank in range(mesh.world) if ranks is None else ranks:
        program: Program = []
        for step in range(shape.steps):
            write_step(program, rng, mesh, shape, rank)
            if shape.log_every and step % shape.log_every == 0:
                program.append(reduce_all(mesh.of_rank[rank]["world"], [2], "Float", site="report"))
        program.append(Op(kind=JOIN))
        program.append(Op(kind=SYNC))
        programs.append(program)
    return programs


def _write_ddp_step(program: Program, rng: random.Random, mesh: Mesh, shape: Shape, rank: int) -> None:
    world = mesh.of_rank[rank]["world"]
    for bucket in range(shape.buckets):
        numel = 1_000_000 * (bucket + 1) + 40_320
        program.append(reduce_all(world, [numel], "Float", waits=False, site="backward"))
    program.append(Op(kind=JOIN))
    program.append(reduce_all(world, [1], "Float", site="log_loss"))
    program.append(Op(kind=SYNC))


def _write_fsdp_step(program: Program, rng: random.Random, mesh: Mesh, shape: Shape, rank: int) -> None:
    groups = mesh.of_rank[rank]
    shard, size = groups["shard"], len(groups["shard"].ranks)
    for layer in range(shape.layers + 1):
        program.append(gather(shard, [1_048_576 * (layer + 1) // size], site="forward"))
    for layer in reversed(range(shape.layers + 1)):
        numel = 1_048_576 * (layer + 1) // size
        program.append(gather(shard, [numel], site="backward"))
        program.append(reduce_scatter(shard, [numel], waits=False, site="backward"))
        if "replicate" in groups:
            program.append(reduce_all(groups["replicate"], [numel], "Float", waits=False, site="backward"))
    program.append(Op(kind=JOIN))
    program.append(reduce_all(groups["world"], [1], "Float", site="clip_gradients"))
    program.append(Op(kind=SYNC))


def _write_pair_step(program: Program, rng: random.Random, mesh: Mesh, shape: Shape, rank: int) -> None:
    """Append one step of a small script: activations within pairs, gradients among all."""
    groups = mesh.of_rank[rank]
    for layer in range(shape.layers):
        program.append(reduce_all(groups["pair"], [TOKENS, HIDDEN * (layer + 1)], "Float", site="forward"))
    if shape.is_batched:
        program.append(reduce_all(groups["world"], [1], "Float", site="loss"))
    for layer in reversed(range(shape.layers)):
        program.append(reduce_all(groups["pair"], [TOKENS, HIDDEN * (layer + 1)], "Float", site="backward"))
        program.append(reduce_all(groups["cross_pair"], [HIDDEN, HIDDEN * (layer + 1)], "Float", site="mix"))
    for bucket in range(shape.buckets):
        numel = 40_320 * (bucket + 1)
        waits = shape.syncs_per_layer
        program.append(reduce_all(groups["world"], [numel], "Float", waits=waits, site="gradients"))
    program.append(Op(kind=JOIN))
    program.append(reduce_all(groups["world"], [1], "Float", site="clip_gradients"))
    program.append(Op(kind=SYNC))


def _write_mesh_step(program: Program, rng: random.Random, mesh: Mesh, shape: Shape, rank: int) -> None:
    """Append one step of a 3D or expert mesh: 1F1B over the stages, then gradients and the optimizer."""
    groups = mesh.of_rank[rank]
    stage = rank // mesh.stage_size
    warm = min(mesh.pipeline - stage - 1, shape.micro_batches)
    steady = shape.micro_batches - warm
    before = rank - mesh.stage_size if stage > 0 else -1
    after = rank + mesh.stage_size if stage < mesh.pipeline - 1 else -1
    pipe = groups.get("pipeline")
    for _ in range(warm):
        _append_transfers(program, pipe, shape, recv=before, site="forward")
        _write_layers(program, rng, mesh, shape, rank, is_forward=True, reads_data=before < 0)
        _append_transfers(program, pipe, shape, send=after, site="forward")
    if steady:
        _append_transfers(program, pipe, shape, recv=before, site="forward")
    for micro_batch in range(steady):
        _write_layers(program, rng, mesh, shape, rank, is_forward=True, reads_data=before < 0)
        _append_transfers(program, pipe, shape, send=after, recv=after, site="steady")
        _write_layers(program, rng, mesh, shape, rank, is_forward=False, reads_data=False)
        is_last = micro_batch == steady - 1
        _append_transfers(program, pipe, shape, send=before, recv=-1 if is_last else before, site="steady")
    for _ in range(warm):
        _append_transfers(program, pipe, shape, recv=after, site="backward")
        _write_layers(program, rng, mesh, shape, rank, is_forward=False, reads_data=False)
        _append_transfers(program, pipe, shape, send=before, site="backward")
    for bucket in range(shape.buckets):
        if len(groups["data"].ranks) > 1:
            numel = 262_144 * (bucket + 1)
            program.append(reduce_scatter(groups["data"], [numel], "Float", waits=False, site="gradients"))
        if len(groups.get("expert_data", groups["tensor"]).ranks) > 1 and "expert_data" in groups:
            program.append(
                reduce_all(groups["expert_data"], [65_536], "Float", waits=False, site="gradients")
            )
    program.append(Op(kind=JOIN))
    program.append(reduce_all(groups["tensor"], [HIDDEN], "Float", site="layernorm_gradients"))
    program.append(reduce_all(groups["world"], [1], "Float", site="clip_gradients"))
    program.append(reduce_all(groups["model"], [2], "Float", site="check_inf"))
    program.append(Op(kind=SYNC))


def _write_layers(
    program: Program,
    rng: random.Random,
    mesh: Mesh,
    shape: Shape,
    rank: int,
    *,
    is_forward: bool,
    reads_data: bool,
) -> None:
    groups = mesh.of_rank[rank]
    tensor, site = groups["tensor"], "forward" if is_forward else "backward"
    if reads_data:
        program.append(_collect("broadcast", tensor, [1, TOKENS], [1, TOKENS], "Long", True, "get_batch"))
    for _ in range(shape.layers):
        program.append(gather(tensor, [TOKENS // mesh.tensor, 1, HIDDEN], site=site))
        if mesh.kind == "expert":
            _append_experts(program, rng, groups["expert"], shape, site)
        program.append(reduce_scatter(tensor, [TOKENS // mesh.tensor, 1, HIDDEN], site=site))


def _append_experts(program: Program, rng: random.Random, expert: Group, shape: Shape, site: str) -> None:
    program.append(gather(expert, [16], "Long", site="route"))
    if shape.syncs_per_layer:
        program.append(Op(kind=SYNC))
    # A rank receives what the router sends it: sizes differ between ranks, and that is no fault.
    received = TOKENS + rng.randint(-60, 60)
    program.append(_collect("all_to_all", expert, [TOKENS, HIDDEN], [received, HIDDEN], site=site))
    program.append(_collect("all_to_all", expert, [received, HIDDEN], [TOKENS, HIDDEN], site=site))


def _append_transfers(
    program: Program, pipe: Group | None, shape: Shape, *, site: str, send: int = -1, recv: int = -1
) -> None:
    """Append a send and a receive (a rank below 0: none), coalesced if the job batches them."""
    if pipe is None:
        return
    sizes = [[TOKENS, 1, HIDDEN]]
    parts = [
        Op(kind=kind, group=pipe, in_sizes=sizes, out_sizes=sizes, peer=peer, waits=kind == "recv", site=site)
        for kind, peer in (("send", send), ("recv", recv))
        if peer >= 0
    ]
    if shape.is_batched and parts:
        program.append(Op(kind="coalesced", group=pipe, parts=tuple(parts), site=site))
    else:
        program.extend(parts)


def reduce_all(group: Group, sizes: list[int], dtype: str, *, waits: bool = True, site: str) -> Op:
    """Return an all_reduce."""
    return _collect("all_reduce", group, sizes, sizes, dtype, waits, site)


def gather(group: Group, sizes: list[int], dtype: str = "BFloat16", *, site: str) -> Op:
    """Return an all_gather of ``sizes`` per rank."""
    return _collect(
        "_all_gather_base", group, sizes, [sizes[0] * len(group.ranks), *sizes[1:]], dtype, True, site
    )


def reduce_scatter(
    group: Group, sizes: list[int], dtype: str = "BFloat16", *, waits: bool = True, site: str
) -> Op:
    """Return a reduce_scatter that leaves ``sizes`` on each rank."""
    return _collect(
        "_reduce_scatter_base", group, [sizes[0] * len(group.ranks), *sizes[1:]], sizes, dtype, waits, site
    )


def _collect(
    kind: str,
    group: Group,
    in_size: list[int],
    out_size: list[int],
    dtype: str = "BFloat16",
    waits: bool = True,
    site: str = "step",
) -> Op:
    return Op(
        kind=kind, group=group, in_sizes=[in_size], out_sizes=[out_size], dtype=dtype, waits=waits, site=site
    )
