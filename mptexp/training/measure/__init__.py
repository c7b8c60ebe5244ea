"""The step clock, sensors, measured peaks and the profiler."""
