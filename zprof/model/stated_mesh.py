"""Read the roles of process groups from a mesh that the user states, such as pp=4,dp=2,tp=8.

The sizes are those of torch's ``init_device_mesh``: outermost first, so that neighboring ranks differ in the
last dimension. ``ep`` is no dimension of its own: experts divide the shards, with their contexts
(Megatron-Core; torchtitan with etp = tp), or with their contexts and tensor ranks as well (etp = 1).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from math import prod

from zprof.base.errors import BadInput
from zprof.base.parsing import MESH_NAMES
from zprof.model.mesh import GroupRole

#: Sizes by dimension, outermost first.
StatedMesh = tuple[tuple[str, int], ...]

_EXPERT = "ep"
_ROLES: Mapping[str, GroupRole] = {
    "pp": GroupRole.PIPELINE,
    "dp": GroupRole.SHARD,
    "dp_replicate": GroupRole.REPLICA,
    "dp_shard": GroupRole.SHARD,
    "cp": GroupRole.CONTEXT,
    "tp": GroupRole.TENSOR,
}
#: Dimensions whose ranks may share states, and among which experts are distributed.
_SHARDS = frozenset({"dp", "dp_shard", "cp"})


def format_mesh(mesh: StatedMesh) -> str:
    """Return "pp=4,dp=2,tp=8"."""
    return ",".join(f"{name}={size}" for name, size in mesh)


def check_mesh(mesh: StatedMesh, world_size: int) -> None:
    """Check that a mesh has as many ranks as the job.

    Raises:
        BadInput: Its dimensions are unknown, repeated or exclude each other, or its sizes do not fit the job.
    """
    sizes = dict(mesh)
    text = format_mesh(mesh)
    if len(sizes) < len(mesh) or not sizes.keys() <= set(MESH_NAMES) or min(sizes.values(), default=1) < 1:
        raise BadInput(f"mesh {text}: expected {', '.join(MESH_NAMES)}, each once, with sizes from 1")
    if "dp" in sizes and ("dp_shard" in sizes or "dp_replicate" in sizes):
        raise BadInput(f"mesh {text}: dp excludes dp_shard and dp_replicate", hint="state dp_shard for dp")
    ranks = prod(_list_sizes(mesh).values())
    if ranks != world_size:
        raise BadInput(
            f"mesh {text}: {ranks:,} ranks, but the job has {world_size:,}",
            hint="sizes multiply to the number of ranks; ep divides dp and does not count",
        )
    shards = prod(size for name, size in sizes.items() if name in _SHARDS)
    if shards * sizes.get("tp", 1) % sizes.get(_EXPERT, 1):
        raise BadInput(
            f"mesh {text}: ep={sizes[_EXPERT]} does not divide dp, cp and tp", hint="choose another ep"
        )


def list_stated_roles(mesh: StatedMesh, ranks: Collection[int]) -> tuple[GroupRole, ...]:
    """Return the roles that a group of these ranks may have in a mesh, the likeliest first.

    Empty if the ranks are not all that differ in one or several dimensions. Experts and shards may have the
    same ranks.
    """
    sizes, places = _list_sizes(mesh), [_locate(mesh, rank) for rank in ranks]
    varied = frozenset(name for name in sizes if len({place[name] for place in places}) > 1)
    roles = [*_read_line(varied)] if prod(sizes[name] for name in varied) == len(places) else []
    roles += _read_expert_line(mesh, varied, places)
    return tuple(dict.fromkeys(roles))


def _list_sizes(mesh: StatedMesh) -> dict[str, int]:
    """Return the sizes of the dimensions that multiply to the number of ranks."""
    return {name: size for name, size in mesh if name != _EXPERT}


def _locate(mesh: StatedMesh, rank: int) -> dict[str, int]:
    """Return the coordinates of a rank."""
    place = {}
    for name, size in reversed(_list_sizes(mesh).items()):
        rank, place[name] = divmod(rank, size)
    return place


def _read_line(varied: frozenset[str]) -> Iterator[GroupRole]:
    """Yield the roles of groups that extend over whole dimensions."""
    if len(varied) == 1:
        yield _ROLES[next(iter(varied))]
    elif varied <= _SHARDS | {"dp_replicate"}:
        yield GroupRole.SHARD
    else:
        yield GroupRole.OTHER
    if varied <= {"dp", "cp"} and "dp" in varied:
        yield GroupRole.REPLICA  # plain data parallelism


def _read_expert_line(
    mesh: StatedMesh, varied: frozenset[str], places: Iterable[Mapping[str, int]]
) -> Iterator[GroupRole]:
    """Yield the roles of groups that extend over experts, or over the ranks with the same experts."""
    sizes, experts = _list_sizes(mesh), dict(mesh).get(_EXPERT, 1)
    if experts == 1:
        return
    tensor = sizes.get("tp", 1)
    for pool, each in ((_SHARDS, 1), (_SHARDS | {"tp"}, 1), (_SHARDS | {"tp"}, tensor)):
        numbers = set()
        for place in places:
            number = 0
            for name, size in sizes.items():
                number = number * size + place[name] if name in pool else number
            numbers.add(number)
        whole, block = prod(size for name, size in sizes.items() if name in pool), experts * each
        if not varied <= pool or whole % block:
            continue
        if len(numbers) == block and len({number // block for number in numbers}) == 1:
            yield GroupRole.EXPERT
        if each == 1 and len(numbers) == whole // block and len({number % block for number in numbers}) == 1:
            yield GroupRole.SHARD
