"""Profiles of any origin as one table of operations (`operations`), and what GPU kernels are."""
