"""The archive that `mptexp gpu-hour` leaves, and how it becomes reports elsewhere.

An archive may come from anybody: what it unpacks is bounded, and lies in one new folder.
"""

import gzip
import importlib.util
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import TypeAdapter

from mptexp.api import commands
from mptexp.errors import ParamsError, Stopped
from mptexp.host import files
from mptexp.records import instrument_checks, privacy, store
from mptexp.records.sweep_dir import MARKER, PARAMS, SweepDir
from mptexp.traces import xplane

INSTRUMENTS = "instruments.json"  # what `doctor --check` printed on the other machine
RUNS = ("runs", "superseded")  # where it keeps records that are read
MOST_FILES, MOST_BYTES = 100_000, 8 * 2**30
# Names may take so much between two members: tarfile reads all of it into memory, and one header
# after the other by recursion.
MOST_HEADER = 2**16
MOST_DEPTH = 40  # folders in folders; Python removes and makes them by recursion
PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE)
NAMES = (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME)  # headers that only name the next member


class Member(tarfile.TarInfo):
    """A file or a folder of an archive; all else is refused before tarfile reads on."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        """The place that tarfile names for what a subclass does with a member."""
        if self.type not in (*PLAIN, *NAMES):
            raise tarfile.ReadError(f"{self.name} is neither a file nor a folder")
        if self.size < 0 or (self.type in NAMES and self.size > MOST_HEADER):
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        member = super()._proc_member(tar)  # type: ignore[misc]
        if member.size < 0 or member.type not in PLAIN or member.issparse():
            raise tarfile.ReadError(f"{member.name} is neither a file nor a folder")
        return member  # type: ignore[no-any-return]


class Bounded:
    """What an archive unpacks to, of which no more is read than `left` allows."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self.stream, self.left = stream, MOST_HEADER

    def read(self, size: int) -> bytes:
        content = self.stream.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise tarfile.ReadError(f"a header of more than {MOST_HEADER:,} bytes")
        return content


def pack(folder: Path) -> Path:
    """Writes the archive of a folder beside it, whole or not at all, and returns it.

    Raises:
        OSError: if it cannot be written.
        Stopped: if it would lack a record that the folder holds.
    """
    packed = target(folder)
    partial = packed.with_name(f".{packed.name}.partial")
    at_work, records = _at_work(folder), _records(folder)
    try:
        with tarfile.open(partial, "w:gz", compresslevel=1) as tar:
            tar.add(folder, folder.name, filter=lambda member: _chosen(member, at_work))
            for path in sorted(folder.rglob(PARAMS)):
                if at_work.isdisjoint(_name(parent, folder) for parent in path.parents):
                    _add_params(tar, path, folder)
            held = set(tar.getnames())
        _check_whole(folder, [path for path in records if _name(path, folder) not in held])
        os.replace(partial, packed)
    finally:
        partial.unlink(missing_ok=True)
    return packed


def _name(path: Path, folder: Path) -> str:
    """The name of a file in the archive of a folder; empty of what lies elsewhere."""
    inside = path.is_relative_to(folder)
    return (folder.name / path.relative_to(folder)).as_posix() if inside else ""


def _at_work(folder: Path) -> set[str]:
    """The names of the folders in which the sweeps in a folder make their runs."""
    sweeps = [SweepDir(marker.parent) for marker in folder.rglob(MARKER)]
    return {_name(part.partial, folder) for sweep in sweeps for part in sweep.parts}


def _records(folder: Path) -> list[Path]:
    """The files of all records in a folder, those behind links as well."""
    places = [place for name in RUNS for place in folder.rglob(name)]
    return [path for place in places for path in store.record_files(place)]


def _check_whole(folder: Path, missing: Sequence[Path]) -> None:
    """Refuses an archive that would lack what others should see.

    Raises:
        Stopped: with the first record that is missing, and was not moved meanwhile.
    """
    left = [path for path in missing if os.path.lexists(path)]
    if left:
        others = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise Stopped(
            f"{target(folder)}: not written, for it would lack {left[0]}{others}; allowed: plain "
            "files in folders that are no links"
        )


def _add_params(tar: tarfile.TarFile, path: Path, folder: Path) -> None:
    """Adds a sweep's file as it may leave this machine."""
    member = _plain(tar.gettarinfo(path, _name(path, folder)))
    if member and member.isreg():
        content = privacy.published_params(files.text(path)).encode()
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))


def target(folder: Path) -> Path:
    """Where the archive of a folder lies."""
    return folder.with_name(f"{folder.name}.tar.gz")


def _chosen(member: tarfile.TarInfo, at_work: Container[str]) -> tarfile.TarInfo | None:
    """What is packed as it is: not what is at work, nor what others may not read so."""
    is_params = member.isreg() and Path(member.name).name == PARAMS
    return None if is_params or member.name in at_work else _plain(member)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """A file or a folder, without its owner; None for all else."""
    if not (member.isreg() or member.isdir()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpack(archive: Path, folder: Path) -> list[Path]:
    """Unpacks an archive into a new folder; returns the directories of measured sweeps in it.

    Raises:
        ParamsError: if it is no such archive, is damaged, holds no sweep, more than is allowed or
            what is no plain file, or the folder is there already. Nothing is left then.
    """
    if os.path.lexists(folder):
        raise ParamsError(f"--to {folder}: exists already; allowed: a new folder")
    if not hasattr(tarfile, "data_filter"):
        raise ParamsError("open: this Python cannot unpack safely; allowed: 3.11.4 or later")
    if not files.is_file(archive):
        raise ParamsError(
            f"{archive}: there is no such file; allowed: what `mptexp gpu-hour` packed"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise ParamsError(f"--to {folder}: cannot be made: {error.strerror}") from None
    try:
        _extract(archive, place)
        marked = [path.parent for path in place.rglob(MARKER)]
        sweeps = [path.relative_to(place) for path in marked if SweepDir(path).runs.is_dir()]
        if not sweeps:
            raise ParamsError(f"{archive}: holds no measured sweep")
        place.chmod(0o777 & ~_umask())
        place.rename(folder)
    except ParamsError:
        raise
    except gzip.BadGzipFile:
        raise ParamsError(f"{archive}: is no archive of `mptexp gpu-hour` (.tar.gz)") from None
    except Exception as error:  # what tarfile and zlib raise for hostile bytes is not documented
        raise ParamsError(f"{archive}: cannot be unpacked: {error}") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return sorted(folder / sweep for sweep in sweeps)


def _umask() -> int:
    """What the user's new files are not allowed; mkdtemp's folder is for its maker alone."""
    mask = os.umask(0o77)
    os.umask(mask)
    return mask


def _extract(archive: Path, place: Path) -> None:
    """Reads an archive once from its beginning to its end, where its checksum stands."""
    with gzip.open(archive) as stream:
        content = Bounded(stream)
        with tarfile.open(fileobj=content, mode="r|", tarinfo=Member) as tar:  # type: ignore[call-overload]
            for member in _allowed(archive, tar):
                content.left = member.size + MOST_HEADER
                tar.extract(member, place, filter="data")
                content.left = MOST_HEADER
        while content.read(MOST_HEADER):
            pass


def _allowed(archive: Path, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members in order, refused where they are too many, too large, too deep or there twice."""
    size, names = 0, set()
    for number, member in enumerate(tar, 1):
        size += member.size
        if number > MOST_FILES or size > MOST_BYTES:
            raise ParamsError(
                f"{archive}: unpacks to more than {MOST_FILES:,} files or {MOST_BYTES / 2**30:g} "
                "GiB; allowed: an archive of mptexp gpu-hour"
            )
        name = os.path.normpath(member.name).lstrip("/")
        if name in names:
            raise ParamsError(f"{archive}: holds {name} twice")
        if name.count("/") > MOST_DEPTH:
            raise ParamsError(f"{archive}: has more than {MOST_DEPTH} folders in one another")
        names.add(name)
        yield member


def open_archive(archive: Path, folder: Path) -> tuple[list[Path], list[str]]:
    """Makes the reports of the sweeps in an archive.

    Traces that the other machine could not read are read first, where xprof is installed. A sweep
    that cannot be read keeps no other from its report.

    Returns:
        The pages, and what is not valid of them or could not be read, a sentence each.

    Raises:
        ParamsError: as `unpack` does.
    """
    pages: list[Path] = []
    sweeps = unpack(archive, folder)
    faults = [_checked(file) for file in sorted(folder.glob(f"*/{INSTRUMENTS}"))]
    for place in sweeps:
        with _said(faults):
            if importlib.util.find_spec("xprof") and list(place.rglob(xplane.FILE)):
                faults += commands.read_traces(place)[1]
        with _said(faults):
            page, not_valid = commands.report(place)
            pages.append(page)
            faults += not_valid
    return pages, list(filter(None, faults))


def _checked(file: Path) -> str:
    """What the instruments there failed; empty where they failed nothing."""
    from mptexp.report.answers import instrument_answers

    try:
        checks = TypeAdapter(list[instrument_checks.Check]).validate_json(files.text(file))
    except (OSError, ValueError) as error:
        return f"{file}: holds no checks of instruments: {str(error).splitlines()[0]}"
    return instrument_answers.sentence(checks) if instrument_checks.failed(checks) else ""


@contextmanager
def _said(faults: list[str]) -> Iterator[None]:
    """Keeps what cannot be read or written of one sweep as a sentence."""
    try:
        yield
    except (ParamsError, Stopped) as error:
        faults.append(str(error))
