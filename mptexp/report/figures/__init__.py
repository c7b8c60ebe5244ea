"""Figures: a row for each kind in `registry`, drawn by the module of its subject."""
