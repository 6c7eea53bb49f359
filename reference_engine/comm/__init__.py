"""How ranks exchange tensors: one seam, and two transports behind it."""

from zprof.reference_engine.comm.base import Comm, Handle
from zprof.reference_engine.comm.modelled import LinkModel, ModelledComm
from zprof.reference_engine.comm.native import NativeComm

__all__ = ["Comm", "Handle", "LinkModel", "ModelledComm", "NativeComm"]
