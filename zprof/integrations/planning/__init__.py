"""The planner's looks at real modules: a user's model counted, a plan held against a rank without memory."""
