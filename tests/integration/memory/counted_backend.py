"""A compiler backend that counts: how many graphs it compiled, and how often compiled code ran."""

from collections.abc import Callable
from typing import Any

import torch


class CountedBackend:
    """Hands over to a backend of torch."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.graphs = 0
        self.runs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        compiled = torch._dynamo.lookup_backend(self._name)(graph, inputs)
        self.graphs += 1

        def run(*arguments: Any) -> Any:
            self.runs += 1
            return compiled(*arguments)

        return run

    def proof(self) -> dict[str, int]:
        """For the test: watched steps run the graphs of the steps before them, and compile none."""
        return {"compiled_graphs": self.graphs, "compiled_runs": self.runs}
