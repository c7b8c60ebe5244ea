import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptexp.errors import ParamsError
from mptexp.spec import params, yaml_documents
from mptexp.spec.run import Run

GOOD = "defaults: {epochs: 2}\nmatrix:\n  policy: [float32, mixed_float16]\n"


def refusal(tmp_path, text, *overrides):
    path = tmp_path / "my file.yaml"
    path.write_text(text)
    with pytest.raises(ParamsError) as caught:
        params.read(path, overrides)
    return str(caught.value).replace(str(path), "FILE")


def accepted(tmp_path, text, *overrides):
    path = tmp_path / "good.yaml"
    path.write_text(text)
    return params.read(path, overrides)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("matrxi: {policy: [float32]}", 1, ["unknown key matrxi", "did you mean matrix"]),
        (GOOD + "repeats: two\n", 4, ["repeats is 'two'", "an integer of at least 1"]),
        (GOOD + "timeout_min: 0\n", 4, ["timeout_min is 0", "a number above 0"]),
        ("matrix:\n  batch_size: [32,\n   0]\n", 3, ["batch_size is 0", "of at least 1"]),
        ("matrix:\n  batch_size: [-1]\n", 2, ["batch_size is -1", "of at least 1"]),
        ("matrix:\n  batch_size: ['32']\n", 2, ["batch_size is '32'", "an integer"]),
        ("matrix:\n  batch_size: [true]\n", 2, ["batch_size is true", "an integer"]),
        ("matrix:\n  batch_size: [32.5]\n", 2, ["batch_size is 32.5", "an integer"]),
        ("matrix:\n  policy: [mixed_float61]\n", 2, ["did you mean mixed_float16", "bfloat16"]),
        ("defaults:\n  dataset: digit\nmatrix: {seed: [1]}", 2, ["'digit'", "allowed: digits"]),
        ("defaults:\n  model: resnet\nmatrix: {seed: [1]}", 2, ["allowed: keydana_cnn"]),
        ("defaults:\n  loss_scale: -1\nmatrix: {seed: [1]}", 2, ["dynamic, none, a number of"]),
        ("defaults:\n  block: 1\nmatrix: {seed: [1]}", 2, ["block", "repeats"]),
        ("matrix:\n  bacth_size: [1]\n", 2, ["unknown key bacth_size", "batch_size"]),
        ("matrix:\n  policy: float32\n", 2, ["is 'float32'", "a list"]),
        ("matrix:\n  policy: []\n", 2, ["the axis policy is empty", "float32"]),
        (GOOD + "price_per_hour: 0\n", 4, ["price_per_hour is 0", "above 0"]),
        (GOOD + "target_accuracy: 95\n", 4, ["target_accuracy is 95", "of at most 1"]),
        (GOOD + "equivalence_margin: -1\n", 4, ["equivalence_margin is -1", "above 0 and below 1"]),
        ("defaults:\n  target_ci: 0\nmatrix: {seed: [1]}", 2, ["target_ci is 0", "at least 0.001"]),
        ("defaults:\n  max_steps: 3\nmatrix: {seed: [1]}", 2, ["max_steps is 3", "at least 7"]),
        ("matrix: {max_steps: [99999999999]}", 1, ["max_steps is 999", "of at most 1000000000"]),
        ("matrix: {learning_rate: [1e-300]}", 1, ["learning_rate is 1e-300", "at least 1e-37"]),
        ("matrix: {learning_rate: [.inf]}", 1, ["learning_rate is Inf", "at most 1e+38"]),
        ("matrix: {clip_norm: [1e300]}", 1, ["clip_norm is 1e+300", "at most 1e+38"]),
        ("matrix: {loss_scale: [.nan]}", 1, ["loss_scale is NaN", "at most 1e+38"]),
        ("matrix: {loss_scale: [1e300]}", 1, ["loss_scale is 1e+300", "at most 1e+38"]),
        ("matrix:\n  memory_limit_gb: [-2]\n", 2, ["memory_limit_gb is -2", "above 0"]),
        (
            "defaults: {target_ci: 0.01}\nmatrix:\n  max_steps: [20, 900]\n",
            2,
            ["target_ci 0.01 cannot be reached in max_steps 20", "at least 100"],
        ),
        (
            "matrix: {policy: [float32]}\ninclude:\n- {seed: 3}\n- {policy: int4}\n",
            4,
            ["policy int4 with phase train", "allowed: phase inference"],
        ),
        ("matrix: {}\n", 1, ["nothing to run"]),
        ("matrix: [1]\n", 1, ["matrix is [1]", "a mapping"]),
        ("matrix:\n  seed: [1, 1]\n", 1, ["{seed: 1} occurs twice", "repeats"]),
        ("matrix: {seed: [1]}\ninclude:\n- {seed: 1}\n", 2, ["{seed: 1} occurs twice"]),
        # The lie: "the point {}", whose only values are those of defaults.
        (
            "defaults: {epochs: 2}\nmatrix: {seed: [1]}\ninclude:\n- {epochs: 2, seed: 1}\n",
            3,
            ["epochs: 2", "seed: 1", "occurs twice"],
        ),
        ("matrix: {seed: [1]}\nexclude:\n- {sede: 1}\n", 3, ["unknown key sede", "seed"]),
        ("matrix: {seed: [1]}\nexclude: [{seed: 1}]\n", 2, ["every point is excluded"]),
        ("matrix: {seed: [1]\n", 2, ["not valid YAML"]),
        ("matrix: {seed: [1]}\nmatrix: {seed: [2]}\n", 2, ["not valid YAML", "duplicate"]),
        ("matrix: {seed: [1]}\n---\nrepeats: 3\n", 2, [": another document begins here; allo"]),
        ("matrix: {seed: [1]}\ndefaults: {width: !mine 1}\n", 2, ["a value is tagged"]),
        ("matrix:\n  seed:\n  - 1\n  - !mine 2\n", 4, ["a value is tagged"]),
        ("- 1\n- 2\n", 1, ["is a list", "a mapping"]),
        ("just a text", 1, ["is a str", "a mapping"]),
    ],
)
def test_wrong_input_is_refused_with_line_and_what_is_allowed(tmp_path, text, line, words):
    message = refusal(tmp_path, text)
    assert message.startswith(f"FILE:{line}: "), message
    assert message.count("FILE:") == len(set(message.splitlines()))  # each fault once
    for word in words:
        assert word in message


def test_what_cannot_be_set_is_not_named_as_allowed(tmp_path):
    assert "block" not in refusal(tmp_path, "matrix: {polcy: [a]}\n")
    assert "blocks come from repeats" in refusal(tmp_path, "matrix: {block: [0]}\n")


def test_all_faults_are_told_at_once(tmp_path):
    message = refusal(tmp_path, "matrix:\n  seed: [-1]\n  epochs: [0]\n")
    assert [line.split(":")[1] for line in message.splitlines()] == ["2", "3"]


def test_an_empty_file_is_refused(tmp_path):
    assert "is empty" in refusal(tmp_path, "")
    assert "is empty" in refusal(tmp_path, "# only a comment\n")


def test_a_missing_file_is_refused_with_the_nearest_name(tmp_path):
    (tmp_path / "quickstart.yaml").write_text(GOOD)
    with pytest.raises(ParamsError, match=r"no such file.*did you mean .*quickstart.yaml"):
        params.read(tmp_path / "quickstrat.yaml")
    # The lie: "did you mean params/quickstart?", of a folder without it.
    with pytest.raises(ParamsError, match=r"did you mean quickstart\?"):
        params.read(tmp_path / "params/quickstart")
    with pytest.raises(ParamsError, match="is a directory"):
        params.read(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ParamsError, match="not UTF-8"):
        params.read(tmp_path / "binary.yaml")


def test_yaml_is_version_1_2(tmp_path):
    text = "defaults: {learning_rate: 1e-4, jit: on}\nmatrix: {seed: [1]}\n"
    sweep, _ = accepted(tmp_path, text)
    assert sweep.runs()[0].learning_rate == pytest.approx(1e-4)
    assert sweep.runs()[0].jit == "on"


def test_set_overrides_a_default_an_axis_and_a_top_level_key(tmp_path):
    sweep, text = accepted(tmp_path, GOOD, "epochs=1", "policy=bfloat16", "repeats=4")
    assert {r.epochs for r in sweep.runs()} == {1}
    assert {r.policy for r in sweep.runs()} == {"bfloat16"}
    assert len(sweep.runs()) == 4
    assert yaml_documents.content(text) == {
        "defaults": {"epochs": 1},
        "matrix": {"policy": ["bfloat16"]},
        "repeats": 4,
    }


def test_set_takes_a_list_as_an_axis(tmp_path):
    sweep, _ = accepted(tmp_path, GOOD, "epochs=[1, 3]")
    assert {r.epochs for r in sweep.runs()} == {1, 3}


@pytest.mark.parametrize(
    ("overrides", "points"),
    [
        (["policy=bfloat16", "matrix={batch_size: [8]}"], [("bfloat16", 8, 2)]),
        (["epochs=1", "defaults={width: 0.5}"], [("float32", 32, 1), ("mixed_float16", 32, 1)]),
        (
            ["batch_size=8", "include=[{policy: bfloat16, batch_size: 64}]"],
            [("float32", 8, 2), ("mixed_float16", 8, 2), ("bfloat16", 8, 2)],
        ),
        (
            [
                "epochs=[3, 4]",
                "include=&i [&p {policy: bfloat16}, {<<: *p, width: 2}]",
                "matrix={}",
            ],
            [("float32", 32, 3), ("float32", 32, 4)]
            + [("bfloat16", 32, 3), ("bfloat16", 32, 4)] * 2,
        ),
    ],
)
def test_a_section_that_is_set_undoes_no_parameter_whatever_their_order(
    tmp_path, overrides, points
):
    # The lie: with --set policy=bfloat16 --set 'matrix={batch_size: [8]}' float32 was run.
    sweep, text = accepted(tmp_path, GOOD, *overrides)
    runs = [Run(**point) for point in sweep.points()]
    assert [(run.policy, run.batch_size, run.epochs) for run in runs] == points
    assert accepted(tmp_path, GOOD, *reversed(overrides))[0] == sweep
    assert params.parse(text, "params.yaml")[0] == sweep


def test_of_a_key_that_is_set_twice_the_last_counts(tmp_path):
    sweep, _ = accepted(tmp_path, GOOD, "epochs=[1, 3]", "repeats=2", "epochs=5", "repeats=1")
    assert [run.epochs for run in sweep.runs()] == [5, 5]


@pytest.mark.parametrize("place", ["/x/pics #2", "/x/pics ", "/x/#1", "/x/a #b #c "])
def test_a_word_that_is_set_is_all_that_was_given(tmp_path, place):
    # The lie: of folder:/x/pics #2 the images of folder:/x/pics were taken.
    sweep, text = accepted(tmp_path, GOOD, f"dataset=folder:{place}")
    assert {run.dataset for run in sweep.runs()} == {f"folder:{place}"}
    assert params.parse(text, "params.yaml")[0] == sweep


INCLUDES = """\
defaults: {epochs: 2}
matrix:
  batch_size: [32, 128]
  policy: [float32, mixed_bfloat16]
include:
- {policy: mixed_float16, batch_size: 128}  # emulated
- {policy: float16, epochs: 5}
"""


@pytest.mark.parametrize(
    ("overrides", "included"),
    [
        (["epochs=1"], [("mixed_float16", 128, 1), ("float16", 32, 1)]),
        (["batch_size=16"], [("mixed_float16", 16, 2), ("float16", 16, 5)]),
        (["repeats=2"], [("mixed_float16", 128, 2), ("float16", 32, 5)]),
        (["policy=float32"], [("float32", 32, 5)]),
        (["policy=float32", "batch_size=16"], [("float32", 16, 5)]),
        (["policy=float32", "epochs=1", "batch_size=[16, 64]"], []),
        (["policy=float16", "epochs=5", "batch_size=[32, 128]"], []),
        (
            ["epochs=[1, 3]", "batch_size=128"],
            [(p, 128, epochs) for p in ("mixed_float16", "float16") for epochs in (1, 3)],
        ),
    ],
)
def test_set_overrides_the_points_of_include_too(tmp_path, overrides, included):
    # The lie: with --set epochs=1 the points of include kept their own epochs, and status 0.
    sweep, text = accepted(tmp_path, INCLUDES, *overrides)
    points = [Run(**point) for point in sweep.points()][_grid(sweep) :]
    assert [(run.policy, run.batch_size, run.epochs) for run in points] == included
    assert params.parse(text, "params.yaml")[0] == sweep


def test_set_leaves_an_entry_of_include_as_it_is_where_the_default_does(tmp_path):
    _, text = accepted(tmp_path, INCLUDES, "epochs=1", "seed=3")
    assert "- {policy: mixed_float16, batch_size: 128}" in text
    assert "- {policy: float16, epochs: 1}" in text


def _grid(sweep):
    """How many points are of the matrix."""
    return len(sweep.model_copy(update={"include": []}).points())


def test_a_set_of_an_included_point_is_checked_like_the_file(tmp_path):
    assert "\n" not in refusal(tmp_path, INCLUDES, "policy=flot32")  # said once
    twice = "matrix: {seed: [1]}\ninclude:\n- {seed: 1}\n"
    assert "{seed: 1} occurs twice" in refusal(tmp_path, twice, "repeats=2")
    assert "include is 3" in refusal(tmp_path, "matrix: {seed: [1]}\ninclude: 3\n", "epochs=1")
    faulty = INCLUDES.replace("epochs: 5", "phase: trian")
    assert refusal(tmp_path, faulty, "epochs=1").startswith("FILE:7: phase is 'trian'")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("epochs=0", ["--set epochs=0: ", "of at least 1"]),
        ("policy=flot32", ["--set policy=flot32: ", "did you mean float32"]),
        ("epoch=1", ["unknown key epoch", "did you mean epochs"]),
        ("repeats=0", ["--set repeats=0: ", "of at least 1"]),
        ("epochs", ["not of the form key=value"]),
        ("epochs=[", ["not valid YAML"]),
        ("epochs=3 #2", ["epochs is '3 #2'", "an integer"]),
    ],
)
def test_set_is_checked_like_the_file(tmp_path, override, words):
    message = refusal(tmp_path, GOOD, override)
    for word in words:
        assert word in message


def test_what_set_replaced_is_named_where_the_file_speaks_of_its_own(tmp_path):
    # A page said "Cut: two epochs" of twenty, and asked of a policy that was taken out.
    said = "# Question: Is it?\n# Cut: two epochs.\n"
    _, text = accepted(tmp_path, said + GOOD, "epochs=3", "dataset=folder:/home/me/images")
    assert text.startswith(f"{said}# Set when it was run: dataset, epochs\n")
    assert params.header(text)["set when it was run"] == "dataset, epochs"
    again = params.parse(text, "params.yaml", ["repeats=2"])[1]
    assert again.count("# Set when it was run") == 1
    assert params.header(again)["set when it was run"] == "dataset, epochs, repeats"
    own = again.replace("\ndefaults", "\n# by hand\ndefaults", 1)
    assert params.header(own) == params.header(again)


def test_set_loses_no_question_before_the_start_of_a_document(tmp_path):
    text = f"# Question: Is it?\n---\n{GOOD}"
    _, made = accepted(tmp_path, text, "epochs=3")
    assert made.startswith("# Question: Is it?\n# Set when it was run: epochs\n")
    assert params.header(made)["question"] == params.header(text)["question"] == "Is it?"


def test_what_set_replaced_is_named_below_a_comment_with_another_end_of_line(tmp_path):
    sweep, text = accepted(tmp_path, f"# one\u2028# line\n{GOOD}", "epochs=3")
    assert "# line\n# Set when it was run: epochs\ndefaults:" in text
    assert params.parse(text, "params.yaml")[0] == sweep


def test_without_set_the_text_is_the_file(tmp_path):
    text = "# a comment\n" + GOOD
    assert accepted(tmp_path, text)[1] == text


@given(st.text(max_size=200))
def test_no_text_is_a_traceback(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "x.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        params.read(path)
    except ParamsError as error:
        assert str(error)  # noqa: PT017


def test_the_header_is_read():
    text = "# Question: Is it\n#   faster?\n# Cost: little\nmatrix: {}\n# Expected: no\n"
    assert params.header(text) == {"question": "Is it faster?", "cost": "little"}


def test_two_names_of_one_device_are_refused():
    # The lie: an A100 PCIe was measured as both, and compared with itself.
    text = "matrix:\n  gpu_model: [A100, V100, A100 PCIe]\n"
    with pytest.raises(ParamsError, match="mine:2: gpu_model A100 and A100 PCIe are one device"):
        params.parse(text, "mine", to_run=True)
    sweep, _ = params.parse(text, "mine")  # what is there can be read
    assert len(sweep.points()) == 3
    params.parse("matrix: {gpu_model: [RTX 3090, RTX 3090 Ti]}", "mine", to_run=True)


def test_what_an_entry_of_include_does_not_name_is_at_its_default():
    text = "matrix: {batch_size: [64], width: [0.5]}\ninclude: [{policy: bfloat16, width: 1.0}]\n"
    sweep, _ = params.parse(text, "mine")
    assert sweep.unnamed() == {"batch_size": 32}
    sweep, _ = params.parse(f"defaults: {{batch_size: 8}}\n{text}", "mine")
    assert sweep.unnamed() == {"batch_size": 8}


MERGED = """# Question: which?
defaults: &d {epochs: 3, width: 0.25}
matrix: {policy: [float32, mixed_bfloat16]}
exclude:
  - {<<: *d, policy: mixed_bfloat16}
"""


@pytest.mark.parametrize(
    ("text", "given"),
    [
        # The lie: the text asked for other points than were run, and the report blamed the user.
        (MERGED, ["epochs=2", "max_steps=20"]),
        # The traceback: KeyError 1, of a key that is merged elsewhere.
        ("defaults: &d {epochs: 3, width: 0.5}\ninclude:\n  - {<<: *d, policy: float32}\n"
         "  - {<<: *d, policy: mixed_bfloat16}\n", ["epochs=[3, 6]"]),
        ("defaults: {epochs: 1}\nmatrix: {policy: &p [float32, float16]}\n"
         "include:\n  - &q {policy: bfloat16, width: 2}\n  - {<<: *q, width: 4}\n", ["width=0.5"]),
    ],
)  # fmt: skip
def test_what_is_set_changes_no_place_that_merges_it(tmp_path, text, given):
    sweep, written = accepted(tmp_path, text, *given)
    assert params.parse(written, "written")[0].points() == sweep.points()


@pytest.mark.parametrize("section", ["defaults", "matrix"])
def test_what_is_set_replaces_no_section_of_the_wrong_kind(tmp_path, section):
    text = GOOD.replace("defaults: {epochs: 2}", "defaults:\n  - epochs: 3")
    if section == "matrix":
        text = "matrix: [policy, float32]\n"
    said = refusal(tmp_path, text, "batch_size=64")
    assert f"{section} is " in said
    assert "allowed: a mapping" in said
