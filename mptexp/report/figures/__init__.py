"""Figures: each module draws those of its subject and has a row for each in its `FIGURES`."""
