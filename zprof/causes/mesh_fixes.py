"""Choose the fix of a job with several kinds of parallelism, by the program that made its process groups."""

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.model.mesh import Mesh

_TITLES = {
    "megatron": "Megatron-Core",
    "torchtitan": "torchtitan",
    "deepspeed": "DeepSpeed",
    "fsdp2": "PyTorch",
}


class MeshFix(Struct, frozen=True, kw_only=True):
    """What to change, by framework; empty if the framework has no such setting. ``general``: for all."""

    megatron: str = ""
    torchtitan: str = ""
    deepspeed: str = ""
    fsdp2: str = ""
    general: str = ""


def choose_mesh_fix(analysis: RunAnalysis, fix: MeshFix) -> str:
    """Return the form for the run's framework, or all forms with their titles if it is unknown."""
    known = _find_framework(analysis.time.mesh, analysis.training.engine)
    if known and (form := getattr(fix, known)):
        return "\n".join(filter(None, (form, fix.general)))
    forms = [f"{title}: {form}" for name, title in _TITLES.items() if (form := getattr(fix, name))]
    return "\n".join(filter(None, (*forms, fix.general)))


def _find_framework(mesh: Mesh | None, engine: str) -> str:
    """Return the framework by the descriptions of its groups, which follow ``#`` in their names."""
    if "deepspeed" in engine.lower():
        return "deepspeed"
    descriptions = [group.group.partition("#")[2] for group in mesh.groups] if mesh is not None else []
    if any("_PARALLEL_GROUP" in description for description in descriptions):
        return "megatron"
    return ""
