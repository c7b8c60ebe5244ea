"""The archive that `mptexp gpu-hour` leaves, and how it becomes reports elsewhere.

An archive may come from anybody: what it unpacks is bounded, and lies in one new folder.
"""

import importlib.util
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mptexp.api import commands
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.errors import ParamsError
from mptexp.traces import xplane

MOST_FILES, MOST_BYTES = 100_000, 8 * 2**30
MOST_HEADER = 2**16  # bytes of a name: tarfile reads one into memory before it can be refused
HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class Member(tarfile.TarInfo):
    """A member of an archive whose headers are bounded."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        """The place that tarfile names for what a subclass does with a member."""
        if self.type in HEADERS and self.size > MOST_HEADER:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        return super()._proc_member(tar)  # type: ignore[misc, no-any-return]


def pack(folder: Path) -> Path:
    """Writes the archive of a folder beside it, whole or not at all, and returns it.

    Raises:
        OSError: if it cannot be written.
    """
    target = folder.with_name(f"{folder.name}.tar.gz")
    partial = target.with_name(f".{target.name}.partial")
    try:
        with tarfile.open(partial, "w:gz", compresslevel=1) as tar:
            tar.add(folder, folder.name, filter=_whole)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _whole(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """What is not at work, without its owner: runs are made in `partial`."""
    if "partial" in Path(member.name).parts or not (member.isreg() or member.isdir()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpack(archive: Path, folder: Path) -> list[Path]:
    """Unpacks an archive into a new folder; returns the directories of the sweeps in it.

    Raises:
        ParamsError: if it is no such archive, holds more than is allowed or what is no plain file,
            or the folder is there already. Nothing is left then.
    """
    if folder.exists():
        raise ParamsError(f"--to {folder}: exists already; allowed: a new folder")
    if not hasattr(tarfile, "data_filter"):
        raise ParamsError("open: this Python cannot unpack safely; allowed: 3.11.4 or later")
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with tarfile.open(archive, "r:gz", tarinfo=Member) as tar:
            for member in _allowed(archive, tar):
                tar.extract(member, place, filter="data")
        place.rename(folder)
    except (tarfile.TarError, EOFError, OSError, UnicodeError, ValueError) as error:
        if isinstance(error, ParamsError):
            raise
        raise ParamsError(f"{archive}: cannot be unpacked: {error}") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return sorted(path.parent for path in folder.rglob("sweep.json"))


def _allowed(archive: Path, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members in order, refused where they are too many, too large or no plain files."""
    size = 0
    for number, member in enumerate(tar, 1):
        size += member.size
        if number > MOST_FILES or size > MOST_BYTES:
            raise ParamsError(
                f"{archive}: unpacks to more than {MOST_FILES:,} files or {MOST_BYTES / 2**30:g} "
                "GiB; allowed: an archive of mptexp gpu-hour"
            )
        if not (member.isreg() or member.isdir()):
            raise ParamsError(f"{archive}: {member.name} is neither a file nor a folder")
        yield member


def open_archive(archive: Path, folder: Path) -> tuple[list[Path], list[str]]:
    """Makes the reports of the sweeps in an archive.

    Traces that the other machine could not read are read first, where xprof is installed.

    Returns:
        The pages, and what is not valid of them, a sentence each.

    Raises:
        ParamsError: as `unpack` does, or if it holds no sweep.
    """
    sweeps = [place for place in unpack(archive, folder) if SweepDir(place).runs.exists()]
    if not sweeps:
        raise ParamsError(f"{archive}: holds no measured sweep")
    pages, faults = [], []
    for place in sweeps:
        if importlib.util.find_spec("xprof") and list(place.rglob(xplane.FILE)):
            faults += commands.read_traces(place)[1]
        page, not_valid = commands.report(place)
        pages.append(page)
        faults += not_valid
    return pages, faults
