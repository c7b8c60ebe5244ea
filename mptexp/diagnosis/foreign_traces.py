"""What bounds a training that mptexp did not run, from its trace; and two such traces compared.

A recording proves nothing beyond itself: its steps are neighbours in one process, and what tracing
did to them is in them. So a ratio of two has the spread of their steps, and no confidence interval.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import pandas as pd

from mptexp.diagnosis import breakdown, kernel_arithmetic
from mptexp.diagnosis.cause_times import LEAST_SHARE
from mptexp.diagnosis.causes import LABELS
from mptexp.traces import launches
from mptexp.traces.operations import CAPABILITY, WAITS, Trace
from mptexp.traces.step_bounds import WHOLE

# The ways in which a device waits for its host.
BY_HOST = ("host", "idle", "python", "retracing")
# What bounds a step: one cause, under whose name the tables have the same share, or these ways. Of
# equal shares the first counts, so waits stand before work.
_WAITING = ("input", "host", "allocation", "another GPU", "loop", "on the host", "communication")
BOUNDS = {name: (name,) for name in (*_WAITING, *LABELS) if name not in BY_HOST[1:]}
BOUNDS["host"] = BY_HOST
# Of the work of a single step of a training: with less of what multiplies, of backward passes or of
# what no rule knows, the recording ends before the step does.
LEAST_TRAINED = 0.01
SAME_LAYERS = 0.5  # of all layers of two recordings: so many are in both of one model
SAME_PRODUCTS = 3.0  # times: one training multiplies by more kernels in one type than in another
NAMED = 0.9  # of what multiplies: with less, operations of one's own hide products
SIZE = re.compile("[0-9]{1,12}")  # of an axis of a tensor
SHAPE_IN = re.compile(r"(\S+) in ([1-9]\d{0,8}/[1-9]\d{0,8})")  # a share of the steps
SEVERAL = 1.5  # steps of the optimizer: from here a step is several of the training
# Of operations of two recordings: so many have to be in both, and this share of them runs the same
# number of times as often in one, give or take so much, where one step is several of the other.
FEWEST_ALIKE, MOST_ALIKE, ALIKE = 4, 0.75, 0.05
UNMARKED_PRODUCTS = 1.3  # the same where nothing says how many steps a trace holds
SHRUNK = 0.75  # of the baseline's time: what takes more of it did not shrink with 16 bits
NO_LAYER = ("optimizer", "loss", "loss scaling", "updates")  # parts with a name, but no layer
# Types by how few bits a product keeps of its operands.
FEWER_BITS = {"float64": -1, "float32": 0, "tf32": 1, "float16": 2, "bfloat16": 2, "float8": 3}
FEWER_BITS |= {"int8": 3, "float4": 4}
# Causes whose work moves bytes, of which 16 bits have half as many; and collectives that send 16.
HALVED = ("memory", "casts", "communication", "copies", "loads", "loss", "random")
SENT_IN_16_BITS = re.compile(r"^(void )?(nccl|rccl)\w*_(bf16|f16|half|bfloat16)", re.IGNORECASE)
# Matrix work of these causes takes as long in 16 bits, which it has not, or is not the device's.
AS_LONG = ("no 16 bits", "on the host")
# Causes that may hold matrix work of which the trace, or this GPU's part of it, does not tell; with
# so much of the step in one of them nothing bounds what 16 bits could give.
HIDING = ("another GPU", "unexplained")
LEAST_HIDING = 0.1
INDUCTOR = (
    r"triton_(?:tem|poi|red|per|mix|spl|for)_fused_"  # opens names of torch.compile's kernels
)
COMPILED = 0.05  # of the time of memory-bound work
ON = {True: "on", False: "off"}
# What must be alike, and what a trace that does not tell it may still be.
TOLD_IN_ONE = {"ranks": "number of ranks", "CUDA": "CUDA version"}
MOST = 0.5  # of the matrix work: more than this is most of it


@dataclass(frozen=True)
class Recording:
    """A trace and its time breakdown.

    Attributes:
        file: the name of its file.
    """

    file: str
    trace: Trace

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return re.sub(r"(\.pt)?(\.trace)?\.(json|xplane\.pb|sqlite)(\.gz)?$", "", self.file)

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The operations with their causes, see `breakdown.of_trace`."""
        return breakdown.of_trace(self.trace)

    @cached_property
    def by_cause(self) -> pd.Series:
        """Seconds of the mean step by cause; causes that take nothing left out."""
        seconds = breakdown.by_cause_of(self.rows)
        return seconds[seconds > 0]

    @property
    def shares(self) -> pd.Series:
        """Of the step by cause."""
        return self.by_cause / self.trace.step_s

    def share(self, cause: str) -> float:
        """Of the step."""
        return float(self.shares.get(cause, 0.0))

    @property
    def bound(self) -> tuple[str, float]:
        """What takes most of the step, a key of `BOUNDS`, and its share."""
        shares = {name: sum(map(self.share, causes)) for name, causes in BOUNDS.items()}
        return max(shares.items(), key=lambda item: item[1])

    @property
    def cut_short(self) -> bool:
        """Whether the recording of a training ends within its first step, before its products."""
        if self.trace.steps > 1 or not self.trace.trains:
            return False
        needed = self._work.cause.isin(["matrix", "no 16 bits", "unexplained"])
        return _part(self._work, needed | (self._work.part == "backward")) < LEAST_TRAINED

    @property
    def told(self) -> bool:
        """Whether it tells where the time of a step goes: times were recorded, of a whole step."""
        return self.trace.timed and not self.cut_short

    @property
    def _work(self) -> pd.DataFrame:
        """What ran on the device: copies and waits left out."""
        return self.rows[~self.rows.cause.isin([*WAITS, "python", "on the host"])]

    @property
    def compiled(self) -> bool:
        """Whether torch.compile made part of the step: one metric is none, as against layers."""
        made_s = self.rows.seconds[self.rows.kernel.str.match(INDUCTOR)].sum()
        memory_s = self.rows.seconds[self.rows.cause == "memory"].sum()
        return bool(made_s > COMPILED * memory_s)

    @property
    def layer_share(self) -> float:
        """Of the device's time, in operations that have a layer."""
        return _part(self._work, self._work.layer != "")

    @property
    def named_layer_share(self) -> float:
        """Of the device's time in forward and backward passes, in operations that have a layer.

        Nothing else can have one: the optimizer, the loss and copies belong to none.
        """
        work = self._work[~self._work.part.isin([*NO_LAYER, ""])]
        return _part(work, work.layer != "")

    @property
    def by_layer(self) -> pd.Series:
        """Seconds of a step by layer, the longest first; the optimizer and the loss as layers."""
        work = self._work
        named = work.assign(layer=work.layer.where(work.layer != "", work.part))
        named = named[(named.layer != "") & (named.layer != "other")]
        return named.groupby("layer").seconds.sum().sort_values(ascending=False)

    @cached_property
    def products(self) -> pd.DataFrame:
        """The rows of matrix work that 16 bits may make faster, that of the loss and optimizer too.

        Its time stands once in the table by cause: under the loss's or the optimizer's own.
        """
        pairs = zip(self.rows.op, self.rows.kernel, strict=True)
        products = pd.Series([breakdown.multiplies(*pair) for pair in pairs], self.rows.index, bool)
        return self.rows[products & ~self.rows.cause.isin(AS_LONG)]

    @property
    def names_products(self) -> bool:
        """Whether nearly all that multiplies ran for a product that the host names."""
        ran = self.products
        named = ran[[breakdown.multiplies(op, "") for op in ran.op]]
        return named["count"].sum() >= NAMED * ran["count"].sum()

    @cached_property
    def arithmetic(self) -> pd.DataFrame:
        """Matrix work by type: type, tensor_cores (True, False, None), share of the matrix work.

        Of its time, or of the number of its kernels where none was timed.
        """
        rows = self.products
        if not self.trace.timed:
            rows = rows.assign(seconds=rows["count"])
        groups = kernel_arithmetic.table(rows).groupby(["arithmetic", "tensor_cores"])
        sums = groups.seconds.sum().sort_values(ascending=False)
        known = {"yes": True, "no": False, "unknown": None}
        used = [known[word] for word in sums.index.get_level_values("tensor_cores")]
        columns = {
            "type": sums.index.get_level_values("arithmetic"),
            "tensor_cores": pd.Series(used, dtype=object),
            "share": (sums / sums.sum()).to_numpy(),
        }
        return pd.DataFrame(columns)

    @property
    def main_type(self) -> str:
        """The type in which most of the matrix work is; empty where none has so much."""
        shares = self.arithmetic.groupby("type").share.sum()
        known = shares[(shares > MOST) & (shares.index != "unknown")]
        return str(known.index[0]) if len(known) else ""

    @property
    def precision(self) -> int | None:
        """In how few bits most of the matrix work is, a value of `FEWER_BITS`.

        None where the names of its kernels do not tell; a CPU has none.
        """
        known = self.arithmetic[self.arithmetic.type.isin(list(FEWER_BITS))]
        total = float(known.share.sum())
        if total < MOST:
            return None
        bits = known.type.map(FEWER_BITS)
        return max(n for n in {*bits} if float(known.share[bits >= n].sum()) > MOST * total)

    @property
    def best(self) -> float:
        """The largest speedup that 16 bits alone could give over this recording.

        Matrix work for nothing, what moves bytes in half the time, all else as it was. It bounds
        nothing where there is something `hiding`.
        """
        gone = self.products.seconds.sum() / self.trace.step_s + sum(self.halved.values()) / 2
        return float(1 / max(1 - gone, 1e-9))

    @property
    def halved(self) -> dict[str, float]:
        """Shares of the step that 16 bits could halve, by cause.

        What is in 16 bits is left out, and so is matrix work.
        """
        names = self.rows.kernel.map(lambda name: bool(SENT_IN_16_BITS.search(name)))
        others = ~names & ~self.rows.index.isin(self.products.index)
        rows = self.rows[others & self.rows.cause.isin(HALVED)]
        return dict(rows.groupby("cause").seconds.sum() / self.trace.step_s)

    @property
    def hiding(self) -> dict[str, float]:
        """Shares of the step by cause, of which nobody knows what 16 bits would make of them."""
        shares = {cause: self.share(cause) for cause in HIDING}
        return {cause: share for cause, share in shares.items() if share >= LEAST_HIDING}


def same_input(first: str, second: str) -> bool:
    """Whether the first products of two recordings read as much, in as large shares of the steps.

    8x128x768 of one is 1024x768 of another, which is flat.
    """
    known = [_shapes(text) for text in (first, second)]
    flat = [all(shape.count("x") == 1 for shape in shapes) for shapes in known]
    sizes = [size for shapes in known for shape in shapes for size in shape.split("x")]
    if flat[0] == flat[1] or not all(map(SIZE.fullmatch, sizes)):
        return known[0] == known[1]
    return _flat(known[0]) == _flat(known[1])


def _shapes(text: str) -> Mapping[str, Fraction]:
    """The share of the steps that has each shape, of `32x64 in 2/3, 32x128 in 1/3`."""
    parts = [SHAPE_IN.fullmatch(part) for part in text.split(", ")]
    known = {part[1]: Fraction(part[2]) for part in parts if part}
    return known if len(known) == len(parts) else {text: Fraction(1)}


def _flat(shapes: Mapping[str, Fraction]) -> Mapping[tuple[int, int], Fraction]:
    """The same by rows and columns."""
    shares: dict[tuple[int, int], Fraction] = {}
    for shape, share in shapes.items():
        *outer, last = map(int, shape.split("x"))
        key = (math.prod(outer), last)
        shares[key] = shares.get(key, Fraction()) + share
    return shares


def _named(text: str) -> str:
    """The shapes of `_shapes` as a sentence has them: of many the first."""
    shapes = _shapes(text)
    if len(shapes) == 1:
        return text
    return f"{launches.first_shapes(shapes.items())} of the steps"


def _part(table: pd.DataFrame, which: pd.Series) -> float:
    total = float(table.seconds.sum())
    return float(table.seconds[which].sum()) / total if total else 0.0


@dataclass(frozen=True)
class Comparison:
    """Two recordings, such as of one training in float32 and in mixed precision."""

    baseline: Recording
    candidate: Recording

    @property
    def identical(self) -> bool:
        """Whether both are one recording."""
        before, after = self.baseline.trace, self.candidate.trace
        return before.operations == after.operations and before.step_times == after.step_times

    @property
    def places(self) -> dict[str, tuple[str, str]]:
        """What differs of where and how they were recorded: of both, by what it is."""
        pairs = {"framework": lambda t: t.framework, "device": lambda t: t.device,
                 "GPU": lambda t: t.gpu.partition(" ")[2], "GPUs": _gpus,
                 "GPU number": lambda t: t.gpu.partition(" ")[0].removeprefix("GPU:")}  # fmt: skip
        known = {name: tuple(map(of, self._traces)) for name, of in pairs.items()}
        recorded = [trace.recorded for trace in self._traces]
        names = [name for name in recorded[0] if name != CAPABILITY]  # the GPU's name says it
        known |= {name: tuple(one.get(name, "") for one in recorded) for name in names}
        known["steps with the optimizer"] = self._updated(cut=True)
        if {trace.framework for trace in self._traces} == {"PyTorch"}:
            recordings = (self.baseline, self.candidate)
            known["torch.compile"] = tuple(ON[one.compiled] for one in recordings)
            known["CUDA graphs"] = tuple(ON[trace.graphed] for trace in self._traces)
        return self._differing(known)

    @property
    def untold(self) -> list[str]:
        """What has to be alike for the ratio to be one of precision, and a trace does not tell."""
        traces = self._traces
        named = "processor" if {trace.device for trace in traces} == {"cpu"} else "GPU"
        unknown = {
            "batch size": not all(trace.input_shape for trace in traces),
            named: not all(trace.gpu.partition(" ")[2] for trace in traces),
        }
        first, second = (trace.recorded for trace in traces)
        either = {**first, **second}
        alone = [
            f"{text} ({either[name]} in one alone)"
            for name, text in TOLD_IN_ONE.items()
            if (name in first) != (name in second)
        ]
        return [name for name, holds in unknown.items() if holds] + alone

    @property
    def works(self) -> dict[str, tuple[str, str]]:
        """What differs of the work of a step, so that no ratio of times is one of precision."""
        trains = {True: "training", False: "inference", None: ""}
        known = {
            "work": tuple(trains[trace.trains] for trace in self._traces),
            "a step": self._steps(),
            "steps with the optimizer": self._updated(cut=False),
            "input of the first product": self._inputs(),
        }
        return self._differing(known) | self._models()

    def _steps(self) -> tuple[str, ...]:
        """What the steps of both are, as far as both tell."""
        told = all(t.accumulated or t.updates is not None for t in self._traces)
        either = any(t.accumulated for t in self._traces)
        return tuple(map(_step, self._traces)) if told or either else ("", "")

    def _inputs(self) -> tuple[str, ...]:
        """The shapes of what both read, where these differ."""
        shapes = tuple(trace.input_shape for trace in self._traces)
        return ("", "") if same_input(*shapes) else tuple(map(_named, shapes))

    def _updated(self, cut: bool) -> tuple[str, ...]:
        """In how many steps of both the optimizer steps, where gradients accumulate over others.

        As far as both tell.

        Args:
            cut: whether it may differ only as they begin and end at other places of a cycle.
        """
        told = all(trace.accumulated and trace.updates for trace in self._traces)
        if not told or len({trace.updates for trace in self._traces}) == 1:
            return "", ""
        least, most = zip(*map(_cycle, self._traces), strict=True)
        if cut != (max(least) <= min(most)):
            return "", ""
        return tuple(f"{_updates(trace)} of {trace.steps}" for trace in self._traces)

    @property
    def _traces(self) -> tuple[Trace, Trace]:
        return self.baseline.trace, self.candidate.trace

    @staticmethod
    def _differing(pairs: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, str]]:
        return {name: (a, b) for name, (a, b) in pairs.items() if a and b and a != b}

    def _models(self) -> dict[str, tuple[str, str]]:
        """The number of layers or of products, where they cannot be of one step of one model."""
        first, second = self.baseline.rows, self.candidate.rows
        counts = {name: len(set(rows.layer) - {""}) for name, rows in (("a", first), ("b", second))}
        if min(counts.values()) > 1 and "framework" not in self.places:  # each names its own way
            common = max(_common(first, second), _common(numbered(first), numbered(second)))
            if common < SAME_LAYERS:
                return {"layers": (str(counts["a"]), str(counts["b"]))}
        if often := _often(first, second):
            return {"how often an operation runs in a step": often}
        both = (self.baseline, self.candidate)
        if all(one.trace.weights and one.names_products for one in both):
            return self._weights()
        products = [float(one.products["count"].sum()) for one in both]
        known = max(one.share("unexplained") for one in both) < LEAST_SHARE
        marked = WHOLE not in (trace.how for trace in self._traces)
        most = SAME_PRODUCTS if marked else UNMARKED_PRODUCTS
        if max(products) > most * min(products) and (min(products) or known):
            return {"matrix operations": (f"{products[0]:.0f}", f"{products[1]:.0f}")}
        return {}

    def _weights(self) -> dict[str, tuple[str, str]]:
        """How many weights the hosts multiply by in a step, or the first that differs."""
        before, after = (Counter(trace.weights) for trace in self._traces)
        if before.total() != after.total():
            return {"products with weights in a step": (f"{before.total()}", f"{after.total()}")}
        if before == after or before[""] != after[""]:  # of which no shape was recorded
            return {}
        return {"weights of a product": (min(before - after), min(after - before))}

    @property
    def comparable(self) -> bool:
        """Whether the ratio of their steps is one of how fast the same work was done."""
        return not self.works and self.baseline.told and self.candidate.told

    @property
    def speedup(self) -> float:
        """The baseline's mean step over the candidate's: above 1 the candidate is faster."""
        return self.baseline.trace.step_s / self.candidate.trace.step_s

    @property
    def spread(self) -> tuple[float, float]:
        """The ratio of any step to any other, the least and the largest."""
        before, after = self.baseline.trace.step_times, self.candidate.trace.step_times
        return min(before) / max(after), max(before) / min(after)

    @property
    def faster(self) -> int | None:
        """Which is faster, 0 the baseline and 1 the candidate; None where that is not known.

        It is where both did the same work in the same place and, of several steps each, the longest
        of one takes less than the shortest of the other.
        """
        steps = min(trace.steps for trace in self._traces)
        if not self.comparable or self.untold or self.places or steps == 1:
            return None
        low, high = self.spread
        return int(low > 1) if low > 1 or high < 1 else None

    @property
    def by_cause(self) -> pd.DataFrame:
        """Seconds of both by cause: baseline_s, candidate_s, difference_s (above 0 is slower)."""
        both = {"baseline_s": self.baseline.by_cause, "candidate_s": self.candidate.by_cause}
        table = pd.DataFrame(both).fillna(0.0)
        table = table.reindex([name for name in breakdown.LABELS if name in table.index])
        return table.assign(difference_s=table.candidate_s - table.baseline_s)

    @property
    def joined(self) -> pd.DataFrame:
        """Both joined on layer, part and cause, see `breakdown.joined`."""
        before, after = self.baseline.rows, self.candidate.rows
        if not set(before.layer) & set(after.layer) - {""}:
            before, after = numbered(before), numbered(after)
        return breakdown.joined(before, after)

    @property
    def unshrunk(self) -> pd.Series:
        """Seconds of the candidate by cause, of device work that took as long as before."""
        table = self.by_cause
        work = table.index.isin(["matrix", "memory", "casts", "optimizer", "loss scaling"])
        stayed = table[work & (table.candidate_s > SHRUNK * table.baseline_s)]
        return stayed.candidate_s.sort_values(ascending=False)


def _often(before: pd.DataFrame, after: pd.DataFrame) -> tuple[str, str] | None:
    """How often operations run in a step of both, where nearly all do more often in one of them.

    It is so where one step is several of the other: Keras's with steps_per_execution, or rounds of
    micro-batches. What precision changes is how many kernels some of the operations take.
    """
    counts = [
        rows.assign(named=rows.op.where(rows.op != "", rows.kernel))
        .groupby(["layer", "part", "named"])["count"]
        .sum()
        for rows in (before, after)
    ]
    ratios = (counts[1] / counts[0]).replace(math.inf, math.nan).dropna()
    if len(ratios) < FEWEST_ALIKE:
        return None
    times = float(ratios.median())
    if not times or ((ratios / times - 1).abs() < ALIKE).mean() < MOST_ALIKE:
        return None
    if 1 / SEVERAL < times < SEVERAL:
        return None
    return ("1", f"{times:.3g}") if times > 1 else (f"{1 / times:.3g}", "1")


def _gpus(trace: Trace) -> str:
    """How many GPUs worked; empty of a CPU."""
    return str(sum(seconds > 0 for seconds in trace.gpus.values()) or "")


def _step(trace: Trace) -> str:
    """What a step is, by how often the optimizer steps in it."""
    if trace.accumulated:
        return "not always with the optimizer"
    if trace.updates == 0:
        return "without the optimizer"
    if trace.updates is not None and trace.updates > SEVERAL:
        return f"with {trace.updates:.0f} steps of the optimizer"
    return "with the optimizer"


def _updates(trace: Trace) -> int:
    """How often the optimizer steps in all of a trace that tells it."""
    return round((trace.updates or 0) * trace.steps)


def _cycle(trace: Trace) -> tuple[int, float]:
    """Over how many steps gradients are accumulated, at least and at most.

    A trace that begins and ends within a cycle has an update more or less than whole ones have.
    """
    updates = _updates(trace)
    least = trace.steps // (updates + 1) + 1
    most = math.ceil(trace.steps / (updates - 1)) - 1 if updates > 1 else math.inf
    return least, max(least, most)


def _common(first: pd.DataFrame, second: pd.DataFrame) -> float:
    """Of the layers of two tables, how many are in both."""
    a, b = set(first.layer) - {""}, set(second.layer) - {""}
    return len(a & b) / len(a | b)


def numbered(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with the numbers in layers' names counted from 0: `conv2d_12` as `conv2d`.

    Keras and PyTorch count the layers of a process, so those of a model that was built twice have
    other numbers the second time.
    """
    least: dict[str, int] = {}
    for layer in rows.layer:
        for name, number in _numbers(layer):
            least[name] = min(number, least.get(name, number))
    return rows.assign(layer=[_renumbered(layer, least) for layer in rows.layer])


def _numbers(layer: str) -> list[tuple[str, int]]:
    parts = [re.fullmatch(r"(.*?)(?:_(\d+))?", part) for part in layer.split("/")]
    return [(part[1], int(part[2] or 0)) for part in parts if part]


def _renumbered(layer: str, least: Mapping[str, int]) -> str:
    if not layer:
        return layer
    return "/".join(f"{name}_{number - least[name]}" for name, number in _numbers(layer))
