"""Model a measured run and predict the effect of single changes."""
