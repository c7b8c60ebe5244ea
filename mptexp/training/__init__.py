"""Inside the Jupyter kernel: the only package that imports a framework."""
