"""Layer, part and operation out of the names that TensorFlow and XLA give what they run.

While steps are traced, the names of Keras's layers end in `LAYER`, by which paths such as
`functional_1/conv2d.layer/Conv2D` are taken apart. What an operation is for is not said here.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from mptexp.traces.operations import Operation

LAYER = ".layer"  # TensorFlow appends numbers of its own to names; this tells where ours end
SCALING = {"IsFinite", "All", "LogicalAnd", "is_finite", "reduce_and", "and"}
# Keras adds regularizers to the loss outside of any scope: TensorFlow names them by the operation.
WITHOUT_SCOPE = re.compile(
    r"(\w*PartitionedCall/|while/(body/_\d+/)?)*(gradient_tape/)?(abs|addn?|addv2|max|maximum"
    r"|mean|mul|packed|pow|range|reshape|sign|sqrt|square|sub|sum|tile|truediv)(_\d+)?(/|$)",
    re.IGNORECASE,
)
# The end of a path that names a scope, not an operation: XLA gives a fusion the path that all
# operations in it have in common.
SCOPE = re.compile(
    rf"\)$|{re.escape(LAYER)}(_\d+)?$|^(while|body|cond|branch_\d+_fun|closed_call|xla_run)$"
)


@dataclass(frozen=True)
class Naming:
    """Names of the operations of one training.

    Attributes:
        optimizers: names under which the optimizer's operations stand.
        scaled: whether the loss is scaled.
    """

    optimizers: Collection[str]
    scaled: bool

    def operation(self, path: str, op: str, kernel: str) -> Operation:
        """What stands under a path such as `model/dense.layer/MatMul`."""
        op = re.sub(r"^_Mkl(Native)?", "", op)
        layers = re.findall(r"([^/()]+)" + re.escape(LAYER), path)
        if layers:
            backward = "gradient_tape/" in path or "transpose(" in path
            return Operation("op", layers[0], "backward" if backward else "forward", op, kernel)
        return Operation("op", "", self._part(path, op), op, kernel)

    def _part(self, path: str, op: str) -> str:
        last = path.rpartition("/")[2]
        words = {re.sub(r"_\d+$", "", word) for word in re.split(r"[/()]", path)}
        if words & set(self.optimizers):
            return "optimizer"
        if self.scaled and (op in SCALING or last in SCALING or "cond" in words):
            return "loss scaling"
        named = words & {"compile_loss", "compile_metrics"} or WITHOUT_SCOPE.match(path)
        return "loss" if named else "other"

    def gpu_kernel(self, name: str, args: Mapping[str, str]) -> Operation:
        """What a GPU kernel or a copy was launched for.

        Args:
            args: the details that stand with the event.
        """
        if name.startswith(("Memcpy", "Memset")):
            return Operation("copy", op=name.split(" ")[0])
        path, op = _launched_for(args)
        plain = name if re.fullmatch(r"[a-z][\w-]*", name) else ""  # as XLA names its own
        instruction = _without_number(args.get("hlo_op", plain))
        if not op or _says_more(instruction, op):
            op = instruction
        return self.operation(path, op, name)


def full_name(name: str, args: Mapping[str, str]) -> str:
    """Path and type of a TensorFlow operation, such as `model/dense/MatMul:MatMul`; else empty."""
    name = args.get("long_name") or name
    return name if re.fullmatch(r"[\w.\\/>-]+:\w+", name) else ""


def _launched_for(args: Mapping[str, str]) -> tuple[str, str]:
    """Path and operation that a kernel was launched for; no operation where only a scope is known.

    TensorFlow's own stand under tf_op as path:Type. Under XLA tf_op is the outermost annotation,
    which says XlaModule, and the path stands under name, what all names have in common cut off into
    prefix (openxla/xla, cupti_collector.cc; marin-community/marin, pull request 8691).
    """
    xla = "hlo_op" in args or args.get("tf_op", "").startswith("XlaModule")
    if not xla:
        path = args.get("tf_op") or args.get("long_name") or args.get("name") or ""
        if ":" in path:
            path, _, op = path.rpartition(":")
            return path, op
    else:
        path = "/".join(part for part in (args.get("prefix"), args.get("name")) if part)
    last = path.rpartition("/")[2]
    return path, "" if SCOPE.search(last) else last


def _says_more(instruction: str, op: str) -> bool:
    """Whether XLA's name of a fusion says what it does, and the path only one operation in it.

    `loop_convert_fusion` is what ends in a cast, whatever else is in it: there the path decides.
    """
    if not re.match(r"(loop|input|wrapped)_", instruction):
        return False
    return instruction != "loop_convert_fusion" or op != "convert_element_type"


def _without_number(name: str) -> str:
    """`loop_add_fusion.3` as `loop_add_fusion`."""
    return re.sub(r"([._]+(\d+|remat\d*|clone))+$", "", name)
