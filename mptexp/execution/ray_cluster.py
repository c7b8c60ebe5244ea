"""A Ray cluster: how it is joined, and which devices it has.

Ray is imported inside functions, because only --executor ray needs it.
"""

import importlib.util
import logging
import os
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mptexp.errors import ParamsError
from mptexp.execution import jupyter_kernel
from mptexp.execution.local_executor import Execution
from mptexp.host.devices import cpu_name, holds_words, same_model
from mptexp.host.project import install
from mptexp.spec.run import Run

EXECUTORS = ("local", "ray")
T = TypeVar("T")

ANSWER_S = 5.0  # for a cluster to answer at all
LOOK_S = 1.0  # between two looks at a head whose answer is waited for
KINDS = "accelerator_type:"  # prefix of the resource by which Ray names a node's GPU
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "1", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
# Ray's switch for systems whose firewall asks about each open port: all of it listens on 127.0.0.1.
# And runs on a Ray of our own have the priority that they have without it.
OWN = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_niceness": "0"}
# Each of Ray's processes imports jsonschema, and so what hides here: five of its six seconds.
HIDING = str(Path(__file__).with_name("hidden_from_ray"))
# Otherwise Ray tries for a quarter of an hour to reach what listens but is no cluster, and ends
# this process a minute after a head was lost: it may be rendering its report by then.
JOINED = {"RAY_NUM_REDIS_GET_RETRIES": "1", "RAY_gcs_rpc_server_reconnect_timeout_s": "600"}
_CPUS: dict[str, str] = {}  # node -> name of its CPU, as far as nodes were asked


class HeadLost(RuntimeError):
    """Nothing listens at the address of the cluster's head any more."""


@dataclass(frozen=True)
class Place:
    """Where runs can be executed: all GPUs of a type, or the CPU of one node.

    Attributes:
        model: Ray's name of the GPU, or the CPU's.
        room: GPUs of all nodes; 1 for a CPU.
        most: GPUs of the node that has most of them; 1 for a CPU.
        node: Ray's id of the CPU's node, empty for GPUs.
        cpus: what Ray counts there: a run of a CPU takes them all.
    """

    model: str
    room: int
    most: int
    node: str = ""
    cpus: float = 1

    @property
    def key(self) -> str:
        return self.node or self.model

    def fits(self, model: str) -> bool:
        """Whether this is such a device; a GPU's name may be Ray's or NVML's longer one."""
        return same_model(model, self.model) or (not self.node and holds_words(self.model, model))

    def takes(self, run: Run) -> int:
        """How many GPUs a run takes; one with more replicas than a node has then says so itself."""
        return min(run.replicas, self.most)

    def options(self, run: Run) -> dict[str, Any]:
        """Options of a run's Ray task: what it takes, and where."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if not self.node:
            return {"num_gpus": self.takes(run), "num_cpus": 1, "accelerator_type": self.model}
        here = NodeAffinitySchedulingStrategy(self.node, soft=False)
        return {"num_gpus": 0, "num_cpus": self.cpus, "scheduling_strategy": here}


# --- joining a cluster ------------------------------------------------------------------------


def check(how: Execution, address: str | None, max_batch: bool) -> None:
    """Refuses options that an executor does not have, and one that is not installed.

    Raises:
        ParamsError: with what is allowed, or how to install it.
    """
    if how.executor not in EXECUTORS:
        raise ParamsError(f"--executor {how.executor}: unknown; allowed: {', '.join(EXECUTORS)}")
    if how.executor == "local":
        if address:
            raise ParamsError(f"--address {address}: of a Ray cluster; allowed: --executor ray")
        return
    if importlib.util.find_spec("ray") is None:
        raise ParamsError(f"--executor ray: Ray is not installed; {install('ray')}")
    if max_batch:
        raise ParamsError(
            "--executor ray: max_batch searches on one machine; allowed: --executor local, or "
            "batch sizes in the matrix"
        )
    if how.parallel > 1:
        raise ParamsError(f"--executor ray: --parallel {how.parallel}; allowed: --executor local")


def connect(address: str | None, models: Iterable[str]) -> None:
    """Joins a cluster, or starts Ray on this machine, and checks that it has some devices.

    Args:
        address: HOST:PORT of the cluster's head, `auto`, or None: RAY_ADDRESS, else this machine.
        models: of the runs that are due.

    Raises:
        ParamsError: if the cluster does not answer, or lacks one of the devices.
    """
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if not (wanted := set(models)):
        return
    _join(address)
    try:
        if not missing(wanted, answer(places)):  # asking each node for its CPU takes seconds
            return
        available = answer(places, cpus=True)
    except HeadLost:
        raise ParamsError(f"--address {address}: this Ray cluster has just ended") from None
    if lacking := missing(wanted, available):
        names = ", ".join(sorted({place.model for place in available})) or "none that can be used"
        raise ParamsError(
            f"gpu_model {', '.join(lacking)}: the Ray cluster ({address}) has no such device; "
            f"allowed: {names}"
        )


def _join(address: str) -> None:
    if address not in ("auto", "local"):
        _answers(address)
    # Only this process may use a Ray of its own; Ray would leave a token in the home directory.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
    path = os.pathsep.join(filter(None, (HIDING, os.environ.get("PYTHONPATH"))))
    own = OWN | token | {"PYTHONPATH": path}
    os.environ.update(QUIET | (own if address == "local" else JOINED))
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    jupyter_kernel.spare()
    import ray

    before = signal.getsignal(signal.SIGTERM)
    # Only records and notebooks pass through Ray's store of objects.
    small = {"object_store_memory": 2**27} if address == "local" else {}
    try:
        ray.init(
            address,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="CRITICAL",
            configure_logging=False,
            **small,
        )
    except Exception as error:  # of a raylet that is not up in time Ray raises no class of its own
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ParamsError(
            f"--executor ray: Ray did not start here: {said}; where the machine was busy, the same "
            "command tries again"
            if address == "local"
            else f"--address {address}: {said}; a cluster that asks for a token is reached with "
            "RAY_AUTH_MODE=token"
        ) from None
    finally:
        signal.signal(signal.SIGTERM, before)  # Ray's own handler ends the process silently


def _answers(address: str) -> None:
    """Checks that something listens at an address: Ray itself would wait a minute for it."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ParamsError(f"--address {address}: is not HOST:PORT of a Ray cluster's head, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
    except OSError as error:
        raise ParamsError(
            f"--address {address}: no Ray cluster answers there ({error.strerror or error}); "
            "allowed: the address that `ray start --head` printed"
        ) from None


def answer(call: Callable[..., T], *words: Any, **named: Any) -> T:
    """Calls something of Ray's that waits for the cluster, and returns its answer.

    Without a head it would wait for ever, and could not be interrupted: it waits in a thread.

    Raises:
        HeadLost: if the head stops answering before the call returns.
    """
    future: futures.Future[T] = futures.Future()

    def work() -> None:
        try:
            future.set_result(call(*words, **named))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    while not future.done():
        if not head_answers():
            raise HeadLost
        futures.wait([future], LOOK_S)
    if (error := future.exception()) and not head_answers():
        raise HeadLost from error  # which may say anything
    return future.result()


def head_answers() -> bool:
    """Whether something still listens at the head's address."""
    import ray

    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
    except OSError:
        return False
    return True


# --- devices of the cluster -------------------------------------------------------------------


def places(cpus: bool = False) -> list[Place]:
    """Where runs can be executed now: on GPUs and, if `cpus`, on the nodes' CPUs."""
    nodes = _nodes()
    gpus: dict[str, list[int]] = {}  # model -> how many each node has
    for resources in nodes.values():
        for kind in (n.removeprefix(KINDS) for n in resources if n.startswith(KINDS)):
            if resources.get("GPU", 0) >= 1:
                gpus.setdefault(kind, []).append(int(resources["GPU"]))
    names = _cpu_names(nodes) if cpus else {}
    return [
        *(Place(kind, sum(counts), max(counts)) for kind, counts in sorted(gpus.items())),
        *(Place(name, 1, 1, node, nodes[node]["CPU"]) for node, name in names.items()),
    ]


def missing(models: Iterable[str], available: Sequence[Place]) -> list[str]:
    """Returns the models that no place fits."""
    return [m for m in sorted(set(models)) if not any(place.fits(m) for place in available)]


def _nodes() -> dict[str, dict[str, float]]:
    """Ids and resources of the nodes that are alive and take tasks."""
    import ray

    alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    return {node: has for node, has in alive.items() if has.get("CPU", 0) >= 1}


def _cpu_names(nodes: Iterable[str]) -> dict[str, str]:
    """Ids of nodes and the names of their CPUs, without the nodes that do not answer."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, max_retries=0)(cpu_name)
    answers = {
        node: ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, False)).remote()
        for node in nodes
        if node not in _CPUS
    }
    for node, answer in answers.items():
        try:
            _CPUS[node] = ray.get(answer, timeout=60)
        except ray.exceptions.RayError:
            continue
    return {node: _CPUS[node] for node in nodes if node in _CPUS}
