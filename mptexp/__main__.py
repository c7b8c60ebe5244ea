"""`python -m mptexp` is the same as `mptexp`."""

from mptexp.cli import main

if __name__ == "__main__":
    main()
