"""Traces of rounds: recorded once, then any policy scored on them without a model."""
