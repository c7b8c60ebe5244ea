"""The computer below everything: devices, files, limits, signals, terminal, this installation."""
