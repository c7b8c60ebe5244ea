import fcntl
import inspect
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path

import jsonschema
import pytest
from builders import written_sweep
from support import PROJECT, TINY, mptexp, mptexp_anew

from mptexp import __version__, api
from mptexp.cli import app, common
from mptexp.errors import ParamsError
from mptexp.spec import yaml_documents


def test_the_command_and_the_module_are_the_same():
    module = mptexp_anew("--help", cwd=PROJECT)
    command = subprocess.run(
        [Path(sys.executable).with_name("mptexp"), "--help"],
        env={**os.environ, "COLUMNS": "120"},
        capture_output=True,
        text=True,
    )
    assert module.returncode == command.returncode == 0
    assert command.stdout == module.stdout
    for name in ("plan", "run", "report", "diagnose", "doctor", "Example"):
        assert name in module.stdout


@pytest.mark.parametrize("name", ["plan", "run", "report", "diagnose", "doctor"])
def test_every_command_has_help_with_an_example(name):
    done = mptexp(name, "--help", cwd=PROJECT)
    assert done.returncode == 0
    assert "Example: mptexp" in done.stdout


def test_the_version_is_said():
    said = mptexp("--version", cwd=PROJECT).stdout
    assert said == f"mptexp {__version__}\n"


def test_a_newcomers_folder_has_what_a_sweep_needs(tmp_path):
    done = mptexp("init", "first", cwd=tmp_path)
    names = {"mine.yaml", "my_model.py", "schema.json"}
    assert {Path(line).name for line in done.stdout.splitlines()} == names
    first = tmp_path / "first"
    assert {p.name for p in first.iterdir()} == names
    text = (first / "mine.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=schema.json\n")
    schema = json.loads((first / "schema.json").read_text())
    assert not list(jsonschema.Draft7Validator(schema).iter_errors(yaml_documents.content(text)))
    done = mptexp("plan", "mine.yaml", "--fast", cwd=first)
    assert "my_model:build" in done.stdout
    assert mptexp("init", "first", cwd=tmp_path).returncode == 0  # nothing of it was changed
    (first / "my_model.py").write_text("mine")
    done = mptexp("init", "first", cwd=tmp_path)
    assert done.returncode == 2
    assert "first/my_model.py: is there already" in done.stderr
    assert (first / "my_model.py").read_text() == "mine"


def test_a_path_below_home_is_known_where_no_shell_writes_it_out(tmp_path):
    # The lie: bash leaves ~ as it is in --out=~/x, and a folder of that name was made.
    home = tmp_path / "home"
    written_sweep(home / "a", "GPU", 1), (tmp_path / "here").mkdir()
    for words in (("init", "~/mine"), ("export", "~/a", "--to=~/article")):
        done = mptexp(*words, cwd=tmp_path / "here", HOME=str(home))
        assert done.returncode == 0, done.stderr
    assert (home / "mine/mine.yaml").is_file()
    assert (home / "article/draft.md").is_file()
    assert not list((tmp_path / "here").iterdir())


def test_an_entry_of_exclude_that_drops_nothing_is_told(light, tmp_path):
    light({"seed": [0, 1]}, exclude="[{seed: 1}, {policy: mixed_float16}]")
    said = "exclude: no point of the matrix agrees with {policy: 'mixed_float16'}, so it drops none"
    for command in ("plan", "run"):
        done = mptexp(command, "light.yaml", *["--no-report"] * (command == "run"), cwd=tmp_path)
        assert done.returncode == 0
        assert said in done.stdout.splitlines()
        assert "{seed: 1}" not in done.stdout


def test_a_study_is_known_by_its_name_anywhere(tmp_path):
    words = ("plan", "tf32", "--fast", "--set", "policy=float32")
    named = json.loads(mptexp(*words, "--format", "json", cwd=tmp_path).stdout)["runs"]
    assert mptexp("init", ".", "--study", "tf32", cwd=tmp_path).returncode == 0
    words = ("plan", "tf32.yaml", "--fast", "--set", "policy=float32")
    copied = json.loads(mptexp(*words, "--format", "json", cwd=tmp_path).stdout)["runs"]
    assert named == copied != []
    assert {p.name for p in tmp_path.iterdir()} == {"tf32.yaml", "schema.json"}
    (tmp_path / "tf32").mkdir()  # a folder of that name is no params file
    assert mptexp(*words, cwd=tmp_path).returncode == 0
    done = mptexp("plan", "tf23", cwd=tmp_path)
    assert "did you mean tf32?" in done.stderr
    done = mptexp("init", "x", "--study", "tf23", cwd=tmp_path)
    assert (done.returncode, (tmp_path / "x").exists()) == (2, False)


def test_quiet_leaves_results_and_errors(tiny, light, tmp_path):
    done = mptexp("run", "tiny.yaml", "--no-report", "--quiet", cwd=tiny)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "unsupported" in mptexp("plan", "tiny.yaml", "-q", cwd=tiny).stdout
    light({"seed": [1]})
    done = mptexp("run", "light.yaml", "--no-report", "--retries", "0", "-q", cwd=tmp_path)
    why = "failed: ValueError: the second value is odd"
    assert re.fullmatch(rf"error run [0-9a-f]+: {why}\n", done.stderr), done.stderr
    assert done.stdout == "1 of 1 runs failed; the same command tries them again\n"
    done = mptexp("plan", "absent.yaml", "-q", cwd=tmp_path)
    assert done.stderr.startswith("error absent.yaml")


def test_verbose_shows_where_an_error_came_from(tmp_path):
    done = mptexp("plan", "absent.yaml", "--verbose", cwd=tmp_path)
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error absent.yaml: no such file")


def test_a_flag_has_no_value_and_a_default_is_shown_once():
    for name in ("run", "plan", "report"):
        said = mptexp(name, "--help", cwd=PROJECT).stdout
        assert "<bool>" not in said
        assert "--no-color" in said
        assert all(line.count("default") <= 1 for line in said.splitlines())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(shell):
    words = {"_MPTEXP_COMPLETE": f"complete_{shell}", "COMP_WORDS": "mptexp re", "COMP_CWORD": "1"}
    words |= {"_TYPER_COMPLETE_ARGS": "mptexp re", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert "report" in mptexp(cwd=PROJECT, **words).stdout


def test_plan_is_a_table_and_executes_nothing(tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY + "expected_run_s: 40\n")
    done = mptexp("plan", "tiny.yaml", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.count("pending") == 3
    assert "about 2 min" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]


def test_plan_shows_what_was_done(tiny):
    runs = json.loads(mptexp("plan", "tiny.yaml", "--format", "json", cwd=tiny).stdout)["runs"]
    assert sorted(r["state"] for r in runs) == ["ok", "ok", "unsupported"]
    assert runs[0]["parameters"]["image_size"] == 8
    assert mptexp("plan", "tiny.yaml", cwd=tiny).stdout.count("unsupported") == 1


def test_run_tells_its_progress_in_plain_lines(tiny):
    lines = (tiny / "log.txt").read_text().splitlines()
    assert lines[0].startswith("3 runs of train into reports/tiny, time unknown until")
    assert [line[:5] for line in lines if line.startswith("[")] == ["[1/3]", "[2/3]", "[3/3]"]
    assert sum("ms/step" in line for line in lines) == 2
    assert lines[-1] == "report: reports/tiny/index.html"
    assert "\x1b" not in "".join(lines)


def test_running_again_executes_nothing(tiny):
    before = {p: p.read_bytes() for p in (tiny / "reports").rglob("record.json")}
    done = mptexp("run", "tiny.yaml", "--no-report", cwd=tiny)
    assert done.returncode == 0
    assert "3 of 3 runs are done already" in done.stdout
    assert {p: p.read_bytes() for p in before} == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "absent.yaml"], "no such file"),
        (["run", "tiny.yaml", "--set", "batch_size=0"], "of at least 1"),
        (["run", "tiny.yaml", "--only", "policy=bfloat61"], "no run has it"),
        (["plan", "tiny.yaml", "--format", "xml"], "allowed: table, json"),
        (["plan"], "Missing argument"),
        (["report", "absent"], "absent: there is no such directory; give"),
        (["diagnose", "absent.yaml"], "no such file"),
        (["diagnose", "."], "params.yaml: no such file"),
        (["doctor", "--backend", "numpy"], "allowed: tensorflow, jax, torch"),
        (["fly"], "No such command"),
    ],
)
def test_a_mistake_is_a_sentence_and_nothing_is_written(tmp_path, words, expected):
    (tmp_path / "tiny.yaml").write_text(TINY)
    done = mptexp(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert expected in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]


def test_the_doctor_says_what_this_machine_has():
    done = mptexp("doctor", cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    for name in (
        "device",
        "Tensor Cores",
        "driver",
        "CUDA, cuDNN",
        "float16",
        "TF32",
        "tensorflow",
    ):
        assert name in done.stdout
    card = json.loads(mptexp("doctor", "--format", "json", cwd=PROJECT).stdout)
    assert card["default_policy"] in ("float32", "tensorfloat32")
    assert card["advice"] or card["kind"] == "gpu"


def test_run_tells_scripts_a_line_of_json_per_run(light, tmp_path):
    light("{seed: [0, 1]}")
    done = mptexp("run", "light.yaml", "--no-report", "--format", "json", cwd=tmp_path)
    assert done.returncode == 1
    told = [line for line in map(json.loads, done.stdout.splitlines()) if "run_id" in line]
    lines = {line["parameters"]["seed"]: line for line in told}
    assert [lines[seed]["status"] for seed in (0, 1)] == ["ok", "failed"]
    assert lines[0]["timing"]["step_s"] > 0
    assert "the second value is odd" in lines[1]["error"]
    assert "[1/2] seed " in done.stderr


# --- results for scripts ----------------------------------------------------------------------


def strict(text):
    """JSON as the standard has it: without NaN."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def documented(name):
    """The keys of a command's results at the first level, as docs/guide.md lists them."""
    (row,) = re.findall(rf"^\| `{name}` \| (.*) \|$", GUIDE, re.MULTILINE)
    return {*re.findall(r"`([\w]+)`", re.sub(r"\([^)]*\)", "", row))}


# Keys that a command has only where it is called otherwise.
OTHERWISE = {"report": {"report"}, "export": {"store", "written", "present"}}
GUIDE = (PROJECT / "docs/guide.md").read_text()


def test_every_command_has_json_and_its_keys_are_documented():
    for row in app.registered_commands:
        said = inspect.signature(row.callback).parameters["format"]
        assert "json" in said.annotation.__metadata__[0].help, row.name
        assert documented(row.name), row.name


def test_results_as_json_are_those_of_the_text_and_nothing_else(tmp_path):
    shutil.copytree(PUBLISHED, tmp_path / "a")
    (tmp_path / "a/runs/broken").mkdir()
    (tmp_path / "a/runs/broken/record.json").write_text("{")
    made = {}
    for name, words, code in (
        ("init", ("first",), 0),
        ("plan", ("quickstart",), 0),
        ("report", ("a", "--check"), 1),
        ("export", ("a", "--to", "article"), 1),
        ("compare", ("a", PUBLISHED), 1),
        ("merge", (PUBLISHED, "--out", "b"), 0),
    ):
        done = mptexp(name, *words, "--format", "json", cwd=tmp_path)
        assert done.returncode == code, done.stderr
        made[name] = strict(done.stdout)
        assert {*made[name]} == documented(name) - OTHERWISE.get(name, set())
    assert (tmp_path / made["init"]["files"][0]).exists()
    said = mptexp("plan", "quickstart", cwd=tmp_path, COLUMNS="200").stdout
    lines = {line.split()[0]: line for line in said.splitlines()}
    for row in made["plan"]["runs"]:
        assert lines[row["run_id"]].endswith(f"about {row['cost_s']:.0f} s")
    assert f"{made['plan']['due']} to execute" in lines["15"]
    assert ["broken" in sentence for sentence in made["report"]["not_valid"]] == [True]
    assert made["merge"]["copied"] == {str(PUBLISHED): 15}
    said = mptexp("compare", "a", PUBLISHED, cwd=tmp_path, COLUMNS="200").stdout
    assert len(made["compare"]["points"]) == 5
    for point in made["compare"]["points"]:
        assert f"{point['step_s_a'] * 1e3:.2f}" in said


def test_a_sweep_without_a_record_is_not_diagnosed(tmp_path):
    # The lie: "Keras trained no point well ...; see its results.csv", which there was not.
    (tmp_path / "empty/runs").mkdir(parents=True)
    (tmp_path / "empty/params.yaml").write_text("matrix: {policy: [float32]}\n")
    with pytest.raises(ParamsError, match="empty: holds no record of a run"):
        api.open_diagnosis(tmp_path / "empty")


@pytest.mark.parametrize("text", ["matrix: {policy: [float32]}", "defaults: {phase: inference}"])
def test_what_has_nothing_to_diagnose_is_refused_before_it_trains(tmp_path, text):
    # Once the whole sweep was trained first, for what its params file says.
    policies = "" if "matrix" in text else "\nmatrix: {policy: [float32, mixed_bfloat16]}"
    (tmp_path / "mine.yaml").write_text(text + policies)
    done = mptexp("diagnose", "mine.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "the chosen runs are no training by Keras under two policies" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


def test_a_ratio_for_scripts_has_the_columns_of_its_file():
    place = PROJECT / "reports/published/quickstart-cpu"
    job = api.open_sweep(place / "params.yaml", place)
    heads = (place / "speedups.csv").read_text().splitlines()[0].split(",")
    assert [list(row) for row in api.claims(job)][:1] == [heads]


def test_what_a_diagnosis_found_is_told_scripts_as_the_page_tells_it():
    place = PROJECT / "reports/published/why-cpu"
    with pytest.raises(ParamsError, match="diagnosed in its own directory; leave out"):
        api.open_diagnosis(place, place.parent / "other")  # once left out without a word
    job, finished = api.open_diagnosis(place)
    verdicts = strict(json.dumps(api.verdicts(job)))
    (row,) = re.findall(r"^\| `diagnose` .*$", GUIDE, re.MULTILINE)
    names = {name for verdict in verdicts for name in verdict}
    assert names < {*re.findall(r"`(\w+)`", row)}
    page = (place / "index.html").read_text()
    assert finished
    assert len(verdicts) > 1
    for verdict in verdicts:
        largest = verdict["losses"][0]
        assert f"{largest['share']:.0%}".replace("%", "\u00a0%") in page
        assert largest["seconds"] < verdict["step_s"]


def test_without_results_there_is_no_json(tmp_path):
    for words in (("report", "absent"), ("plan", "absent"), ("open", "absent"), ("traces", ".")):
        done = mptexp(*words, "--format", "json", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error ")


def in_terminal(*words, cwd, columns=80, **environment):
    """What a command writes to a terminal of so many columns."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    known = {n: v for n, v in os.environ.items() if n not in ("COLUMNS", "NO_COLOR")}
    command = [sys.executable, "-m", "mptexp", *map(str, words)]
    whole = known | {"TERM": "xterm-256color"} | environment
    child = subprocess.Popen(command, cwd=cwd, env=whole, stdout=slave, stderr=slave)
    os.close(slave)
    said = b""
    try:
        while data := os.read(master, 65536):
            said += data
    except OSError:  # Linux's way to say that the other end is closed
        pass
    os.close(master)
    return child.wait(), said.decode()


PUBLISHED = PROJECT / "reports/published/quickstart-cpu"
COLOUR = "\x1b["


def test_an_error_is_red_on_a_terminal(tmp_path):
    code, said = in_terminal("plan", "absent.yaml", cwd=tmp_path)
    assert code == 2
    assert said.startswith("\x1b[1;31merror\x1b[0m absent.yaml: no such file")


@pytest.mark.parametrize("words", [(), ("--no-color",)])
@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {}], ids=str)
def test_without_colours_a_terminal_shows_the_same_words(environment, words, tmp_path):
    if not (environment or words):
        return
    shutil.copy(PROJECT / "params/quickstart.yaml", tmp_path)
    coloured = in_terminal("plan", "quickstart.yaml", cwd=tmp_path)[1]
    plain = in_terminal("plan", "quickstart.yaml", *words, cwd=tmp_path, **environment)[1]
    assert f"{COLOUR}36mpending" in coloured
    assert "[3" not in plain
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == re.sub(r"\x1b\[[\d;]*m", "", plain)


def test_compare_fits_80_columns_and_claims_nothing_of_a_sweep_beside_itself(tmp_path):
    wide = mptexp("compare", PUBLISHED, PUBLISHED, cwd=tmp_path, COLUMNS="160").stdout
    assert mptexp("compare", PUBLISHED, PUBLISHED, cwd=tmp_path, COLUMNS="0").stdout  # was nothing
    narrow = mptexp("compare", PUBLISHED, PUBLISHED, cwd=tmp_path, COLUMNS="80").stdout
    assert wide.count("(not valid: same measurement; n = 3, 3)") == 5
    assert max(map(len, narrow.splitlines())) <= 80
    assert not re.findall(r"\[\d\.\d\d, \d\.\d\d\]", wide + narrow)


@pytest.mark.parametrize(("where", "why"), [("> /dev/full", "No space left"), ("| true", "Broken")])
@pytest.mark.parametrize(
    "words",
    ["plan quickstart.yaml", "plan quickstart.yaml --format json", "--version", "plan --help"],
)
def test_an_output_that_takes_no_more_is_named(where, why, words):
    command = f"{sys.executable} -m mptexp {words} {where}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=PROJECT / "params", capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error standard output takes no more: {why}")
    assert len(done.stderr.splitlines()) == 1


SMALL_FILES = """\
error .: could not be written: File too large
this shell allows 0 KiB in a file (ulimit -f; 1,048,576 suffice)
"""


def test_a_limit_of_file_sizes_is_no_wrong_usage(tmp_path):
    command = f"ulimit -f 0; {sys.executable} -m mptexp init"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, SMALL_FILES)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("n", ["99999999999999999999", "1025", "0"])
def test_no_machine_shares_its_processors_so_often(n, tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY)
    done = mptexp("run", "tiny.yaml", "--parallel", n, cwd=tmp_path)
    assert done.returncode == 2
    assert "or equal to 1" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize("place", ["params.yaml", "loop", "n" * 300])
def test_a_place_that_cannot_be_read_is_named(place, tmp_path):
    written_sweep(tmp_path / "sweep", "GPU", 1)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    if place == "params.yaml":
        (tmp_path / "sweep/params.yaml").unlink()
        (tmp_path / "sweep/params.yaml").mkdir()
        place = "sweep"
    for words in (("report", place), ("export", place, "--to", "x"), ("compare", place, place)):
        done = mptexp(*words, cwd=tmp_path)
        assert done.returncode == 2, done.stdout + done.stderr
        assert done.stderr.startswith("error ")
        assert "Traceback" not in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["loop", "sweep"]


def shell(line, folder):
    """A command line of a shell, in which $MPTEXP is the command."""
    environment = {**os.environ, "MPTEXP": f"{sys.executable} -m mptexp"}
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_standard_stream_may_be_closed(light, tmp_path, closed):
    light({"seed": [0]})
    done = shell(f"$MPTEXP plan light.yaml {closed}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("1 run, 1 to execute" in done.stdout) == (closed in ("<&-", "2>&-"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("mkdir gone; cd gone; rmdir ../gone; $MPTEXP report x", "working directory was removed"),
        ("$MPTEXP report $'b\\xe9d'", r"b\udce9d: is not UTF-8; rename it"),
        ("mkdir $'b\\xe9d'; cd $'b\\xe9d'; $MPTEXP doctor", "is not UTF-8; rename it"),
    ],
)
def test_where_no_command_can_work_says_so(tmp_path, line, said):
    done = shell(line, tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_a_user_without_a_home_directory_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(
        common.os.path, "expanduser", lambda path: path
    )  # as without HOME and entry
    with pytest.raises(ParamsError, match="has no home directory; set HOME"):
        common._check_surroundings()
