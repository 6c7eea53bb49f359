"""Tenants of the blocks of an allocator history that has no hooks: from tags, stacks, lifetimes and sizes."""
