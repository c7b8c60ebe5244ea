"""Papermill's engine, with a limit to output and the exit status of a dead Jupyter kernel."""

from typing import Any

from nbclient.exceptions import DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines

from mptexp.host.project import child_environment

NAME = "mptexp"
OVERHEAD, NEW_LINE = 150, 10  # characters that the file needs beside each output and each line
# To the first answer of a Jupyter kernel: minutes where many programs share a machine. What hangs
# is ended by the run's own limit, what died is known at once.
START_S = 600
MOST_OUTPUT = 5_000_000  # characters in a notebook; a run's page in a browser must open


class _Client(PapermillNotebookClient):
    left, process = MOST_OUTPUT, None

    def start_new_kernel(self, **kwargs: Any) -> None:
        super().start_new_kernel(env=child_environment(), **kwargs)
        self.process = self.km.provisioner.process  # the manager forgets it when it cleans up

    def output(self, outs: list[Any], msg: dict[str, Any], *where: Any) -> Any:
        if msg["msg_type"] == "error":  # it says why the notebook ended
            return super().output(outs, msg, *where)
        if self.left <= 0:
            return None
        text = str(msg["content"].get("text") or msg["content"].get("data", ""))
        self.left -= OVERHEAD + len(text) + NEW_LINE * text.count("\n")
        if self.left <= 0:
            note = f"{text[:10_000]}\n[output beyond {MOST_OUTPUT:,} characters was left out]\n"
            msg = msg | {"msg_type": "stream", "content": {"name": "stderr", "text": note}}
        return super().output(outs, msg, *where)


class _Engine(NBClientEngine):
    @classmethod
    def execute_managed_notebook(
        cls, nb_man: Any, kernel_name: str, config: Any = None, **_: Any
    ) -> Any:
        client = _Client(nb_man, kernel_name=kernel_name, startup_timeout=START_S, config=config)
        try:
            return client.execute()
        except (DeadKernelError, RuntimeError) as error:  # the latter while it is starting
            if not str(error).startswith("Kernel died"):
                raise
            dead = DeadKernelError(str(error))
            dead.exit_status = client.process.poll() if client.process else None
            raise dead from None


def register() -> None:
    """Makes the engine known to papermill under NAME."""
    papermill_engines.register(NAME, _Engine)
