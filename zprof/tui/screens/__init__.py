"""The screens, one file each: widgets, layout and keys. What they show comes from `presenters`."""
