"""Number formats emulated in a training, and where its numbers lie."""
