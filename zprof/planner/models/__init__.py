"""Describe models: presets, config.json of Hugging Face, and exact parameter counts."""
