"""Where this package lies, and the checkout around it where there is one: for its notebooks."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
PROJECT = PACKAGE.parent
