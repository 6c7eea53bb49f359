"""What runs in the planner's child process: modules on tensors that have shapes and no memory."""
