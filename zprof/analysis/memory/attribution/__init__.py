"""Attribute blocks of an allocator history without hooks to tenants, from tags, stacks, lifetimes and
sizes.
"""
