"""The documentation as a site: `python docs/site.py --to FOLDER [--reports URL]`, or `make docs`.

Its pages are those of docs/ and the project's own (README as the start), a page for each study of
params/ and one for the names that `import mptexp` gives. What they link to beyond themselves is a
published report, where the site stands beside them, else it is named without a link.
"""

import argparse
import inspect
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import mptexp
from mptexp.spec import params

PROJECT = Path(__file__).resolve().parent.parent
STAGED = PROJECT / "build/docs"
PUBLISHED = "reports/published/"
START = {"README.md": "index.md"}  # under another name
OWN = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
WIDE = ".wy-nav-content { max-width: 70em }\n"  # tables and commands of 100 letters
SECTIONS = ("Args:", "Returns:", "Raises:", "Attributes:")


# --- pages ----------------------------------------------------------------------------------------


def pages(reports: str = "../") -> dict[str, str]:
    """Every page by its name: Markdown whose links hold on the site.

    Args:
        reports: where the published reports lie, from the documentation.
    """
    sources = {name: PROJECT / name for name in OWN}
    sources |= {f"docs/{path.name}": path for path in sorted((PROJECT / "docs").glob("*.md"))}
    made = {name: path.read_text("utf-8") for name, path in sources.items()}
    studies = {path.stem: path.read_text("utf-8") for path in (PROJECT / "params").glob("*.yaml")}
    known = {name: _staged(name) for name in made}
    known |= {f"params/{name}.yaml": f"study-{name}.md" for name in studies}
    staged = {known[name]: _linked(name, text, known, reports) for name, text in made.items()}
    staged |= {f"study-{name}.md": study(name, studies[name], reports) for name in studies}
    return staged | {"studies.md": _list(studies), "api.md": api()}


def _staged(name: str) -> str:
    return START.get(name, posixpath.basename(name))


def _linked(page: str, text: str, known: Mapping[str, str], reports: str) -> str:
    """A page's text with links to where its targets are on the site."""

    def replaced(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match[0]
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if path in known:
            return f"{image}[{label}]({known[path]}{'#' if anchor else ''}{anchor})"
        if path.startswith(PUBLISHED):
            place = path.removeprefix(PUBLISHED)
            file = place if posixpath.splitext(place)[1] else f"{place}/index.html"
            return f"{image}[{label}]({posixpath.join(reports, file)})"
        return f"`{path}`" if label.strip("`") == path else f"{label} (`{path}`)"

    parts = re.split(r"(^```.*?^```$|`[^`\n]+`(?!\]))", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if i % 2 else LINK.sub(replaced, part) for i, part in enumerate(parts))


# --- studies --------------------------------------------------------------------------------------


def _list(studies: Mapping[str, str]) -> str:
    heads = {name: params.header(text) for name, text in sorted(studies.items())}
    rows = [f"| [{n}](study-{n}.md) | {_cell(head['question'])} |" for n, head in heads.items()]
    return "\n".join(["# Studies\n", "| `mptexp run` | question |", "| --- | --- |", *rows, ""])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def study(name: str, text: str, reports: str) -> str:
    """The page of a study: what its header says, its published reports, the file itself."""
    head = params.header(text)
    lines = [f"**{key.capitalize()}.** {_cell(head[key])}\n" for key in head]
    measured = [report for report, its in STUDY_OF.items() if its == name]
    lines += [f"Measured: [{each}]({reports}{each}/index.html)\n" for each in measured]
    commands = f"```\nmptexp run {name}\nmptexp init --study {name}    # a copy to change\n```\n"
    return "\n".join([f"# {name}\n", *lines, commands, f"```yaml\n{text}```\n"])


# Named, because neither is told by the other's text: a header is reworded after its report was
# published, and a report's folder need not repeat the study's name.
STUDY_OF = {
    "cpu-isa": "cpu_isa_128px",
    "cpu-isa-amx": "cpu_isa_128px",
    "float8-gpt-cpu": "float8",
    "frameworks-cpu": "frameworks_cpu",
    "gpt-cpu": "gpt_precision",
    "imagenette-128px-accuracy-cpu": "imagenette_128px",
    "imagenette-128px-cpu": "imagenette_128px",
    "imagenette-64px-cpu": "imagenette_speed",
    "imagenette-accuracy-cpu": "imagenette_accuracy",
    "imagenette-float16-20epochs-cpu": "imagenette_float16",
    "imagenette-float16-cpu": "imagenette_float16",
    "inference-100px-cpu": "inference_100px",
    "largest-batch-cpu": "largest_batch_cpu",
    "loss-scale-cpu": "loss_scale",
    "loss-scale-deep-cpu": "loss_scale_deep",
    "loss-scale-gpt-cpu": "loss_scale_gpt",
    "low-precision-mnist-cpu": "low_precision_mnist",
    "master-weights-cpu": "master_weights",
    "quantized-inference-gpt-cpu": "quantized_inference",
    "quickstart-amx-cpu": "quickstart",
    "quickstart-cpu": "quickstart",
    "resnet50-h200": "resnet50_torch",
    "scaling-cpu": "scaling_cpu",
    "sign-digits-cpu": "sign_digits",
    "sign-language-100px-cpu": "sign_language_100px",
    "sign-language-float16-cpu": "sign_language_float16",
    "tf32-h200": "tf32_torch",
    "throughput-cpu": "throughput_cpu",
    "vit-cpu": "vit_precision",
    "why-cpu": "why_no_speedup",
    "why-imagenette-64px-amx-cpu": "why_no_speedup_cpu",
    "why-imagenette-64px-cpu": "why_no_speedup_cpu",
    "why-imagenette-64px-no-amx-cpu": "why_no_speedup_cpu",
}


# --- the facade -----------------------------------------------------------------------------------


def api() -> str:
    """The page of the names that `import mptexp` gives, from their docstrings."""
    head = ["# Python\n", f"{inspect.getdoc(mptexp)}\n"]
    return "\n".join(head + [_name(name) for name in sorted(mptexp.__all__, key=str.lower)])


def _name(name: str) -> str:
    value = getattr(mptexp, name)
    model = hasattr(value, "model_fields")
    signature = "(**parameters)" if model else _signature(value)
    lines = [f"## {name}\n", f"```\nmptexp.{name}{signature}\n```\n", _docstring(value)]
    if model:
        lines.append("Its parameters: [Params file](params.md).\n")
    for part, each in vars(value).items() if inspect.isclass(value) and not model else ():
        if not part.startswith("_") and inspect.getdoc(each) and callable(inspect.unwrap(each)):
            lines += [f"### {name}.{part}\n", _docstring(each)]
    return "\n".join(lines)


def _signature(value: object) -> str:
    """The parameters of a function, a line each where they are many."""
    signature = inspect.signature(value)  # type: ignore[arg-type]
    parts = [str(each) for each in signature.parameters.values()]
    made = signature.replace(parameters=[])
    inside = ", ".join(parts) if len(parts) < 2 else "\n    " + ",\n    ".join(parts) + ",\n"
    text = str(made).replace("()", f"({inside})", 1).replace("'", "")
    return re.sub(r"\b(mptexp|pathlib|collections|typing)(\.\w+)*\.(?=[A-Z])", "", text)


def _docstring(value: object) -> str:
    """A docstring as Markdown: its sections as lists."""
    lines, section = [], ""
    for line in (inspect.getdoc(value) or "").replace("<", "&lt;").splitlines():
        if line in SECTIONS:
            section, line = line, f"**{line.removesuffix(':')}**\n"
        elif section in ("Args:", "Raises:", "Attributes:"):
            line = re.sub(r"^    (\w+):", r"- `\1`:", line)
        lines.append(line if line.startswith("- ") else line.strip(" ") if section else line)
    return "\n".join(lines) + "\n"


# --- the site -------------------------------------------------------------------------------------


def build(target: Path, reports: str) -> None:
    """Stages the pages and has MkDocs build them; a link that leads nowhere is an error."""
    shutil.rmtree(STAGED, ignore_errors=True)
    STAGED.mkdir(parents=True)
    (STAGED / "wide.css").write_text(WIDE, encoding="utf-8")
    for name, text in pages(reports).items():
        (STAGED / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--clean"]
    subprocess.run([*command, "--site-dir", target.resolve()], cwd=PROJECT, check=True)


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--to", type=Path, default=PROJECT / "build/site")
    words.add_argument("--reports", default="../", help="where the published reports lie")
    asked = words.parse_args()
    build(asked.to, asked.reports)
    print(f"documentation: {asked.to / 'index.html'}")
