"""Collectives that ran on a device: kernels and copies of NCCL, RCCL and others."""
