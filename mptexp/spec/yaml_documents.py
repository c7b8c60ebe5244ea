"""YAML 1.2 from anybody as a document with line numbers: texts, numbers, lists, mappings."""

import io
import os
import re
import warnings
from collections.abc import Collection, Mapping, Set
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import Comment, CommentedMap, CommentedSeq, Format, LineCol
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.constructor import RoundTripConstructor
from ruamel.yaml.error import MantissaNoDotYAML1_1Warning, StringMark, YAMLError
from ruamel.yaml.scalarstring import ScalarString

from mptexp.spec import dataset_paths

MOST_VALUES = 50_000  # in a document, aliases followed; ruamel takes 50 us for each
MOST_CHARACTERS = 2**20
DEEPEST = 50  # levels of lists and mappings
KINDS = (bool, int, float, str)
ANOTHER = "but found another document"  # ruamel's words
WRONG = "a value is not what its tag, anchor or alias says"


class DocumentError(YAMLError):
    """What is not allowed in a document: `problem` says it, `problem_mark` where."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.problem_mark = None if line is None else StringMark("", 0, line, 0, "", 0)


def load(text: str) -> Any:
    """The document that a text holds: ruamel's objects, which know their lines.

    A few aliases can stand for billions of values, or for a mapping within itself; a tag can make
    ruamel build nearly anything. Such documents are refused.

    Raises:
        YAMLError: where the text is not YAML, or holds what `plain` cannot give.
    """
    if len(text) > MOST_CHARACTERS:
        raise DocumentError(f"more than {MOST_CHARACTERS:,} characters")
    if _deepest(text) > DEEPEST:
        raise DocumentError("nested too deeply")
    try:
        with warnings.catch_warnings():
            # ruamel's ten lines about 1e-3 in a file that says it is YAML 1.1, which it reads well.
            warnings.simplefilter("ignore", MantissaNoDotYAML1_1Warning)
            document = _yaml().load(text)
    except ComposerError as error:
        if error.problem != ANOTHER:
            raise
        line = error.problem_mark.line
        raise DocumentError("another document begins here; allowed: one", line) from None
    except YAMLError:
        raise
    except RecursionError:
        raise DocumentError("nested too deeply") from None
    except Exception:
        raise DocumentError(WRONG) from None
    _check(document)
    return document


def word(text: str) -> Any:
    """The value that stands behind `key=` on a command line: YAML, but a plain word is all of it.

    YAML ends such a word before ` #` and before blanks at its end, which a path may have.
    """
    value = load(text)
    if isinstance(value, dict | list | ScalarString):  # brackets or quotes say where it ends
        return value
    return text.lstrip() if isinstance(value, str) or "#" in text else value


def spread(value: Any) -> Any:
    """A document whose merge keys (`<<`) and aliases are written out, each by itself.

    A change of one place then changes no other; values keep their lines.
    """
    if isinstance(value, dict):
        pairs = [(key, spread(inner)) for key, inner in value.items()]
        made: Any = CommentedMap(pairs)
    elif isinstance(value, list):
        made = CommentedSeq(map(spread, value))
    else:
        return value
    for name in (LineCol.attrib, Format.attrib, Comment.attrib):  # not what it merges
        if hasattr(value, name):
            setattr(made, name, getattr(value, name))
    return made


def dump(document: Any) -> str:
    """The text of a document."""
    buffer = io.StringIO()
    _yaml().dump(document, buffer)
    return buffer.getvalue()


def plain(value: Any) -> Any:
    """A document as plain Python, so that strict types accept it."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return next((kind(value) for kind in KINDS if isinstance(value, kind)), value)


def native(value: Any) -> Any:
    """A value from a cell as lists, mappings and values of Python's own, where it has such.

    Numbers and arrays of NumPy and its like, paths, tuples, ranges, sets (in order of their texts).
    """
    if isinstance(value, KINDS):
        return next(kind(value) for kind in KINDS if isinstance(value, kind))
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(k): native(v) for k, v in value.items()}
    if hasattr(value, "tolist"):
        return native(value.tolist())
    if isinstance(value, Set):
        return native(sorted(value, key=str))
    return [native(v) for v in value] if isinstance(value, Collection) else value


def published(text: str) -> str:
    """A params file's text for strangers: of a dataset's path the last part, as in its records.

    Of a notebook's path as well, where it is absolute, and of any absolute path in comments and
    texts, or in a file that is not YAML.
    """
    given = content(text)
    named = {dataset: dataset_paths.published(dataset) for dataset in _datasets(given)}
    notebook = given.get("notebook") if isinstance(given, dict) else None
    if isinstance(notebook, str):
        named[notebook] = dataset_paths.published_notebook(notebook)
    for path in sorted(named, key=len, reverse=True):
        text = text.replace(path, named[path])
    text = dataset_paths.shortened(text)
    wanted = dataset_paths.everywhere(
        given, lambda value: dataset_paths.shortened(named.get(value, value))
    )
    # A path that YAML has otherwise than as it is, such as with an escape, is in none of the text.
    return text if content(text) == wanted else opening(text) + dump(wanted)


def opening(text: str) -> str:
    """The comments with which a document begins."""
    return re.match(r"(#.*\n)*", text)[0]  # type: ignore[index]


def content(text: str) -> Any:
    """A document as plain Python; None where it is not YAML."""
    try:
        return plain(load(text))
    except YAMLError:
        return None


def _datasets(value: Any) -> set[str]:
    """All texts of a params file's content that name a dataset by a path."""
    if isinstance(value, str):
        return {value} if dataset_paths.path(value) else set()
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {dataset for one in inner for dataset in _datasets(one)}


class _Composer(Composer):
    """Ends where there is too much, before objects are made of it.

    An anchor's name may be given again, as YAML says; ruamel would warn of each, in six lines.
    """

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self.warn_double_anchors = False
        self.values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.values += 1
        if self.values > MOST_VALUES:
            line = self.parser.peek_event().start_mark.line
            raise DocumentError(f"more than {MOST_VALUES:,} keys and values", line)
        return super().compose_node(parent, index)


class _Constructor(RoundTripConstructor):
    """Knows the line of what ruamel's constructors cannot make, who raise nearly anything."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (YAMLError, RecursionError):
            raise
        except Exception:
            raise DocumentError(WRONG, node.start_mark.line) from None


def _yaml() -> YAML:
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.Composer, yaml.Constructor = _Composer, _Constructor
    return yaml


def _deepest(text: str) -> int:
    """The most brackets that are open at once; those within texts count too."""
    deepest = level = 0
    for sign in text:
        level += (sign in "[{") - (sign in "]}")
        deepest = max(deepest, level)
    return deepest


def _check(document: Any) -> None:
    """Walks through a document, level by level.

    Raises:
        DocumentError: for a key that is no text, a value of another kind, too many or too deep.
    """
    left, walked = [(document, None)], 0
    for _ in range(DEEPEST):
        below: list[tuple[Any, int | None]] = []
        for node, line in left:
            walked += 1
            if isinstance(node, dict):
                _check_keys(node, line)
                below += [(value, _line(node, key, line)) for key, value in node.items()]
            elif isinstance(node, list):
                below += [(value, _line(node, k, line)) for k, value in enumerate(node)]
            else:
                _check_value(node, line)
            if walked + len(below) > MOST_VALUES:
                raise DocumentError(f"more than {MOST_VALUES:,} values, aliases followed")
        left = below
    if left:
        raise DocumentError("nested too deeply, or within itself")


def _line(node: Any, step: str | int, line: int | None) -> int | None:
    """Where what stands under a key or a place begins; that of the whole, where it is not known."""
    places = getattr(getattr(node, "lc", None), "data", None) or {}
    return places[step][0] if step in places else line


def _check_keys(node: dict[Any, Any], line: int | None) -> None:
    for key in node:
        at = _line(node, key, line)
        if not isinstance(key, str):
            raise DocumentError(f"a key is {_named(key)}; allowed: a name, which is a text", at)
        _check_value(key, at)


def _check_value(value: Any, line: int | None) -> None:
    if value is not None and not isinstance(value, KINDS):
        raise DocumentError(
            f"a value is {_named(value)}; allowed: texts, numbers, true, false, lists, mappings; "
            "a text may stand in quotes",
            line,
        )
    if isinstance(value, int) and value.bit_length() > 1024:  # Python refuses to print it
        raise DocumentError("a number has more than 300 digits", line)
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise DocumentError("a text holds half a character (a surrogate)", line) from None


def _named(value: Any) -> str:
    names = {"dict": "a mapping", "list": "a list", "bytes": "binary", "NoneType": "null"}
    names |= {"date": "a date", "datetime": "a date", "set": "a set", "tuple": "a list"}
    names |= {"Mapping": "a mapping", "Set": "a set", "bool": "true or false"}
    names |= {"int": "a number", "float": "a number"}
    return next((names[k.__name__] for k in type(value).__mro__ if k.__name__ in names), "tagged")
