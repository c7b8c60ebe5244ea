"""Layer, part and operation out of the names that TensorFlow and XLA give what they run.

While mptexp traces steps, the names of Keras's layers end in `LAYER`, by which paths such as
`functional_1/conv2d.layer/Conv2D` are taken apart. In anybody's trace the rules of `layer_path` do
that, for the paths of Keras 2 and 3 and the scopes of JAX. What an operation is for is not said
here.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from mptexp.traces.operations import AUTODIFF, LOOSE, TO_DEVICE, Operation

LOOP = re.compile(r"(^|/)while(_\d+)?/")
LAYER = ".layer"  # TensorFlow appends numbers of its own to names; this tells where ours end
SCALING = {"IsFinite", "All", "LogicalAnd", "is_finite", "reduce_and", "and"}
# Keras adds regularizers to the loss outside of any scope, where a model's work has two at least:
# its own and the operation's; a gradient has one more, of the operation that it belongs to.
AROUND_STEPS = r"^(\w*PartitionedCall/|while/(body/_\d+/)?)*"
WITHOUT_SCOPE = re.compile(AROUND_STEPS + r"(gradient_tape/)?(?(3)([^/]+/)?)[^/]+$")
GRADIENT_OF = re.compile(r"gradient_tape/([^/:]+)[/:]")
# Functions of TensorFlow's that work on all gradients or weights beside the optimizer.
UPDATES = re.compile(r"^(clip_by_\w+|global_norm|ExponentialMovingAverage)(_\d+)?$")
REDUCES = re.compile(r"^(Sum|Mean|Max|Min|Prod|L2Loss|AddN|EuclideanNorm)$")
# What autodiff adds, outside of any scope too, where a tensor is used twice or not at all.
# TensorFlow rewrites a long AddN as one sum after another.
ADDED = re.compile(
    r"(\w*PartitionedCall/|while/(body/_\d+/)?|gradient_tape/)*?"
    r"(?P<sum>(gradient_tape/)?(AddN|zeros_like|ZerosLike)(_\d+)?)(/tmp_var\w*)?$"
)
# The end of a path that names a scope, not an operation: XLA gives a fusion the path that all
# operations in it have in common.
SCOPE = re.compile(
    rf"\)$|{re.escape(LAYER)}(_\d+)?$|^(while|body|cond|branch_\d+_fun|closed_call|xla_run)$"
)


# Names under which optimizers stand in Keras 2 (Adam) and 3 (adam); lower case.
OPTIMIZERS = {"adam", "adamw", "adamax", "nadam", "sgd", "rmsprop", "adagrad", "adadelta", "ftrl"}
OPTIMIZERS |= {"lion", "lamb", "adafactor", "muon", "lossscaleoptimizer", "loss_scale_optimizer"}
OPTIMIZERS |= {"optimizer"}
APPLIES = re.compile(r"^(Resource)?(Sparse)?Apply[A-Z]")  # ResourceApplyAdam
# Words in the names of losses, and at the end of those of a model's parts: `hinge_block`.
LOSS = re.compile(
    r"(^|_)(cross_?entropy|mean_(squared|absolute)|huber|hinge|kullback|log_cosh|cosine_similarity"
    r"|compile_(loss|metrics)|loss(es)?)(_|$)|(^|_)regularizer$"
)
OF_MODEL = re.compile(
    r"_(net(work)?|model|module|block|stage|encoder|decoder|codec|embed(ding|der)?|tower|branch"
    r"|backbone|conv|dense|linear|projection|attention|transformer)$"
)
DIFFERENTIATED = re.compile(r"(^|[/(])(jvp|vjp|transpose)\(|(^|/)gradient_tape/")
CONVOLUTION = re.compile(r"conv(?!ert)", re.IGNORECASE)
PRODUCT = re.compile(r"matmul|dot_general|einsum|gemm", re.IGNORECASE)
# What frameworks put around the scopes of a model, and the function that an XLA module was made of.
WRAPPER = re.compile(
    r"^(jit|pjit|pmap|xla_pmap|jvp|vjp|transpose|vmap|remat|checkpoint|shard_map|named)\((.*)\)$"
)
FUNCTIONS = {"jit", "pjit", "pmap", "xla_pmap"}  # what they hold is a function, not a scope
AROUND = re.compile(
    r"^(gradient_tape|gradients|(Stateful)?PartitionedCall|XlaModule|replica|cond|then|else|while"
    r"|body|branch_\d+_fun|closed_call|core_call|xla_run|checkpoint|remat|rematted_computation"
    r"|custom_[jv]jp(_call)?|scan|shard_map|cluster(_\d+)?|S|)(_\d+)?:?$|^_\d+$"
)
# Outermost scopes of what belongs to no layer: clipping, metrics, batches, communication.
OUTSIDE = re.compile(
    r"^(clip_by_(global_)?norm|global_norm|\w*accuracy|IteratorGetNext|psum|pmean|all_gather)(_\d+)?$"
)
# Scopes below a layer of Keras, which are functions that it calls.
CALLS = {"add", "sub", "subtract", "mul", "multiply", "truediv", "floordiv", "div", "pow", "square"}
CALLS |= {"sqrt", "rsqrt", "mean", "batchnorm", "moments", "normalize", "dropout", "random_uniform"}
CALLS |= {"stateless_random_uniform", "stateless_dropout", "einsum", "strided_slice", "tensordot"}
CALLS |= {"Tensordot", "one_hot", "convolution"}
OPS = re.compile(  # the scopes that operations of TensorFlow open for what belongs to them
    r"^(Conv\dD|DepthwiseConv2d\w*|depthwise|separable_conv2d|MatMul|BatchMatMul\w*|BiasAdd|MaxPool|AvgPool|FusedBatchNorm\w*"
    r"|Softmax|LogSoftmax|Relu6?|Elu|Selu|Gelu|Mean|Sum|Prod|Max|Min|Cast|Reshape|Gather\w*|Transpose"
    r"|Pad|Concat\w*|Einsum|Mul|Add\w*|Sub|Tanh|Sigmoid|ResizeNearest\w*|ResizeBilinear)(_\d+)?$"
)


def layer_path(path: str, op: str) -> str:
    """The layer that a path such as `gradient_tape/model_1/conv2_conv/Conv2D/Conv2DBackprop` names.

    Returns:
        The scopes of the model down to the layer, `model_1/conv2_conv`; empty where none stands in
        the path.
    """
    scopes = [scope for part in _parts(path) for scope in _unwrapped(part)]
    of_xla = "jit(" in path
    scopes = [s for s in scopes[:-1] if not AROUND.match(s) and "->" not in s and " " not in s]
    if scopes and OUTSIDE.match(scopes[0]):
        return ""
    return "/".join(scopes if of_xla else _without_calls(scopes, op))


def _without_calls(scopes: list[str], op: str) -> list[str]:
    """Scopes without those below a layer of Keras: operations, and functions that it calls.

    `batchnorm/mul_1` goes; `add_3` alone is a layer.
    """
    last = len(scopes)
    for place in range(len(scopes) - 1, -1, -1):
        scope = scopes[place]
        if OPS.match(scope) or (place and (scope in CALLS or (op and op.startswith(scope)))):
            last = place
        elif _unnumbered(scope) not in CALLS:
            break
    return scopes[:last]


def _unnumbered(name: str) -> str:
    """A name without the number that makes it unique: `mul` of `mul_3`."""
    return re.sub(r"_\d+$", "", name)


def plain(path: str) -> str:
    """`gradient_tape/Mul` of `PartitionedCall/gradient_tape/Mul_3`: no function, no number."""
    return re.sub(r"_\d+(?=/|$)", "", re.sub(AROUND_STEPS, "", path))


def _parts(path: str) -> list[str]:
    """A path at its slashes, but for those within brackets."""
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(path):
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and depth <= 0:
            parts.append(path[begin:at])
            begin = at + 1
    return [*parts, path[begin:]]


def _outermost(path: str) -> str:
    """The first scope of a path that somebody named."""
    scopes = (scope for part in _parts(path) for scope in _unwrapped(part))
    return next((scope for scope in scopes if not AROUND.match(scope)), "")


@lru_cache(2**14)  # a trace has few scopes, and each very often
def _of_loss(scope: str) -> bool:
    """Whether a scope is a loss's, by the words of its name: no `gloss_decoder`, `hinge_block`."""
    plain = _unnumbered(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", scope))
    words = plain.lower()
    return bool(LOSS.search(words)) and not OF_MODEL.search(words)


def _unwrapped(scope: str) -> list[str]:
    """The scopes within `transpose(jvp(Model))`; none within `jit(train_step)`."""
    while match := WRAPPER.match(scope):
        if match[1] in FUNCTIONS:
            return []
        scope = match[2]
    return _parts(scope) if "/" in scope else [scope]


@dataclass(frozen=True)
class Naming:
    """Names of the operations of one training.

    Attributes:
        optimizers: names under which the optimizer's operations stand; empty in the trace of a
            training that mptexp did not run, where those of `OPTIMIZERS` do.
        scaled: whether the loss is scaled.
        differentiated: outermost names of what has gradients; empty where that is not known.
        loss_layers: layers that do nothing but add to the loss, as far as that is known.
        sums: of sums that autodiff added, by their names, the terms as path:type, as far as known.
        recomputed: plain names of what stands in no layer and is not the loss's, but the backward
            pass's: computed anew, or a gradient that somebody wrote; as far as that is known.
    """

    optimizers: Collection[str] = ()
    scaled: bool = False
    differentiated: Collection[str] = ()
    loss_layers: Collection[str] = ()
    sums: Mapping[str, Sequence[str]] = field(default_factory=dict)
    recomputed: Collection[str] = ()

    def operation(self, path: str, op: str, kernel: str) -> Operation:
        """What stands under a path such as `model/dense.layer/MatMul`."""
        op = re.sub(r"^_Mkl(Native)?", "", op)
        layers = re.findall(r"([^/()]+)" + re.escape(LAYER), path)
        if layers:
            part = _pass(path, path.partition(LAYER)[2])
            part = "loss" if layers[0] in self.loss_layers else part
            return Operation("op", layers[0], part, op, kernel)
        part = self._part(path, op)
        layer = "" if part != "other" or self.optimizers else layer_path(path, op)
        if layer:
            below = path[path.find(layer.partition("/")[0]) :]
            return Operation("op", layer, _pass(path, below), op, kernel)
        return Operation("op", "", part, op, kernel)

    def _part(self, path: str, op: str) -> str:
        last = path.rpartition("/")[2]
        words = {_unnumbered(word) for word in re.split(r"[/()]", path)}
        if APPLIES.match(op) or self._optimizes(path, op, words):
            return "optimizer"
        if added := ADDED.match(path):
            return "loss" if self._sums_a_loss(added["sum"]) else AUTODIFF
        if self.scaled and (op in SCALING or last in SCALING or "cond" in words):
            return "loss scaling"
        if UPDATES.match(_outermost(path)):
            return "backward" if plain(path) in self.recomputed else "updates"
        scopes = [scope for part in _parts(path) for scope in _unwrapped(part)]
        named = words & {"compile_loss", "compile_metrics"}
        if named or any(map(_of_loss, scopes[:-1])):
            return "loss"
        if _adds_to_loss(path, op):
            if plain(path) in self.recomputed:
                return "backward"
            return "loss" if self._of_loss(path, op, last) else LOOSE
        return "other"

    def _optimizes(self, path: str, op: str, words: Collection[str]) -> bool:
        """Whether an operation stands in an optimizer's scope; a layer may have such a name too.

        Of an optimizer nothing is differentiated, and its products stand in no other scope.

        Args:
            words: of the path, without numbers.
        """
        known = self._is_optimizer(*words)
        if not known or DIFFERENTIATED.search(path) or CONVOLUTION.search(op):
            return False
        outermost = _unnumbered(_outermost(path))
        of_model = outermost in self._gradients or bool(PRODUCT.search(op))
        return not of_model or self._is_optimizer(outermost)

    def _is_optimizer(self, *words: str) -> bool:
        if self.optimizers:
            return not set(self.optimizers).isdisjoint(words)
        return any(word.lower() in OPTIMIZERS for word in words)

    def _sums_a_loss(self, name: str) -> bool:
        """Whether a gradient of the loss's own is a term: without it nothing would be summed."""
        terms = (term.rpartition(":") for term in self.sums.get(name, ()))
        return any(self.operation(path, op, "").part == "loss" for path, _, op in terms)

    @cached_property
    def _gradients(self) -> set[str]:
        return set(map(_unnumbered, self.differentiated))

    def _of_loss(self, path: str, op: str, name: str) -> bool:
        """Whether an operation without a scope is a loss's: it has a gradient, or sums up.

        Of what a training step does besides, such as averages of weights, nothing has.
        """
        known = not self.differentiated or "gradient_tape/" in path
        # Without a scope `Tanh` has the gradient `gradient_tape/TanhGrad`, and `Mul_8` that of its
        # kind under a number of its own: `gradient_tape/Mul_3`.
        known = known or not {_unnumbered(name), f"{op}Grad"}.isdisjoint(self._gradients)
        return known or bool(REDUCES.match(op))

    def gpu_kernel(self, name: str, args: Mapping[str, str]) -> Operation:
        """What a GPU kernel or a copy was launched for.

        Args:
            args: the details that stand with the event.
        """
        if name.startswith("Memcpy"):
            # What a program of XLA's sends itself are weights and states; a batch is its input.
            of_program = "hlo_op" in args and TO_DEVICE.search(name)
            return Operation("copy", part="other" if of_program else "", op=name.split(" ")[0])
        if name.startswith("Memset"):
            return Operation("op", "", "other", "Memset", name)
        path, op = _launched_for(args)
        plain = name if re.fullmatch(r"[a-z][\w-]*", name) else ""  # as XLA names its own
        instruction = _without_number(args.get("hlo_op", plain))
        if not op or _says_more(instruction, op):
            op = instruction
        return self.operation(path, op, name)


def _pass(path: str, below: str) -> str:
    """Forward, backward, or loop: an operation within a loop of TensorFlow's that a layer runs.

    Not where steps themselves run in a loop, and not XLA's loops, which hold whole layers.

    Args:
        below: the path from the layer on.
    """
    if LOOP.search(below) and "jit(" not in path:
        return "loop"
    backward = re.search(r"(^|/)gradient(_tape|s)/|transpose\(", path)
    return "backward" if backward else "forward"


def _adds_to_loss(path: str, op: str) -> bool:
    """Whether an operation of TensorFlow's stands for itself; not casts of images and counters."""
    own = op[:1].isupper() and not re.search(r"^Cast$|Variable|Iterator", op)
    return own and bool(WITHOUT_SCOPE.match(path))


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
        # Up to 2022 TensorFlow wrote an annotation, `path:Type#shape=(...)#`.
        of_2022 = args.get("level 0") or args.get("annotation", "").partition("#")[0]
        path = args.get("tf_op") or args.get("long_name") or of_2022 or args.get("name", "")
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
