"""Reading a params file: YAML 1.2 with line numbers, checked as types before any kernel starts."""

import copy
import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from ruamel.yaml.error import YAMLError

from mptexp.errors import ParamsError
from mptexp.host import files, project
from mptexp.host.devices import local_devices, same_model
from mptexp.spec import dataset_paths, feasible, strict_model, yaml_documents
from mptexp.spec.grid import Sweep
from mptexp.spec.run import Run

Where = tuple[str | int, ...]
SET = "Set when it was run"  # opens the comment that names what replaced a file's values
GIVEN = [name for name in Run.model_fields if name != "block"]  # blocks come from repeats


def read(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), to_run: bool = False
) -> tuple[Sweep, str]:
    """The sweep of a params file, and the text of the file as it will be executed.

    Args:
        path: the YAML 1.2 file.
        overrides: `key=value` strings; each sets a parameter of all points, those of `include`
            among them, or a top-level key. A list makes an axis of it. Their order does not
            matter, but of two for one key the last counts.
        to_run: whether points that cannot work with the data that lie here are refused as well.

    Raises:
        ParamsError: one line per fault, each with file, line, what was given, what is allowed.
    """
    return parse(_read_text(Path(path)), str(path), overrides, to_run)


def parse(
    text: str, name: str, overrides: Sequence[str] = (), to_run: bool = False
) -> tuple[Sweep, str]:
    """The same as `read` for the text of a params file; `name` stands for the file in messages."""
    document = _parse(text, name)
    document = yaml_documents.spread(document) if overrides else document
    faults = _Faults(name, document)
    for key, value in _given(overrides, faults):
        _override(document, key, value, faults)
    faults.raise_if_any()
    sweep = _validate(document, faults)
    if to_run:
        _check_devices(sweep, faults)
        _check_feasible(sweep, faults)
    if not overrides:
        return sweep, text
    made = yaml_documents.dump(document)
    if not yaml_documents.opening(made):  # as where `---` follows them
        made = yaml_documents.opening(text) + made
    return sweep, _told(made, faults.overridden)


def _told(text: str, names: Iterable[str]) -> str:
    """The text with the names that were set in its opening comments, which speak of the file's own.

    Not their values: they stand below, and a path is not to be published.
    """
    known = header(text).get(SET.lower(), "")
    told = f"# {SET}: {', '.join(sorted({*filter(None, known.split(', ')), *names}))}"
    opening = yaml_documents.opening(text)
    kept = [line for line in opening.split("\n")[:-1] if not line.startswith(f"# {SET}: ")]
    return "\n".join([*kept, told, text[len(opening) :]])


def text(sweep: Sweep) -> str:
    """The text of a params file that asks for a sweep."""
    return yaml_documents.dump(sweep.model_dump(exclude_defaults=True))


def _read_text(path: Path) -> str:
    try:
        return files.text(path)
    except FileNotFoundError:
        beside = _siblings(path)
        near = difflib.get_close_matches(path.name, [*beside, *project.studies()], 1)
        # A study's name leads to it from anywhere.
        meant = [path.parent / name if name in beside else name for name in near]
        hint = f"; did you mean {meant[0]}?" if meant else ""
        raise ParamsError(
            f"{path}: no such file; give the path of a params file or a study's name{hint}"
        ) from None
    except IsADirectoryError:
        raise ParamsError(f"{path}: is a directory; give the path of a params file") from None
    except OSError as error:
        raise ParamsError(f"{path}: cannot be read as a params file: {error.strerror}") from None


def _siblings(path: Path) -> list[str]:
    return [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []


def _parse(text: str, name: str) -> Any:
    try:
        document = yaml_documents.load(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = (getattr(error, "problem", None) or str(error)).splitlines()[0]
        kind = "" if isinstance(error, yaml_documents.DocumentError) else "is not valid YAML: "
        raise ParamsError(f"{name}{line}: {kind}{problem}") from None
    if document is None:
        raise ParamsError(f"{name}: is empty; a params file has at least a matrix, see README")
    if not isinstance(document, dict):
        given = type(yaml_documents.plain(document)).__name__
        raise ParamsError(f"{name}:1: is a {given}; a params file is a mapping, see README")
    return document


class _Faults:
    """Collects the faults of one file, so that the user meets all of them at once."""

    def __init__(self, name: str, document: Any) -> None:
        self.name, self.document = name, document
        self.messages: list[str] = []
        self.overridden: dict[str, str] = {}

    def add(self, where: Where, message: str) -> None:
        override = self.overridden.get(str(where[-1])) or self.overridden.get(str(where[0]))
        if len(where) > 1:
            override = self.overridden.get(str(where[1]), override)
        said = f"{override or self._position(where)}: {message}"
        if said not in self.messages:  # --set gives one value to many points
            self.messages.append(said)

    def _position(self, where: Where) -> str:
        node, line = self.document, None
        for step in where:
            position = getattr(node, "lc", None)
            try:
                line = position.data[step][0] if position else line
                node = node[step]
            except (KeyError, IndexError, TypeError):
                break
        return f"{self.name}:{line + 1}" if line is not None else self.name

    def raise_if_any(self) -> None:
        if self.messages:
            raise ParamsError("\n".join(self.messages))


def _given(overrides: Sequence[str], faults: _Faults) -> list[tuple[str, Any]]:
    """The keys and values of `key=value` strings, top-level keys first.

    A section that is given as a whole would otherwise undo the parameters given before it.
    """
    values: dict[str, Any] = {}
    for text in overrides:
        key, equals, given = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ParamsError(f"--set {text}: is not of the form key=value")
        try:
            values[key] = yaml_documents.spread(yaml_documents.word(given))
        except YAMLError:
            raise ParamsError(f"--set {text}: the value is not valid YAML") from None
        faults.overridden[key] = f"--set {text}"
    return sorted(values.items(), key=lambda pair: pair[0] not in Sweep.model_fields)


def _override(document: Any, name: str, value: Any, faults: _Faults) -> None:
    if name in Sweep.model_fields:
        document[name] = value
    elif name not in Run.model_fields:
        faults.add((name,), strict_model.unknown(name, [*GIVEN, *Sweep.model_fields]))
    else:
        _override_parameter(document, name, value)


def _override_parameter(document: Any, name: str, value: Any) -> None:
    """Sets a parameter of all points; those of `include` have each value of a list too."""
    sections = [document.get(name) for name in ("defaults", "matrix")]
    if not all(section is None or isinstance(section, dict) for section in sections):
        return  # which is refused with the rest of the file
    if isinstance(value, list):
        _section(document, "defaults").pop(name, None)
        _section(document, "matrix")[name] = value
        _set_included(document, name, value, everywhere=True)
    elif name in (document.get("matrix") or {}):
        document["matrix"][name] = [value]
        _set_included(document, name, [value], everywhere=True)
    else:
        _section(document, "defaults")[name] = value
        _set_included(document, name, [value], everywhere=False)


def _set_included(document: Any, name: str, values: Sequence[Any], everywhere: bool) -> None:
    """Gives entries of `include` the values, in a copy of each that knows its line.

    Args:
        everywhere: also those that do not name the parameter, which have the default otherwise.
    """
    entries = document.get("include")
    if not values or not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        return  # which is refused with the rest of the file
    made = [(copy.copy(entry), value) for entry in entries for value in values]
    for entry, value in made:
        if everywhere or name in entry:
            entry[name] = value
    entries[:] = [entry for entry, _ in made]


def _drop_equal(document: Any, plain: dict[str, Any]) -> None:
    """Drops entries of `include` that are the same point as one before, since --set made them so.

    Parameters that do not go together are refused with the rest of the file.
    """
    included = plain.pop("include", [])
    known = {_identity(point) for point in Sweep(**plain).points()}
    kept = []
    for place, entry in enumerate(included):
        identity = _identity({**plain.get("defaults", {}), **entry})
        if not identity or identity not in known:
            kept.append(place)
        known.add(identity)
    document["include"][:] = [document["include"][place] for place in kept]
    plain["include"] = [included[place] for place in kept]


def _identity(point: Mapping[str, Any]) -> str:
    """What is the same of equal points; empty where it is none."""
    try:
        return Run(**point).resolved().published().model_dump_json()
    except ParamsError:
        return ""


def _section(document: Any, name: str) -> Any:
    """A section, which is made where it is absent or empty."""
    if document.get(name) is None:
        document[name] = {}
    return document[name]


def _validate(document: Any, faults: _Faults) -> Sweep:
    plain = yaml_documents.plain(document)
    for name in plain:
        if name not in Sweep.model_fields:
            faults.add((name,), strict_model.unknown(name, list(Sweep.model_fields)))
    faults.raise_if_any()
    for name, value in plain.items():
        _check(Sweep, name, value, (name,), faults)
    faults.raise_if_any()
    for where, name, value in _assignments(plain):
        _check_parameter(where, name, value, faults)
    faults.raise_if_any()
    try:
        if plain.get("include") and not faults.overridden.keys().isdisjoint(Run.model_fields):
            _drop_equal(document, plain)
        sweep = Sweep(**plain)
        _check_points(sweep, faults)
    except ParamsError as error:  # too many runs, or two folders of one name
        faults.add(("matrix",), str(error))
    faults.raise_if_any()
    return sweep


def _assignments(plain: Mapping[str, Any]) -> Iterator[tuple[Where, str, Any]]:
    for name, value in plain.get("defaults", {}).items():
        yield ("defaults", name), name, value
    for name, values in plain.get("matrix", {}).items():
        if not values:
            yield ("matrix", name), name, None
        for index, value in enumerate(values):
            yield ("matrix", name, index), name, value
    for section in ("exclude", "include"):
        for index, entry in enumerate(plain.get(section, [])):
            for name, value in entry.items():
                yield (section, index, name), name, value


def _check_parameter(where: Where, name: str, value: Any, faults: _Faults) -> None:
    if name not in Run.model_fields:
        faults.add(where, strict_model.unknown(str(name), GIVEN))
    elif name == "block":
        faults.add(where, "block cannot be set; blocks come from repeats")
    elif where == ("matrix", name):
        faults.add(
            where, f"the axis {name} is empty; allowed: a list of {strict_model.allowed(Run, name)}"
        )
    else:
        _check(Run, name, value, where, faults)


def _check(model: type[BaseModel], name: str, value: Any, where: Where, faults: _Faults) -> None:
    """Adds a fault unless `value` is allowed for the field `name` of `model`."""
    refusal = strict_model.fault(model, name, value)
    if refusal:
        inner, message = refusal
        faults.add((*where, *inner), message)


def _check_points(sweep: Sweep, faults: _Faults) -> None:
    points = sweep.points()
    if not points:
        empty = "matrix" if not sweep.matrix else "exclude"
        reason = "nothing to run" if empty == "matrix" else "every point is excluded"
        faults.add((empty,), f"{reason}; allowed: a matrix with at least one axis, or include")
    dataset_paths.known(str(point.get("dataset", "")) for point in points)
    indices: dict[str, int] = {}
    for index, point in enumerate(points):
        included = index - len(points) + len(sweep.include)
        try:
            run = Run(**point).resolved().published()
        except ParamsError as error:  # parameters that do not go together
            faults.add(("include", included) if included >= 0 else ("matrix",), str(error))
            return
        first = indices.setdefault(run.model_dump_json(), index)
        if first != index:
            named = {*sweep.matrix}.union(*sweep.include) or point
            shown = ", ".join(f"{n}: {strict_model.shown(point[n])}" for n in point if n in named)
            section = "include" if included >= 0 else "matrix"
            faults.add((section,), f"the point {{{shown}}} occurs twice; use repeats to repeat it")


def _check_devices(sweep: Sweep, faults: _Faults) -> None:
    """Refuses two names of one device, which would be measured as two."""
    given = {point.get("gpu_model", "local") for point in sweep.points()}
    names = sorted({Run(gpu_model=name).resolved().gpu_model for name in given})
    for device in dict.fromkeys([*names, *(name for name, _ in local_devices())]):
        asked = [name for name in names if same_model(name, device)]
        if len(asked) > 1:
            faults.add(
                ("matrix", "gpu_model"),
                f"gpu_model {' and '.join(asked)} are one device where it is {device}; allowed: "
                "names of which each device has one",
            )
    faults.raise_if_any()


def _check_feasible(sweep: Sweep, faults: _Faults) -> None:
    """Refuses points whose batch does not suit the data, each batch size once."""
    points, counted = sweep.points(), {}
    named = set()
    for index, point in enumerate(points):
        run = Run(**point).resolved()
        data = (run.dataset, run.validation_split, run.synthetic_length)
        data += (run.sequence_length, run.tokenizer)
        if data not in counted:
            counted[data] = feasible.training_images(run)
        images = counted[data]
        message = "" if images is None else feasible.fault(run, images)
        included = index - len(points) + len(sweep.include)
        where = _where(sweep, "batch_size", point, included)
        if message and (where, message) not in named:
            named.add((where, message))
            faults.add(where, f"{message} (dataset {run.dataset})")
    faults.raise_if_any()


def _where(sweep: Sweep, name: str, point: Mapping[str, Any], included: int) -> Where:
    """Where a point's value of a parameter stands; `included` is its place in include, or < 0."""
    if included >= 0 and name in sweep.include[included]:
        return ("include", included, name)
    if included < 0 and name in sweep.matrix:
        return ("matrix", name, sweep.matrix[name].index(point[name]))
    return ("defaults", name) if name in sweep.defaults else ("matrix",)


def header(text: str) -> dict[str, str]:
    """Question, cost, expected outcome: the `# Name: text` comments that open a params file."""
    parts: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        words = line.lstrip("# ").rstrip()
        head, colon, rest = words.partition(": ")
        if colon and head in ("Question", "Cost", "Expected", SET):
            name, words = head.lower(), rest
        if name and (name != SET.lower() or name not in parts):  # which is one line
            parts[name] = f"{parts.get(name, '')} {words}".strip()
    return parts
