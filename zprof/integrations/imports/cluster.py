"""A Dask cluster as an executor: ``--executor dask://host:port``."""

import contextlib
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from zprof.model.errors import BadInput

_ADDRESS = re.compile(r"dask://([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):(\d{1,5})")
#: What a cluster needs that the user may not think of.
SHARED_DISK = "the cluster needs the traces and the run on a file system that it shares with this machine"
_CONNECT_S = 10.0
_WORKERS_S = 30.0


@contextmanager
def dask_executor(address: str) -> Iterator[tuple[Executor, Callable[[], None]]]:
    """The executor of a cluster that runs, and what raises BadInput when it has no workers any more.

    Raises:
        BadInput: the address is none, ``distributed`` is not installed, the scheduler cannot be reached, or
            it has no workers.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise BadInput(f"--executor {address}: not an executor", hint="give dask://HOST:PORT")
    with contextlib.closing(_client(address, f"tcp://{match[1]}:{match[2]}")) as client:
        _wait_for_workers(client, address)
        # not pure: the same file may have changed since the cluster last read it
        yield client.get_executor(pure=False, retries=0), lambda: _check_alive(client, address)


def _client(address: str, tcp: str) -> Any:
    try:
        import distributed
    except ImportError:
        message = f"--executor {address}: distributed is not installed"
        raise BadInput(message, hint="pip install 'zprof[dask]'") from None
    connect: Any = distributed.Client
    try:
        return connect(tcp, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        message = f"--executor {address}: no scheduler answers ({type(error).__name__})"
        raise BadInput(message, hint="start one with dask scheduler, and workers with dask worker") from None


def _wait_for_workers(client: Any, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=_WORKERS_S)
    except TimeoutError:
        raise _no_workers(address) from None


def _check_alive(client: Any, address: str) -> None:
    """Without a worker, or without a scheduler, tasks would be waited for without end."""
    try:
        workers = client.nthreads()
    except (OSError, TimeoutError, ValueError) as error:
        message = f"--executor {address}: the scheduler is gone ({type(error).__name__})"
        raise BadInput(message, hint="start the import again") from None
    if not workers:
        raise _no_workers(address)


def _no_workers(address: str) -> BadInput:
    return BadInput(f"--executor {address}: the cluster has no workers", hint="start some with dask worker")
