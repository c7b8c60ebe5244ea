"""Takes out of records, notebooks and tracebacks where and by whom a run was made."""

import getpass
import html
import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import psutil

from mptexp.spec import dataset_paths

# What stands under these keys stays as it is: it identifies the run, or is an image.
KEPT = ("parameters", "run_id", "notebook", "image/png")
# Under these keys stands what anybody may have written: a host's name is taken out of it as any
# word. Elsewhere it may be a word that means something: a device, an optimizer.
FREE = ("error", "missing", "outputs")  # the second: why a trace was not read


@cache
def _private_names() -> list[tuple[re.Pattern[str], str]]:
    """What says where and by whom a run was made, and what stands in its place."""
    places = {str(Path.cwd()): ".", str(Path.home()): "~"}
    # The longer first: one may lie in the other.
    longest = sorted((p for p in places if len(p) > 1), key=len, reverse=True)
    found = [(re.compile(re.escape(p) + r"(?![\w.-])"), places[p]) for p in longest]
    found += [(re.compile(re.escape(secret)), "<secret>") for secret in _secrets()]
    found.append((re.compile(r"(?<=://)[^/\s@'\"<>]+(?=@)"), "<user>"))  # name:password@host
    own = "|".join(map(re.escape, _addresses()))
    found += [(re.compile(rf"(?<![\w.:])(?:{own})(?!\w|\.\d)"), "<address>")] if own else []
    host, user = _host(), re.escape(_user())
    # Either name may be any word; it is one only in a path or an address.
    found.append((re.compile(rf"(?<=[/@]){host}\b|\b{host}(?=:[\d/])"), "<host>"))
    found.append((re.compile(rf"(?<=[/@]){user}\b|\b{user}(?=@)"), "<user>"))
    return found


def _host() -> str:
    return re.escape(socket.gethostname())


SECRET = re.compile("(^|_)(TOKEN|SECRET|PASSW(OR)?D|(API|ACCESS|PRIVATE)_?KEY|CREDENTIAL)S?(_|$)")
SHORTEST = 8  # characters of a secret; a shorter value may be any word


def _secrets() -> list[str]:
    """Values of the environment variables whose names say that nobody may see them."""
    values = [value for name, value in os.environ.items() if SECRET.search(name.upper())]
    return sorted((v for v in values if len(v) >= SHORTEST), key=len, reverse=True)


def _addresses() -> list[str]:
    """The addresses of this machine in networks; those that it has for itself say nothing."""
    with suppress(OSError):  # not everywhere may they be asked
        known = chain.from_iterable(psutil.net_if_addrs().values())
        kinds = (socket.AF_INET, socket.AF_INET6)
        found = {a.address.partition("%")[0] for a in known if a.family in kinds}
        return sorted(a for a in found if not ipaddress.ip_address(a).is_loopback)
    return []


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user id
        return "nobody"


def without_path(value: Any, dataset: str) -> Any:
    """Text, or JSON data, with the last part alone wherever it names the path of a dataset."""
    forms = _forms(dataset)
    if not forms:
        return value
    written = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w./~-])(?:{written})(?![\w-])")
    last = dataset_paths.published(dataset).partition(":")[2]
    return dataset_paths.everywhere(
        value, lambda text: pattern.sub(lambda _: last, text), ("image/png",)
    )


def _forms(dataset: str) -> set[str]:
    """How a dataset's path may be written: as given, in full, followed, in Python and in HTML."""
    given = dataset_paths.path(dataset).rstrip("/")
    if not given:
        return set()
    whole = {given, os.path.normpath(given), dataset_paths.full(dataset)}
    with suppress(OSError, ValueError):  # no path that the system knows
        whole |= {os.path.realpath(dataset_paths.full(dataset))}
    coded = {form.encode("unicode_escape").decode().replace('"', '\\"') for form in whole}
    return {form for form in (*whole, *coded, *map(html.escape, whole)) if "/" in form.strip("/")}


def published_params(text: str) -> str:
    """The text of a params file as it may leave this machine: on a site, in an archive, a tracker.

    Of paths to data and notebook the last part, and as `scrub` leaves it.
    """
    from mptexp.spec import yaml_documents  # reads YAML, which no process of a run has need of

    return str(scrub(yaml_documents.published(text)))


def scrub(value: Any, free: bool = False) -> Any:
    """Text, or JSON data, without host name, user name, home directory and working directory.

    What stands under one of KEPT stays as it is.

    Args:
        free: whether it is text in which the host's name is no other word; under FREE all is.
    """
    if isinstance(value, Mapping):
        return {k: v if k in KEPT else scrub(v, free or k in FREE) for k, v in value.items()}
    if isinstance(value, str):
        return _scrubbed(value, free)
    return [scrub(v, free) for v in value] if isinstance(value, list) else value


def _scrubbed(text: str, free: bool) -> str:
    for pattern, stand_in in _private_names():
        text = pattern.sub(stand_in, text)
    return re.sub(rf"\b{_host()}\b", "<host>", text) if free else text
