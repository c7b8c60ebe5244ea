"""What TensorFlow, JAX and PyTorch do each in a way of their own."""
