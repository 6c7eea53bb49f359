"""Private names of torch are used in one module of the collectors, and this torch has all of them."""

import ast
from pathlib import Path

import torch

from zprof.collectors.record import torch_private

ROOT = Path(__file__).parents[4]


def private_names(path: Path) -> set[str]:
    """Return ``torch._C`` and the like, as far as a module names them by their path or imports them."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            name = ast.unparse(node)
            names |= {name} if name.startswith("torch.") and not name.startswith("torch.ops.") else set()
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "torch":
            whole = [f"{node.module}.{each.name}" for each in node.names]
            names |= {name for name in whole if "._" in name}
    return names


def test_only_one_module_of_the_collectors_uses_private_names() -> None:
    folders = (ROOT / "collectors", ROOT / "zprof/integrations")
    used = {path: private_names(path) for folder in folders for path in folder.rglob("*.py")}
    assert used.pop(ROOT / "collectors/record/torch_private.py")
    assert {path: names for path, names in used.items() if names} == {}


def test_this_torch_has_them() -> None:
    before = torch_private.get_saving_functions()
    assert torch_private.current_graph_task_id() == -1
    assert torch_private.get_innermost_saving_hooks() is None
    assert torch_private.is_outside_modes()
    assert not torch_private.is_profiler_running()
    assert torch_private.profile_all_threads_config() is not None
    assert torch_private.process_group_class() is torch.distributed.ProcessGroup
    assert torch_private.work_class() is torch.distributed.Work
    assert callable(torch_private.get_run_backward())
    torch_private.set_saving_functions(before)
    assert torch_private.get_saving_functions() == before
