"""Takes out of records, notebooks and tracebacks where and by whom a run was made."""

import getpass
import re
import socket
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

# What stands under these keys stays as it is: it identifies the run, or is an image.
KEPT = ("parameters", "run_id", "notebook", "image/png")


@cache
def _private_names() -> list[tuple[re.Pattern[str], str]]:
    """What says where and by whom a run was made, and what stands in its place."""
    places = {str(Path.cwd()): ".", str(Path.home()): "~"}
    # The longer first: one may lie in the other.
    longest = sorted((p for p in places if len(p) > 1), key=len, reverse=True)
    found = [(re.compile(re.escape(p) + r"(?![\w.-])"), places[p]) for p in longest]
    host, user = re.escape(socket.gethostname()), re.escape(_user())
    found.append((re.compile(rf"\b{host}\b"), "<host>"))
    # A user's name may be any word; it is one only in a path or an address.
    found.append((re.compile(rf"(?<=[/@]){user}\b|\b{user}(?=@)"), "<user>"))
    return found


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user id
        return "nobody"


def scrub(value: Any) -> Any:
    """Text, or JSON data, without host name, user name, home directory and working directory.

    What stands under one of KEPT stays as it is.
    """
    if isinstance(value, str):
        for pattern, stand_in in _private_names():
            value = pattern.sub(stand_in, value)
        return value
    if isinstance(value, Mapping):
        return {k: v if k in KEPT else scrub(v) for k, v in value.items()}
    return [scrub(v) for v in value] if isinstance(value, list) else value
