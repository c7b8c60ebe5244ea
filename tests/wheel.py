"""What `make wheel-test` does: sdist, wheel from it, and a newcomer's first report elsewhere.

For each Python named on the command line: a fresh environment in a folder away from the checkout,
the wheel in it, then init, plan, run and report there; a script under type checkers; and the
released notebook in an environment with nothing but Jupyter. It says how long each took. With
`--lowest` instead: init, plan, run and report with the least versions that pyproject.toml allows.
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
CONSTRAINTS = PROJECT / "constraints.txt"
# A user's script, as type checkers know it: the last line is a mistake that they must find.
SCRIPT = """\
import mptexp

sweep = mptexp.Sweep(matrix={"policy": ["float32", "mixed_bfloat16"]}, repeats=3)
print(mptexp.plan(sweep, out="reports/mine"), mptexp.policies().loc["float16"])
results = mptexp.run(sweep, out="reports/mine", only={"policy": "float32"}, epochs=2)
print(results.step_s.mean(), results.history.val_accuracy.max(), results.speedups)
again = mptexp.load("reports/mine")
print(again.whole.columns, mptexp.load("reports/mine", "history").loss.min())
print(mptexp.explain("profile/"), mptexp.compare("a", ["b", "c"]), mptexp.StepTimer())
mptexp.load(3)
"""
SHORT = ("--set", "epochs=2", "--set", "repeats=1")
# Nothing of the checkout may be found by the way of Python's or make's variables.
ENVIRONMENT = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "MAKE"))}


def call(*words: object, cwd: Path, **environment: str) -> str:
    """Runs a command; returns what it printed.

    Raises:
        SystemExit: where it fails, with what it said.
    """
    began = time.perf_counter()
    command = [str(word) for word in words]
    whole = ENVIRONMENT | environment
    done = subprocess.run(command, cwd=cwd, env=whole, capture_output=True, text=True)
    shown = " ".join(Path(w).name if "/" in w else w for w in command)
    print(f"  {time.perf_counter() - began:6.1f} s  {shown}", flush=True)
    if done.returncode:
        raise SystemExit(f"exit status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def built(folder: Path) -> Path:
    """Makes sdist, wheel and notebook as a release does, and looks into them; returns the wheel."""
    release = [sys.executable, PROJECT / "docs/release.py", "--to", folder, "--from", folder]
    call(*release, cwd=PROJECT)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    with tarfile.open(sdist) as archive:
        assert not [name for name in archive.getnames() if "/reports/" in name]
    names = set(zipfile.ZipFile(wheel).namelist())
    for part in ("params/quickstart.yaml", "params/template/mine.yaml", "params/schema.json"):
        assert f"mptexp/{part}" in names, part
    assert {"mptexp/notebooks/train.py", "mptexp/py.typed"} <= names
    print(f"  sdist {sdist.stat().st_size:,} bytes, wheel {wheel.stat().st_size:,} bytes")
    return wheel


def notebook(python: str, wheel: Path, folder: Path) -> None:
    """A person with Jupyter and the released notebook alone: it installs mptexp and answers."""
    began = time.perf_counter()
    env = folder / "jupyter"
    call(python, "-m", "venv", env, cwd=folder)
    call(env / "bin/pip", "install", "-q", "-c", CONSTRAINTS, "nbclient", "ipykernel", cwd=folder)
    text = (wheel.parent / "start_here.ipynb").read_text()
    for long, short in (
        ("epochs: int = 4", "epochs: int = 2"),
        ("blocks: int = 3", "blocks: int = 1"),
    ):
        assert long in text
        text = text.replace(long, short)
    (folder / "start_here.ipynb").write_text(text)
    command = [env / "bin/jupyter", "execute", "--inplace", "--timeout=1200", "start_here.ipynb"]
    path = f"{env / 'bin'}:{os.environ['PATH']}"
    call(*command, cwd=folder, PIP_CONSTRAINT=str(CONSTRAINTS), PATH=path)
    done = json.loads((folder / "start_here.ipynb").read_text())
    shown = json.dumps([cell.get("outputs") for cell in done["cells"]])
    for part in ("[2/2] policy", "than float32 (the default", "image/png"):
        assert part in shown, part
    assert '"output_type": "error"' not in shown
    print(f"  the released notebook, from an empty folder: {time.perf_counter() - began:.0f} s")


def typed(python: Path, folder: Path) -> None:
    """mypy and pyright take a user's script as it is meant, and find its mistake."""
    script, tools = folder / "script.py", folder / "tools"
    script.write_text(SCRIPT)
    call(python, "-m", "venv", tools, cwd=folder)
    call(tools / "bin/pip", "install", "-q", "mypy", "pyright", cwd=folder)
    for checker, named in (
        (("mypy", "--strict", "--python-executable"), "script.py:10: error"),
        (("pyright", "--pythonpath"), "script.py:10:13 - error"),
    ):
        done = subprocess.run(
            [tools / "bin" / checker[0], *checker[1:], python, script.name],
            cwd=folder,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
        )
        faults = [line for line in done.stdout.splitlines() if "error" in line]
        print(f"  {checker[0]}: {faults[0].strip() if faults else done.stdout + done.stderr}")
        assert named in done.stdout, done.stdout + done.stderr
        assert not [line for line in faults if "error:" in line and ":10" not in line], done.stdout


def install(env: Path, wheel: Path, lowest: bool) -> None:
    """Installs the wheel in the versions of constraints.txt, or in the least that are allowed."""
    pip = [env / "bin/python", "-m", "pip", "install", "-q"]
    if lowest:
        call(*pip, "uv", cwd=env)
        uv = [env / "bin/uv", "pip", "install", "-q", "--resolution", "lowest-direct"]
        # Of each package the least version that has a wheel for this Python; one has none at all.
        uv += ["--only-binary", ":all:", "--no-binary", "promise"]
        call(*uv, "--python", env / "bin/python", wheel, cwd=env)
    else:
        call(*pip, "-c", CONSTRAINTS, wheel, cwd=env)


def newcomer(python: str, wheel: Path, folder: Path, lowest: bool = False) -> None:
    """A person with an empty folder and a wheel: from pip install to a report of their own."""
    began = time.perf_counter()
    call(python, "-m", "venv", folder / "env", cwd=folder)
    bin = folder / "env/bin"
    install(folder / "env", wheel, lowest)
    installed = time.perf_counter()
    mptexp = bin / "mptexp"
    call(mptexp, "--version", cwd=folder)
    call(mptexp, "init", "first", cwd=folder)
    first = folder / "first"
    call(mptexp, "plan", "mine.yaml", cwd=first)
    call(mptexp, "run", "mine.yaml", *SHORT, "--no-report", cwd=first)
    call(mptexp, "report", "reports/mine", cwd=first)
    assert "my_model" in (first / "reports/mine/index.html").read_text("utf-8")
    end = time.perf_counter()
    print(
        f"  from pip install to the report: {end - began:.0f} s, {end - installed:.0f} s after it"
    )
    if lowest:
        return
    call(mptexp, "run", "quickstart", *SHORT, "--only", "batch_size=128", cwd=folder)
    assert (folder / "reports/quickstart/index.html").is_file()
    typed(bin / "python", folder)


def main() -> None:
    """Builds once, then meets every Python that is named, or that runs this."""
    with tempfile.TemporaryDirectory(prefix="mptexp-wheel-") as place:
        wheel = built(Path(place, "dist"))
        lowest, named = "--lowest" in sys.argv, [w for w in sys.argv[1:] if w != "--lowest"]
        for python in named or [sys.executable]:
            version = call(python, "--version", cwd=Path(place)).strip()
            print(version, flush=True)
            folder = Path(place, version.replace(" ", "-"))
            folder.mkdir()
            newcomer(python, wheel, folder, lowest)
            if not lowest:
                notebook(python, wheel, folder)
            subprocess.run(["rm", "-r", str(folder)], check=True)


if __name__ == "__main__":
    main()
