"""From pending runs to records: plans, workers, Jupyter kernels, devices, clusters."""
