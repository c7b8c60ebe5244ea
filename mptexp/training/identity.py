"""What a run was, beyond its parameters: two runs are compared only where this agrees.

A ratio between two policies says something of the policies only if nothing else differed. Names
and parameters do not show that a model's source was edited between two runs, that other images lay
in the same folder, or that a variable of the environment changed the arithmetic; this does.
"""

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mptexp.host.devices import cpu_name, cpu_version
from mptexp.host.project import PACKAGE
from mptexp.spec.backends import BACKEND_ROWS
from mptexp.spec.run import Run
from mptexp.training import capability, environment, machine_state

# What of mptexp runs in the Jupyter kernel and could change what is measured. Not the commit: most
# commits change what is written about a record, not what a run does.
IN_KERNEL = ("spec", "records", "traces", "training")
# Values of the environment's card that are part of the identity as they are.
FROM_CARD = ("device", "cpu", "cpu_version", "cores", "nice", "threads", "driver", "cuda", "cudnn")
# Which GPU of several, and the backend, are parameters of a run or chosen for it.
OF_THE_RUN = ("CUDA_VISIBLE_DEVICES", "KERAS_BACKEND")
LIMITS = ("container_cpus", "container_memory_bytes", "governor", "on_battery")


def identity(run: Run, card: Mapping[str, Any], effective: Mapping[str, Any]) -> dict[str, Any]:
    """The identity of a run, as plain JSON types; a digest is 12 hexadecimal digits.

    Args:
        card: see `environment.card`.
        effective: what was read back, with data, data_order, fed and initial_weights.
    """
    names = ("keras", "numpy", *BACKEND_ROWS[run.backend].packages)
    return {
        "code": code(),
        "notebook": os.environ.get("MPTEXP_NOTEBOOK_DIGEST", ""),
        "model_source": model_source(run.model),
        **{name: effective.get(name, "") for name in ("network", "products_flops")},
        "data": str(effective["data"]),
        "data_order": effective["data_order"],
        "fed": effective["fed"],
        "initial_weights": effective["initial_weights"],
        "versions": {name: card["packages"].get(name, "") for name in names},
        **{name: card[name] for name in FROM_CARD},
        "instruction_sets": " ".join(card["instruction_sets"]),
        "onednn": {True: "on", False: "off"}.get(card["onednn"]),
        "cpu_limits": {name: card[name] for name in LIMITS},
        "variables": variables(),
        "keras_config": keras_config(),
        "process": os.environ.get(
            "MPTEXP_PROCESS", "fresh"
        ),  # or forked, see execution.fork_client
    }


def beforehand(run: Run) -> dict[str, Any]:
    """The part of a run's identity that is known before its Jupyter kernel starts."""
    installed, state = environment.versions(), machine_state.state()
    names = ("keras", "numpy", *BACKEND_ROWS[run.backend].packages)
    return {
        "code": code(),
        "versions": {name: installed.get(name, "") for name in names},
        "cpu": cpu_name().removesuffix(" (CPU)"),
        "cpu_version": cpu_version(),
        "instruction_sets": " ".join(capability.instruction_sets()),
        "cores": machine_state.cores(),
        "nice": machine_state.nice(),
        "driver": capability.driver(),
        "cpu_limits": {name: state[name] for name in LIMITS},
        "variables": variables(),
        "keras_config": keras_config(),
    }


@cache
def code() -> str:
    """Digest of the files of mptexp that run in a Jupyter kernel."""
    files = [file for room in IN_KERNEL for file in sorted((PACKAGE / room).rglob("*.py"))]
    return _digest((file.relative_to(PACKAGE).as_posix(), file.read_bytes()) for file in files)


def model_source(model: str) -> str:
    """Digest of a user's model: its package and all that it imported from the user's own files.

    Empty for a model of mptexp's. Asked after the model was built, since a function may import. Of
    a file that is edited later it is what the first call read: what was imported is what runs.
    """
    if ":" not in model:
        return ""
    # Named by the last parts: the same files elsewhere are the same model.
    return _digest((path.name, _imported(path, spec)) for path, spec in _users_files(model))


def edited(model: str) -> str:
    """The name of a user's file that differs from what was imported of it; empty if none does."""
    read = [(path, *_read[path], spec) for path, spec in _users_files(model) if path in _read]
    changed = [
        p.name for p, was, content, spec in read if was is spec and p.read_bytes() != content
    ]
    return changed[0] if changed else ""


# Of each of the user's files the spec of its module, another one once it is imported anew, and what
# it held then.
_read: dict[Path, tuple[Any, bytes]] = {}


def _imported(path: Path, spec: Any) -> bytes:
    if path not in _read or _read[path][0] is not spec:
        _read[path] = (spec, path.read_bytes())
    return _read[path][1]


def _users_files(model: str) -> list[tuple[Path, Any]]:
    """The user's files among the modules, each with its module's spec, by path."""
    own = model.partition(":")[0].partition(".")[0]  # may be installed, and edited there
    known = {
        path: getattr(module, "__spec__", None)
        for name, module in list(sys.modules.items())
        if (path := _file(module)) and (name.partition(".")[0] == own or is_users(path))
    }
    return sorted(((p, spec) for p, spec in known.items() if p.is_file()), key=lambda f: f[0])


def _file(module: Any) -> Path | None:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    return _resolved(file) if os.path.isabs(file) else Path(file).resolve()


@cache  # there are thousands of modules, and this is asked four times in a run
def _resolved(file: str) -> Path:
    folder, name = os.path.split(file)
    return Path(file).resolve() if os.path.islink(file) else _folder(folder) / name


@cache
def _folder(folder: str) -> Path:
    return Path(folder).resolve()


def is_users(path: Path | None) -> bool:
    """Whether a file is neither Python's, an installed package's, mptexp's, nor TensorFlow's own.

    TensorFlow leaves a file of a random name for each function that it rewrites.
    """
    if path is None or path.name.startswith("__autograph_generated_file"):
        return False
    return not _is_installed(path.parent)


@cache
def _is_installed(folder: Path) -> bool:
    return any(folder.is_relative_to(root) for root in _installed())


@cache
def _installed() -> tuple[Path, ...]:
    places = {Path(place).resolve() for place in sysconfig.get_paths().values()}
    places |= {Path(entry).resolve() for entry in sys.path if "site-packages" in entry}
    # The folder of the interpreter holds scripts that are modules too, such as ipykernel's.
    return (*places, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), PACKAGE)


def variables() -> dict[str, str]:
    """What the environment said of arithmetic and threads before the run set what it asks for."""
    named = set(environment.VARIABLES) - set(OF_THE_RUN)
    return {name: value for name, value in sorted(environment.GIVEN.items()) if name in named}


def keras_config() -> dict[str, Any]:
    """What Keras's own configuration file says of numbers; empty values where there is none."""
    home = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
    try:
        known = json.loads((home / "keras.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    known = known if isinstance(known, dict) else {}
    return {name: known.get(name) for name in ("floatx", "epsilon", "image_data_format")}


def _digest(parts: Iterable[tuple[str, bytes]]) -> str:
    total = hashlib.sha256()
    for name, content in parts:
        total.update(f"{name}\0{len(content)}\0".encode() + content)
    return total.hexdigest()[:12]
