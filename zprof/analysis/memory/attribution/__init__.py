"""Find the tenants of blocks in an allocator history without hooks: tags, stacks, lifetimes and sizes."""
