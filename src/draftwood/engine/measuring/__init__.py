"""Measuring what rounds cost: the engine's own stages on real trees, timed and put into a cost profile."""
