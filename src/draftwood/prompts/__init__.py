"""Prompt sets, and the units of work that commands make of them."""
