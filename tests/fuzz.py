"""Input that nobody would write by hand: params files and records, damaged in drawn places."""

import copy
import gzip
import json
import re
import signal
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

from builders import KINETO, kineto_step
from hypothesis import strategies as st
from support import PROJECT

from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.run import Run, defaults

ANSWER_S = 20  # processor seconds, for a slow machine too; what has no bound takes minutes

NUMBERS = [0, 1, -1, 2, 7, 0.5, -0.0, 1e-30, 1e-9, 1e9, 1e30, 2**31, 2**62, 2**63, 10**400, 1e308]
NUMBERS += [5e-324, -(2**63), 1e400, 127, -127, 255, 1024, 100_000_000_000]
WORDS = [
    "",
    " ",
    "x",
    "0",
    "nan",
    "ok",
    "oom",
    "float32",
    "mixed_float16",
    "none",
    "train",
    "a" * 300,
]
WORDS += [
    "inference",
    "auto",
    "local",
    "GPU",
    "timings are void",
    "2026-01-01T00:00:00+00:00",
    "\0",
]
WORDS += [
    "<8,8>",
    "e4m3",
    "tensorflow",
    "\ud800",
    "模型",
    "\x1b[2J",
    "folder:/dev",
    "../..",
    "a;b",
    "|",
]
OTHERS = [
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    [{}],
    {"": {}},
    {"x": None},
    [1, 2, 3],
    ["x", "x"],
]
VALUES = st.sampled_from([*NUMBERS, *WORDS, *OTHERS])


@contextmanager
def answering(seconds=ANSWER_S):
    """An assertion error where what is done within takes more seconds of this process's time."""

    def too_long(*_):
        raise AssertionError(f"no answer after {seconds} processor seconds")

    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
        # An error that is raised while memory is collected stays there.
        assert signal.getitimer(signal.ITIMER_VIRTUAL)[0], f"an answer after {seconds} seconds"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


# --- params files ----------------------------------------------------------------------------

SCALARS = [
    "1",
    "0",
    "-1",
    "32",
    "1e308",
    ".inf",
    ".nan",
    "1" * 5000,
    "0x10",
    "0o7",
    "1_0",
    "~",
    "yes",
]
SCALARS += [
    "true",
    "'x'",
    '"\\ud800"',
    '"\\0"',
    "float32",
    "mixed_float16",
    "digits",
    "lenet",
    "local",
]
SCALARS += [
    "2024-01-01",
    "2024-01-01T00:00:00Z",
    "12:30:00",
    "!!binary aGk=",
    "!!bool x",
    "!!int x",
]
SCALARS += [
    "!!float x",
    "!!null x",
    "!!timestamp x",
    "!!set {a}",
    "!!omap [a: 1]",
    "!!python/name:os.system",
]
SCALARS += [
    "!x y",
    "&a 1",
    "*a",
    "&a [*a]",
    "&a {x: *a}",
    "{<<: *a}",
    "{<<: [*a, *a]}",
    "{<<: 1}",
    "{? [1]: 2}",
]
SCALARS += [
    "{? {a: 1}: 2}",
    "[]",
    "{}",
    "[[1]]",
    "{a: {b: 1}}",
    "|\n  text",
    ">\n  text",
    "a: b",
    "- a",
    "[" * 900,
]
SCALARS += [
    "n" * 300,
    "../../etc/passwd",
    "/dev/zero",
    "folder:/dev/null",
    "idx:.",
    "x:y",
    "os:system",
]
LISTS = ["[1, 2]", "[float32, mixed_float16]", "[32, 64, 128]", "[true, false]", "[1, 1]", "[~]"]
LISTS += [f"[{', '.join(map(str, range(1, 301)))}]"]
SCALAR = st.sampled_from(SCALARS)
# What is allowed, a few words of each parameter.
GOOD = {n: [json.dumps(v)] for n, v in defaults().items() if n != "block" and v is not None}
GOOD |= {"policy": ["float32", "mixed_float16", "bfloat16"], "batch_size": ["8", "32", "1024"]}
GOOD |= {
    "seed": ["1", "2"],
    "model": ["lenet", "mlp", "os:system"],
    "learning_rate": ["1e-3", "0.1"],
}
GOOD |= {"propagation": ["policy", "binary", "dynamic8"], "weight_format": ["policy", "<8,8>"]}
GOOD |= {"max_steps": ["7", "500"], "target_ci": ["0.01"], "memory_limit_gb": ["1", "4.5"]}
TOP = [
    "repeats: 3",
    "timeout_min: 5",
    "max_batch: true",
    "price_per_hour: 2.5",
    "notebook: numerics",
]
FIELD = st.sampled_from(sorted(GOOD)).flatmap(
    lambda name: st.sampled_from(GOOD[name]).map(lambda value: f"{name}: {value}")
)
AXIS = st.sampled_from(sorted(GOOD)).map(lambda name: f"{name}: [{', '.join(GOOD[name])}]")


def _mapping(field, most):
    parts = st.lists(field, max_size=most, unique_by=lambda part: part.partition(":")[0])
    return parts.map(lambda parts: f"{{{', '.join(parts)}}}")


@st.composite
def _allowed(draw):
    """A params file of which each part is allowed, though perhaps not together."""
    lines = [f"matrix: {draw(_mapping(AXIS, 3))}", f"defaults: {draw(_mapping(FIELD, 3))}"]
    lines += [f"exclude: [{draw(_mapping(FIELD, 2))}]"] if draw(st.booleans()) else []
    lines += [f"include: [{draw(_mapping(FIELD, 2))}]"] if draw(st.booleans()) else []
    return "\n".join([*lines, *draw(st.lists(st.sampled_from(TOP), max_size=1)), ""])


@st.composite
def _spliced(draw):
    """A params file with something put into it, or in place of one of its values."""
    text = draw(_allowed())
    what = draw(SCALAR | st.sampled_from(PARTS))
    values = [match.span(1) for match in re.finditer(r": ([\w.-]+)", text)]
    if values and draw(st.booleans()):
        start, end = draw(st.sampled_from(values))
        return text[:start] + what + text[end:]
    place = draw(st.integers(0, len(text)))
    return text[:place] + what + text[place:]


PARTS = [
    *SCALARS,
    *LISTS,
    "<<",
    ": ",
    "? ",
    "- ",
    "\n",
    "\n  ",
    "\t",
    "#",
    "{",
    "}",
    "[",
    "]",
    ",",
    "&a ",
    "*a ",
]
PARTS += [
    "---\n",
    "...\n",
    "%YAML 1.1\n",
    "%TAG ! x\n",
    "matrix: ",
    "defaults: ",
    "\r",
    "\u2028",
    "\ufeff",
    "\0",
]
SOUP = st.lists(st.sampled_from(PARTS), max_size=12).map("".join)


def _bytes(text):
    return text.encode("utf-8", "surrogatepass")


PARAMS = _allowed() | _spliced() | SOUP
PARAMS = PARAMS.map(_bytes) | st.binary(max_size=60)

# --- records -----------------------------------------------------------------------------------


@cache
def sweeps():
    """Some real sweeps: of each a few records of all policies, with their diagnosis."""
    chosen = []
    for root in sorted((PROJECT / "reports/published").iterdir()):
        place = SweepDir(root)
        if not place.runs.is_dir():
            continue  # the page of a trace
        parts = {part: _some(root / part, 6) for part in ("runs", "diagnosis/runs", "search/runs")}
        chosen.append((place, {part: records for part, records in parts.items() if records}))
    return chosen


def _some(folder, most):
    """Records of a folder, spread over it; whole blocks, so that there is something to compare."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*/record.json"))]
    records.sort(key=lambda r: (r["parameters"]["block"], r["status"] != "ok"))
    return records[:most]


def nodes(value, most=4000):
    """Every place in a record at which something stands: the container and the key."""
    places, left = [], [value]
    while left and len(places) < most:
        node = left.pop(0)
        keys = node if isinstance(node, dict) else range(min(len(node), 12))
        for key in keys:
            places.append((node, key))
            if isinstance(node[key], dict | list) and node[key]:
                left.append(node[key])
    return places


def _like(value):
    """Values of the same kind: what a check of types lets pass."""
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int | float):
        return st.sampled_from(NUMBERS)
    if isinstance(value, str):
        return st.sampled_from(WORDS)
    if isinstance(value, list):
        return st.sampled_from([[], value[:1], value[1:], value * 2, value[::-1], [*value, None]])
    if isinstance(value, dict) and value:
        names = list(value)
        less = st.sampled_from(names).map(lambda n: {k: v for k, v in value.items() if k != n})
        return less | st.just({}) | st.just(dict.fromkeys(names))
    return VALUES


def _change(draw, record):
    node, key = draw(st.sampled_from(nodes(record)))
    what = draw(st.sampled_from(["like", "like", "like", "any", "gone"]))
    if what == "gone":
        del node[key]
        return f"{key} gone"
    node[key] = copy.deepcopy(draw(_like(node[key]) if what == "like" else VALUES))
    return f"{key} = {node[key]!r:.200}"


class Damaged(NamedTuple):
    """A sweep some of whose records say something else than they did.

    Attributes:
        params: the text of params.yaml.
        parts: "runs", "diagnosis/runs", "search/runs" -> their records; a record is bytes where it
            is no longer JSON.
        changes: what was changed, which tells it in a message of hypothesis.
    """

    params: str
    parts: dict
    changes: list

    def _repr_pretty_(self, printer, _cycle):
        printer.text("; ".join(self.changes))


@st.composite
def damaged_sweeps(draw):
    """A published sweep, damaged."""
    place, parts = draw(st.sampled_from(sweeps()))
    parts, changes = copy.deepcopy(parts), [place.name]
    for _ in range(draw(st.integers(1, 3))):
        records = parts[draw(st.sampled_from(list(parts)))]
        for record in records if draw(st.booleans()) else [draw(st.sampled_from(records))]:
            changes.append(_change(draw, record))
    return Damaged(place.params.read_text(), parts, changes)


def write(root, params, parts):
    """Writes a drawn sweep; each record in the folder of the run that its parameters name."""
    root.mkdir(parents=True)
    (root / "params.yaml").write_bytes(params if isinstance(params, bytes) else params.encode())
    for part, records in parts.items():
        for number, record in enumerate(records):
            run_id = _named(record) or f"{number:012x}"
            folder = root / part / run_id
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "record.json").write_text(json.dumps(record), encoding="utf-8")
    return SweepDir(root)


def _named(record):
    """The id of a record's parameters, written into it, so that it is no other's by that alone."""
    record.pop("digest", None)
    try:
        run = Run.model_construct(**defaults() | record["parameters"])
        record["run_id"] = run.run_id(record.get("notebook", "train"))
    except Exception:  # whatever stands there now
        return None
    return record["run_id"]


# --- traces ------------------------------------------------------------------------------------


@st.composite
def traces(draw):
    """A trace of PyTorch's form with values that nobody writes, perhaps cut, changed or packed.

    Returns:
        The file's name and its content.
    """
    names = draw(st.sampled_from(KINETO))
    events = copy.deepcopy([e for step in range(2) for e in kineto_step(names, step)])
    whole = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU"}]}
    whole["traceEvents"] = events
    for _ in range(draw(st.integers(0, 4))):
        _change(draw, whole)
    content = json.dumps(whole).encode()
    what = draw(st.sampled_from(["whole", "whole", "cut", "flipped", "doubled", "noise"]))
    place = draw(st.integers(0, len(content) - 1))
    content = {
        "whole": content,
        "cut": content[:place],
        "flipped": content[:place] + bytes([content[place] ^ 0x24]) + content[place + 1 :],
        "doubled": content + content,
        "noise": draw(st.binary(max_size=50)) + content[place:],
    }[what]
    name = draw(st.sampled_from(["t.json", "t.json.gz", "t.xplane.pb", "t.sqlite"]))
    if draw(st.booleans()):
        content = gzip.compress(content, mtime=0)
    return name, content
