"""Errors of the user's: their message says all, so that no frame of ours is shown with it."""

import traceback


class UserError:
    """Mixin for an exception that a notebook's cell shows as its message alone."""

    __cause__: BaseException | None

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the message, after the user's own error where that is the cause."""
        cause = [] if self.__cause__ is None else traceback.format_exception(self.__cause__)
        return [*"".join(cause).splitlines(), f"{type(self).__name__}: {self}"]


class ParamsError(UserError, ValueError):
    """Wrong input of the user's: the message says what was given, where, and what is allowed."""


class Stopped(UserError, RuntimeError):
    """What was asked for had to stop before its end, through no fault of the input.

    No room for files, no node left, a Jupyter kernel that was killed: the same command goes on.
    """


class Interrupted(UserError, KeyboardInterrupt):
    """Ctrl-C, or the interruption of a cell: the runs at work were ended, finished ones are kept.

    Attributes:
        kept: what was kept, in words.
        fresh: whether the same again would discard it.
    """

    def __init__(self, kept: str, fresh: bool = False) -> None:
        again = "run this cell again, without fresh," if fresh else "run this cell again"
        super().__init__(f"{kept}; {again} to go on")
        self.kept, self.fresh = kept, fresh
