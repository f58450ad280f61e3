"""Measuring: policies paired on the same prompts, under one clock and behind the output gate."""
