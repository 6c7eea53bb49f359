"""Run the planner on real modules: count a user's model, and verify a plan on a rank with fake tensors."""
