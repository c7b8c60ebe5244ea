"""The step clock, sensors, measured peaks, layers alone and the profiler."""
