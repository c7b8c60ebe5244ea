"""Two sweeps, or several sessions of each, side by side: points joined, and what else differs."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from mptexp.analysis import comparability, contrast, speedups, sweep_tables, validity
from mptexp.analysis.comparability import Record
from mptexp.analysis.points import POINT, devices, geometric_mean, throughput
from mptexp.analysis.sweep_tables import Tables
from mptexp.records import consistency, store
from mptexp.records.schema import STATUSES, known_parameters
from mptexp.records.sweep_dir import SweepDir
from mptexp.records.tables import history_table
from mptexp.spec import params, tasks
from mptexp.spec.run import Run

# The device may differ: that is often what is compared.
JOINED = [name for name in POINT if name != "gpu_model"] + ["policy"]
# What a row says of the two sides of its point.
NAMED = ["device_a", "device_b", "ended_a", "ended_b", "lost"]
# What wanders by itself says nothing of what differs.
WANDERING = ("load", "swap_used_bytes", "clean")


def load(a: Sequence[SweepDir], b: Sequence[SweepDir]) -> tuple[Tables, Tables]:
    """Both sides, with settings named so that they differ between the two as well.

    Args:
        a: the sessions of one side: directories of one sweep, each measured at another time; those
            that hold runs of one call are one session.
        b: those of the other.

    Returns:
        Tables whose runs have columns `session` and `price_per_hour`, their session's; the side has
        a price where its sessions give the same. What cannot be read, or is another than was
        written, is in `damaged` and `changed`.

    Raises:
        params.ParamsError: where a directory holds no record, or is given twice on one side, itself
            or as a copy.
    """
    read = [[_read(place) for place in side] for side in (a, b)]
    for side in (a, b):
        names = [place.root.resolve() for place in side]
        twice = [str(name) for name in names if names.count(name) > 1]
        if twice:
            raise params.ParamsError(f"{twice[0]}: given twice; a session counts once")
    for side, sessions in zip((a, b), read, strict=True):
        _refuse_copies(side, [own for own, *_ in sessions])
    everything = [[record for own, *_ in side for record in own] for side in read]
    return _tables(a, read[0], everything[1]), _tables(b, read[1], everything[0])


def _read(place: SweepDir) -> tuple[list[dict], list[str], list[str]]:
    """Records of a session, and a sentence for each that is damaged or was changed."""
    own, damaged = store.read_records(place)
    if not own:
        raise store.refusal(place, damaged)
    return own, damaged, store.changed(own, place)


def _refuse_copies(places: Sequence[SweepDir], sessions: Sequence[Sequence[dict]]) -> None:
    """Refuses sessions of a side that share a measurement: a copy says nothing of another day."""
    first: dict[tuple[float, ...], SweepDir] = {}
    for place, own in zip(places, sessions, strict=True):
        for record in own:
            measured = consistency.measurement(record)
            other = first.setdefault(measured, place) if measured else place
            if other is not place:
                raise params.ParamsError(
                    f"{place.root}: holds the same measurement as {other.root} (run "
                    f"{record['run_id']}); a session counts once, give another"
                )


def disjoint(a: Tables, b: Tables) -> dict[str, tuple[list[str], list[str]]]:
    """The known parameters that have no value in common, with the values of both sides.

    They are why no point can be joined. The seed is that of block 0.
    """
    sides = [[_of_block_0(known_parameters(r)) for r in side.records] for side in (a, b)]
    apart = {}
    for name in Run.model_fields:
        left, right = (sorted({str(r[name]) for r in side if name in r}) for side in sides)
        if left and right and name != "gpu_model" and not set(left) & set(right):
            apart[name] = (left, right)
    return apart


def _of_block_0(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run's parameters without its block, by which the seed varies."""
    given = {"seed": run["seed"] - run["block"]} if {"seed", "block"} <= {*run} else {}
    return {name: value for name, value in run.items() if name not in ("seed", "block")} | given


def _tables(
    places: Sequence[SweepDir],
    read: Sequence[tuple[list[dict], list[str], list[str]]],
    other: Sequence[dict],
) -> Tables:
    """One side: the sessions' runs below one another, flagged within their session."""
    own = [record for records, *_ in read for record in records]
    options = [sweep_tables.options(place) for place in places]
    frames = [
        sweep_tables.flagged(records, place.name, beside=[*own, *other]).assign(
            session=session, price_per_hour=float(options[session].price_per_hour or math.nan)
        )
        for session, (place, (records, *_)) in enumerate(zip(places, read, strict=True))
    ]
    results = pd.concat(frames, ignore_index=True)
    results["session"] = results.session.map(_sessions([records for records, *_ in read]))
    ratios, history = speedups.at_same_batch(frames[0]), history_table(own)
    damaged, changed = ([text for part in read for text in part[k]] for k in (1, 2))
    prices = {each.price_per_hour for each in options}
    price = prices.pop() if len(prices) == 1 else None
    settings = replace(options[0], price_per_hour=price)
    return Tables(results, history, ratios, own, damaged, settings, changed=changed)


def _sessions(sides: Sequence[Sequence[Mapping[str, Any]]]) -> dict[int, int]:
    """By the number of a directory that of the first with runs of the same call, or its own.

    However a call's runs are spread over directories, they are of one day.
    """
    first: dict[tuple[str, str], int] = {}
    found: dict[int, int] = {}
    for number, records in enumerate(sides):
        calls = comparability.calls(records)
        found[number] = min([first[call] for call in calls & first.keys()], default=number)
        first |= dict.fromkeys(calls, found[number])
    return found


@dataclass(frozen=True)
class Side:
    """What one side has at a point, under a policy, on a device, however its runs ended.

    Attributes:
        key: the values of JOINED, and the device; empty where it has no run there.
        runs: its runs, rows of `Tables.results`.
    """

    key: tuple
    runs: pd.DataFrame

    @property
    def ok(self) -> pd.DataFrame:
        """The runs that ended well."""
        return self.runs[self.runs.status == "ok"]

    @property
    def lost(self) -> list[str]:
        """How those ended that did not end well."""
        return [name for name in STATUSES if name != "ok" and (self.runs.status == name).any()]

    @property
    def ended(self) -> str:
        """`1 ok, 2 diverged`; `no run` of none."""
        counts = self.runs.status.value_counts()
        return ", ".join(f"{counts[n]} {n}" for n in STATUSES if n in counts) or "no run"


def points(a: Tables, b: Tables) -> pd.DataFrame:
    """The points that both sweeps measured well, for each pair of devices.

    A device that both sweeps have is compared with itself alone. Where each side has one policy and
    the other another, as trainings timed by StepTimer in float32 and in mixed precision, these are
    compared: `policy` is `float32 | mixed_float16`.

    The unit is the session: how much a day matters, the runs of one day do not say. An interval
    from runs would call 18 to 72 % of sweeps of like machines different, at drifts of 1 to 5 %.
    From three sessions a side there is Welch's interval of the sessions' means, at Sidak's level
    for the number of points; from fewer, nothing is claimed.

    Returns:
        Columns of JOINED, device_a, device_b, ended_a, ended_b (see `Side`), lost (how runs of
        either side ended that did not end well: of the others' accuracy nothing is said), step_s_a,
        step_s_b (seconds, geometric means over sessions; costs are of such means of rates), ratio
        (step_s_a / step_s_b: above 1, B is faster), low, high, sessions_a, sessions_b, runs_a,
        runs_b (that ended well), flags (what is not valid of the runs' times: then low and high
        are empty), val_accuracy_a, val_accuracy_b (means over the blocks that both sides have, or
        over all where they share none; of a text val_perplexity), peak_memory_bytes_a,
        peak_memory_bytes_b (medians),
        memory_of_a, memory_of_b (whose memory that is: the process's, or that which the GPU's
        allocator gave out), cost_per_million_images_a and _b (or tokens) where both have a
        price_per_hour, and unpriced (the sides whose sessions differ in it, `A`, `B` or `A and B`,
        which have no cost then).
    """
    pairs = [(left, right) for left, right in _pairs(a, b) if len(left.ok) and len(right.ok)]
    level = 0.95 ** (1 / max(len(pairs), 1))
    unpriced = {"unpriced": _unpriced(a, b)}
    rows = [_named(*pair) | _compared(*pair, a, b, level) | unpriced for pair in pairs]
    return pd.DataFrame(sorted(rows, key=_place))


def not_compared(a: Tables, b: Tables) -> pd.DataFrame:
    """The points of which one side at least has no run that ended well.

    Returns:
        Columns of JOINED, device_a, device_b, ended_a, ended_b, lost, as those of `points`; the
        device of a side without a run is empty.
    """
    pairs = [pair for pair in _pairs(a, b) if not all(len(side.ok) for side in pair)]
    rows = sorted((_named(*pair) for pair in pairs), key=_place)
    return pd.DataFrame(rows, columns=[*JOINED, *NAMED])


def _place(row: Mapping[str, Any]) -> list[str]:
    """Sorts points by their values, and policies within."""
    return [*(str(row[name]).zfill(9) for name in JOINED[:-1]), row["policy"]]


def _named(left: Side, right: Side) -> dict[str, Any]:
    """What a row says of its point, before it compares anything."""
    known = [side.key for side in (left, right) if side.key]
    devices = [side.key[-1] if side.key else "" for side in (left, right)]
    lost = ", ".join(dict.fromkeys([*left.lost, *right.lost]))
    policy = " | ".join(dict.fromkeys(key[-2] for key in known))
    values = (*devices, left.ended, right.ended, lost)
    return dict(zip([*JOINED, *NAMED], [*known[0][:-2], policy, *values], strict=True))


def _pairs(a: Tables, b: Tables) -> list[tuple[Side, Side]]:
    """What stands side by side, and last what either side has alone."""
    sides = [_by_point(a, b), _by_point(b, a)]
    pairs = [
        (left, right)
        for left in sides[0]
        for right in sides[1]
        if left[:-2] == right[:-2] and _comparable(left, right, sides)
    ]
    policies = [{key[-2] for key in side} for side in sides]
    if max(map(len, policies), default=0) > 1 or policies[0] == policies[1]:
        pairs = [(left, right) for left, right in pairs if left[-2] == right[-2]]
    paired = [set(keys) for keys in zip(*pairs, strict=True)] or [set(), set()]
    none = Side((), a.results.iloc[:0])
    alone = [
        [one for key, one in side.items() if key not in there]
        for side, there in zip(sides, paired, strict=True)
    ]
    return [
        *((sides[0][left], sides[1][right]) for left, right in pairs),
        *((side, none) for side in alone[0]),
        *((none, side) for side in alone[1]),
    ]


def _by_point(own: Tables, other: Tables) -> dict[tuple, Side]:
    """The runs of one side by the values of JOINED and the device.

    Whether XLA is on is not known of a run that ended too early: as in those like it, of its own
    side or else the other.
    """
    like = [name for name in JOINED[:-1] if name != "jit"]
    known: dict[tuple, set] = {}
    for side in (other, own):
        known |= side.ok.groupby(like).jit.agg(set).to_dict()
    places = own.results[like].itertuples(index=False, name=None)
    pairs = zip(own.results.jit, places, strict=True)
    jit = [_compiled(value, known.get(place, set())) for value, place in pairs]
    runs = own.results.assign(jit=pd.Series(jit, own.results.index, dtype=object))
    groups = runs.groupby([*JOINED, "gpu_model"], sort=False)
    return {key: Side(key, group) for key, group in groups}


def _compiled(value: Any, known: Collection[Any]) -> Any:
    """Whether XLA was on, of what a run was told if it does not say, and of what is known."""
    told = speedups.ASKED.get(value, value) if isinstance(value, str) else value
    return next(iter(known)) if told == "auto" and len(known) == 1 else told


def _comparable(left: tuple, right: tuple, sides: Sequence[Mapping[tuple, Any]]) -> bool:
    """A device is compared with itself where both sweeps have it, else with every other."""
    *point, policy, device = left
    *_, other_policy, other_device = right
    alone = (*point, other_policy, device) not in sides[1]
    return device == other_device or (alone and (*point, policy, other_device) not in sides[0])


def _compared(one: Side, other: Side, a: Tables, b: Tables, level: float) -> dict[str, Any]:
    left, right = (s.ok.assign(step_s=pd.to_numeric(s.ok.step_s)) for s in (one, other))
    means = [_session_means(side, side.step_s) for side in (left, right)]
    over = contrast.unpaired(*means, level)
    flags = _flags(left, right, a, b)
    ends = [math.nan, math.nan] if validity.invalid(flags, "time") else [over.low, over.high]
    row: dict[str, Any] = {"ratio": over.estimate, "low": ends[0], "high": ends[1]}
    learned = _of_shared_blocks(*(s[s.ended_by != "target_ci"] for s in (left, right)))
    sides = zip("ab", (left, right), learned, means, (a, b), strict=True)
    for name, side, trained, sessions, tables in sides:
        if one.lost or other.lost:  # those that are left say nothing of the policy
            trained = trained.iloc[:0]
        row |= {
            f"step_s_{name}": geometric_mean(sessions),
            f"sessions_{name}": len(sessions),
            f"runs_{name}": len(side),
            **{
                f"{task.column}_{name}": task.mean(pd.to_numeric(trained[task.column]))
                for task in tasks.TASKS.values()
                if task.column in side
            },
            f"peak_memory_bytes_{name}": side.peak_memory_bytes.median(),
            f"memory_of_{name}": "process" if _on_cpu(side) else "allocator",
        }
        if a.price_per_hour and b.price_per_hour:
            rate = geometric_mean(_session_means(side, throughput(side)))
            hours = 1e6 / rate / 3600 * devices(side).iloc[0]
            row[f"cost_per_million_{tasks.of(side.dataset.iloc[0]).unit}s_{name}"] = (
                hours * tables.price_per_hour
            )
    return row | {"flags": flags}


def _of_shared_blocks(left: pd.DataFrame, right: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The trainings of the blocks that both sides have; all of them where they share none.

    Another block has another seed, which alone changes what is learned.
    """
    shared = set(left.block) & set(right.block)
    if not shared:
        return left, right
    return left[left.block.isin(shared)], right[right.block.isin(shared)]


def _on_cpu(runs: pd.DataFrame) -> bool:
    """Whether the memory of runs of one device is that of their processes."""
    return bool(runs.device.fillna("").astype(str).str.endswith("(CPU)").any())


def _unpriced(a: Tables, b: Tables) -> str:
    """The sides whose sessions differ in their price; empty where a side has none at all."""
    none = pd.Series(dtype=float)
    prices = [side.results.get("price_per_hour", none) for side in (a, b)]
    if not all(own.notna().any() for own in prices):
        return ""
    pairs = zip("AB", prices, strict=True)
    return " and ".join(name for name, own in pairs if own.nunique(dropna=False) > 1)


def _session_means(runs: pd.DataFrame, values: pd.Series) -> pd.Series:
    """The geometric mean of each session's runs, of their steps or rates."""
    sessions = runs["session"] if "session" in runs else pd.Series(0, runs.index)
    return values.groupby(sessions).agg(geometric_mean)


def _flags(left: pd.DataFrame, right: pd.DataFrame, a: Tables, b: Tables) -> str:
    """What is not valid of the runs of both sides.

    Sessions of a side have to be alike, too, and a measurement beside itself compares nothing.
    """
    names, measured = [*left["flags"], *right["flags"]], []
    for side, tables in ((left, a), (right, b)):
        wanted = set(side.run_id)
        records = [r for r in tables.records if r["run_id"] in wanted]
        alike = {
            comparability.shared(one) for one in map(comparability.of, records) if one is not None
        }
        names += ["not comparable"] * (len(alike) > 1)
        measured.append({consistency.measurement(record) for record in records} - {()})
    names += ["same measurement"] * bool(measured[0] & measured[1])
    return validity.together(names)


def ended(side: Tables) -> str:
    """How the runs of a side ended: `3 ok, 6 diverged`."""
    return Side((), side.results).ended


def apart_in_time(a: Tables, b: Tables) -> bool:
    """Whether all runs of a side ended before the first of the other, as far as records say.

    What lastingly changed in between is then in every ratio.
    """
    times = [[r["ended_at"] for r in side.records if r.get("ended_at")] for side in (a, b)]
    if not all(times):
        return False
    return max(times[0]) < min(times[1]) or max(times[1]) < min(times[0])


def differences(a: Tables, b: Tables) -> pd.DataFrame:
    """What differs between environments, identities and marks: columns what, a, b; values as text.

    A sweep whose runs differ among themselves shows all their values, and those of a point where
    both sweeps have the same, each at other points; one without identities says that they are not
    recorded.
    """
    both = set.intersection(*({r["run_id"] for r in side.records} for side in (a, b)))
    sides = [_said(side.records, both) for side in (a, b)]
    names = dict.fromkeys(name for side in sides for name, point in side if point is None)
    points = [{point for _, point in side if point} for side in sides]
    places = [None, *sorted(set.intersection(*points))]  # of every run, and of each shared point
    rows = []
    for name in names:
        for point in places:
            left, right = (" · ".join(sorted(side.get((name, point), ()))) or "–" for side in sides)
            unknown = point is None and comparability.NOT_RECORDED in (left, right)
            if left != right or unknown:
                where = f" ({', '.join(point)})" if point else ""
                rows.append({"what": f"{name}{where}", "a": left, "b": right})
                break
    return pd.DataFrame(rows, columns=["what", "a", "b"])


def _said(
    records: Iterable[Record], both: Collection[str]
) -> dict[tuple[str, tuple[str, ...] | None], set[str]]:
    """All values of what runs say of themselves, by name and by None, and by name and point.

    Args:
        both: the runs that both sides have: weights and order follow from the seed, and are only of
            those.
    """
    said: dict[tuple[str, tuple[str, ...] | None], set[str]] = {}
    for record in records:
        card = _flat(record.get("environment") or {}) | _flat(_own(record) | _effective(record))
        card |= _flat(_started(record)) if record["run_id"] in both else {}
        for name, value in card.items():
            for point in (None, _point(record)):
                said.setdefault((name, point), set()).add(value)
    return said


def _point(record: Record) -> tuple[str, ...]:
    """What of a run's point varies most often, in words."""
    run = record["parameters"]
    return run["model"], f"batch size {run['batch_size']}", run["policy"]


def _effective(record: Record) -> dict[str, Any]:
    """What a run's record says of how it was made and computed, beyond what was asked for."""
    in_force = record.get("in_force") or {}
    known = {name: in_force[name] for name in ("emulated", "effective_share") if name in in_force}
    return known | {"marks": "; ".join(record.get("marks", ()))}


def _own(record: Mapping[str, Any]) -> dict[str, Any]:
    """Of a record's identity, what its environment does not say already."""
    known = comparability.of(record)
    if known is None:
        return {"identity": comparability.NOT_RECORDED}
    flat: dict[str, Any] = {"identity": "recorded"}
    for name, value in known.items():
        flat |= value if isinstance(value, Mapping) else {name: value}
    card = _flat(record.get("environment", {}))
    said = {*card, *comparability.WITHIN_BLOCK, *(name.replace(" ", "_") for name in card)}
    return {name: value for name, value in flat.items() if name not in said}


def _started(record: Mapping[str, Any]) -> dict[str, Any]:
    known = comparability.of(record) or {}
    return {name: known[name] for name in comparability.WITHIN_BLOCK if name in known}


def _flat(card: Mapping[str, Any]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in card.items():
        if isinstance(value, Mapping):
            flat |= {str(inner): str(v) for inner, v in value.items()}
        elif name not in WANDERING:
            flat[name.replace("_", " ")] = (
                " ".join(map(str, value))
                if value and isinstance(value, list)
                else str(value if value not in (None, []) else "–")
            )
    return flat
