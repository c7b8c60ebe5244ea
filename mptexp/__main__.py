"""`python -m mptexp` is the same as `mptexp`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working directory, whose pandas.py nobody has asked for

    from mptexp.cli import main

    main()
