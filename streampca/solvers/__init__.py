"""Straight-line algorithms: ask for a few passes, turn the result into a model."""
