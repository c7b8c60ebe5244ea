"""The first screen: what it claims is what the tables hold, on committed and on random sweeps."""

import math
import random
import re
from dataclasses import replace
from functools import cache
from html import escape

import pandas as pd
import pytest
from builders import CARD, published, record, tables, three
from support import PROJECT
from verdicts import loss
from verdicts import verdict as made

from mptexp.analysis.contrast import Contrast
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.report import measured_sweep
from mptexp.report.figures import all_figures
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.pages import first_screen_html
from mptexp.report.tables import text_tables
from mptexp.report.text import wording
from mptexp.spec.run import Run

PUBLISHED = sorted(path.parent for path in (PROJECT / "reports/published").glob("*/runs"))
RATIO = re.compile(r"(\d+\.\d\d× (?:faster|slower|as fast))[^\[;]*?(\[[\d., ]+\])")


@pytest.fixture
def sweep(tmp_path):
    return MeasuredSweep(SweepDir(tmp_path / "mine"), three("mixed_float16", [2.0, 2.1, 1.9]))


def test_the_title_is_the_finding(sweep):
    assert (
        first_screen_html.title(sweep)
        == "mixed_float16 trains 2.00× faster than float32 on GPU, at equal accuracy"
    )
    assert (
        "**mixed_float16** trains 2.00× faster than float32"
        in first_screen_html.sentences(sweep)[0]
    )


def test_the_first_screen_has_all_its_parts_in_order(sweep):
    page = first_screen_html.html(sweep)
    parts = ("<h1>", 'class="question"', 'class="conditions"', "<figure>", "<ul><li>", "What to do")
    places = [page.index(part) for part in parts]
    assert places == sorted(places)
    assert "n = 3 repeats, 6 runs" in page
    assert "model keydana_cnn" in page
    assert 'class="banner"' not in page  # everything is valid


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("Is it fast?", "Is it fast?"),
        (f"Is it fast, and does {'x' * 120} so?", "Is it fast?"),
        (f"Why is it fast: the {'x' * 120}?", "Why is it fast?"),
        (f"Is {'x' * 120} fast?", f"Is {'x' * 120} fast?"),
        # Once "…, does it learn?", cut off before the last of three.
        (f"Is it fast, does it learn, and why {'x' * 120}?", "Is it fast, and does it learn?"),
    ],
)
def test_of_a_long_question_the_first_clauses_are_shown(sweep, asked, shown, monkeypatch):
    monkeypatch.setattr(MeasuredSweep, "question", asked)
    assert first_screen_html._asked(sweep) == shown


def test_a_phone_has_in_a_line_what_is_not_valid():
    busy = "**Not valid: times** of all runs: others were at work (interference). End them."
    assert first_screen_html._brief(busy) == "**Not valid: times** of all runs."
    unlike = "**Not comparable**: 2 runs differ in more than the policy: the code. They form none."
    assert (
        first_screen_html._brief(unlike)
        == "**Not comparable**: 2 runs differ in more than the policy."
    )
    short = "**Without a result**: 1 of 2 runs of float16 (diverged)."
    assert first_screen_html._brief(short) == short
    # It ended within a bracket: "which were made with policy float32 (params.yaml."
    other = "**Not what was asked for**: 2 runs were made with policy float32 (params.yaml: int8)"
    assert first_screen_html._brief(f"{other}: it was edited after them.") == f"{other}."


def test_the_sentence_that_says_why_is_known_to_a_phone():
    page = first_screen_html.screen(
        "t", "q", [], [], "", ["one", f"{first_screen_html.LIMITS}: waits."], ""
    )
    assert '<li>one</li><li class="why">What limits it: waits.</li>' in page
    assert "brief" not in page


def test_what_is_shared_is_plain_text(sweep):
    card = first_screen_html.card(sweep)
    assert card["og:title"] == first_screen_html.title(sweep)
    assert "mixed_float16" in card["og:description"]
    assert not set("<>*") & set(card["og:description"])


@cache
def random_sweep(seed):
    """A sweep of random size, speeds and faults, and its claims."""
    draw = random.Random(seed)
    policies = draw.sample(["mixed_float16", "mixed_bfloat16", "bfloat16", "float16"], 2)
    speeds = {policy: draw.choice([0.3, 0.95, 1.0, 1.05, 2.0]) for policy in policies}
    noise, flagged = draw.choice([0.002, 0.05]), draw.random() < 0.3
    rows = []
    for size in draw.sample([8, 16, 32, 64, 128, 256], draw.randint(1, 6)):
        for block in range(draw.choice([2, 3, 5])):
            for policy, speed in {"float32": 1.0, **speeds}.items():
                step_s = 0.1 / speed * math.exp(draw.gauss(0, noise))
                emulated = policy.endswith("float16") and draw.random() < 0.2
                made = record(policy, block, step_s, size, emulated=emulated)
                if flagged and policy == policies[0]:
                    made["marks"] = ["measured while other programs used the processor"]
                made["history"][0]["val_accuracy"] = draw.gauss(0.9, 0.01)
                rows.append(made)
    sweep = MeasuredSweep(SweepDir(PROJECT), tables(rows))
    return sweep, claims_of(sweep)


def claims_of(sweep):
    """Every ratio with an interval that the lead, its title and its chart hold."""
    texts = [
        *first_screen_html.sentences(sweep),
        *(bar.text for bar in sweep.subject.bars),
    ]
    return [claim for text in texts for claim in RATIO.findall(text)]


def table_of(sweep):
    return text_tables.headline_rows(sweep.tables).to_string(max_colwidth=None)


@pytest.mark.parametrize("seed", range(15))
def test_every_claim_of_the_lead_is_in_the_table(seed):
    sweep, claims = random_sweep(seed)
    table = table_of(sweep)
    for ratio, interval in claims:
        assert f"{ratio} {interval}" in table
    title = re.search(r"([\d.]+× (?:faster|slower))", first_screen_html.title(sweep))
    assert title is None or title[1] in table
    assert len(first_screen_html.sentences(sweep)) <= first_screen_html.SHOWN


def test_random_sweeps_make_claims():
    assert sum(len(random_sweep(seed)[1]) > 0 for seed in range(6)) > 3


@pytest.mark.parametrize("place", PUBLISHED, ids=lambda path: path.name)
def test_published_leads_agree_with_their_tables(place):
    sweep = published(place.name)
    page = (place / "index.html").read_text().replace("\xa0", " ")  # before a unit
    assert f"<h1>{escape(first_screen_html.title(sweep), quote=False)}</h1>" in page
    table = (place / "table.md").read_text()
    answer = sweep.subject
    if answer.scale == "speed" and answer.baseline in ("float32", "the default"):
        for ratio, interval in claims_of(sweep):
            # Ratios of frameworks and loops have sections of their own, and so have ablations.
            assert f"{ratio} {interval}" in table or f"{ratio} {interval} (n = " in page
    if all(record.get("identity") is None for record in sweep.tables.records):
        assert answer.title.startswith("Provisional (not valid): ")
        assert "--repair` in this report's folder" in answer.advice
        assert all(math.isnan(bar.low) for bar in answer.bars)
        assert not RATIO.findall(" ".join(answer.sentences))


@pytest.mark.parametrize("place", PUBLISHED, ids=lambda path: path.name)
def test_the_lead_of_every_published_report_is_short(place):
    sweep = published(place.name)
    said = first_screen_html.sentences(sweep)
    assert 1 <= len(said) <= first_screen_html.SHOWN
    assert sum(map(len, said)) < 900
    assert first_screen_html.figure(sweep) is not None


def test_the_one_pair_that_loses_to_a_cause_is_named():
    said = first_screen_html.sentences(published("why-imagenette-64px-cpu"))[-1]
    step = "of **mixed_bfloat16**'s step"
    assert said == (
        "What limits it: in 3 of 4 diagnosed comparisons, no known cause takes more than 10 % of "
        "the step, which gains what its layers alone do (measured peak: 1.91× the baseline's); "
        f"with XLA, one batch kept on the device, 91 % {step} is lost to XLA's code, slower here "
        "than single operations."
    )


def test_of_the_one_pair_that_was_diagnosed_what_takes_nearly_as_much_is_said_too():
    # The lie: of a step on an H200 18 % alone, beside 17 and 14 %; and nothing to do about it, as
    # its input was one batch, though nothing else had been traced.
    sweep = published("tf32-h200")
    shares = re.findall(r"(\d+) %", first_screen_html.causes(sweep.verdicts, sweep.tables.ok))
    assert shares == ["18", "17", "14"]
    assert first_screen_html.advice(sweep).endswith(
        "To go faster (one batch kept on the device): compile the step (jit on), not tried yet."
    )


def test_only_a_compiler_that_nothing_tried_is_said_not_to_be():
    (found,) = [one for one in published("tf32-h200").verdicts if one.traced]
    assert found.is_untried("compile the step (jit on)")
    # The lie: "mixed_bfloat16, which needs none, not tried yet", of a policy of the same sweep.
    assert not found.is_untried("mixed_bfloat16, which needs none")
    named = [{e.ablation.name for e in one.effects} for one in published("why-cpu").verdicts]
    for one, names in zip(published("why-cpu").verdicts, named, strict=True):
        assert one.is_untried("do not compile the step (jit off)") is ("XLA off" not in names)
    assert any("XLA off" in names for names in named)


def test_pairs_that_lose_to_one_cause_are_named_by_what_they_alone_share():
    # "in 2 of 4 diagnosed comparisons": of which?
    said = first_screen_html.sentences(published("why-cpu"))[-1]
    # With XLA both, though float32's runs without it, of one batch, lie apart: not those compared.
    # Once of that one "no known cause takes more than 10 %", beside 121 of 187 ms without XLA.
    assert said == (
        "What limits it: with XLA, 35 % of **mixed_float16**'s step is lost to XLA's code, slower "
        "here than single operations; without XLA, input as in Keydana 2020, 84 % of the step is "
        "the extra cost of emulating its arithmetic."
    )


def test_of_several_policies_each_cause_is_of_the_step_of_its_own():
    # "in 1 of 2 diagnosed comparisons": of which?
    sweep = published("float8-gpt-cpu")
    said = first_screen_html.causes(sweep.verdicts, sweep.tables.ok)
    assert re.fullmatch(
        r"What limits it: \d+ % of \*\*float8\*\*'s step is the extra cost of [^;]+; "
        r"\d+ % of \*\*mixed_bfloat16\*\*'s step is lost in memory-bound work that 16 bits did not "
        r"halve\.",
        said,
    )


def test_a_cause_is_of_the_settings_that_were_diagnosed_alone():
    # "92 % of mixed_bfloat16's step is lost to compiled code" of eight settings, one with XLA.
    sweep = published("imagenette-64px-cpu")
    said = first_screen_html.causes(sweep.verdicts, sweep.tables.ok)
    assert said.startswith(
        "What limits it: at batch size 32 with XLA, 90 % of **mixed_bfloat16**'s step is lost "
    )
    # A single diagnosed pair with nothing to its name, of several settings that were measured.
    one, runs = made(loss("host", 0.3)), sweep.tables.ok.assign(policy="mixed_float16")
    of_one = runs.assign(batch_size=128)
    assert first_screen_html.causes([one], of_one).startswith(
        "What limits it: in 1 of 1 diagnosed comparison"
    )
    assert first_screen_html.causes([one], of_one[:1]).startswith(
        "What limits it: 30 % of **mixed_float16**"
    )


def test_a_title_of_no_gain_says_why_where_one_cause_is_proven():
    # The puzzle: pages that ask why, titled by how much.
    assert first_screen_html.title(published("why-cpu")) == (
        "mixed_float16 trains 6.64× slower than float32 without XLA, because "
        "84 % of its step is lost to emulation"
    )
    # Of three causes that take nearly as much none is the reason; nor of a gain.
    for name in ("tf32-h200", "why-imagenette-64px-cpu", "sign-language-100px-cpu"):
        assert "because" not in first_screen_html.title(published(name))
    cause = made(loss("host", 0.3)).blamed[0].cause
    assert cause.brief == "host and launch overhead"


def test_a_trace_of_other_steps_blames_nothing():
    # "37 % of mixed_float16's step", by a float32 whose steps took a third longer when traced.
    sweep = published("gpt-cpu")
    limits = first_screen_html.LIMITS
    assert first_screen_html.causes(sweep.verdicts, sweep.tables.ok).startswith(limits)
    others = [replace(one, other=True) for one in sweep.verdicts]
    assert all(verdict.blamed and not verdict.is_valid for verdict in others)
    assert limits not in first_screen_html.causes(others, sweep.tables.ok)
    # Whose batch normalization would be worth a change by a trace of the same steps.
    doubtful = published("sign-language-100px-cpu")
    assert doubtful.verdicts[1].remedies(doubtful.verdicts[1].blamed[0])
    assert "To go faster" not in first_screen_html.advice(doubtful)


def test_of_several_devices_the_one_that_was_diagnosed_is_named():
    # The lie: "What limits it: 90 % of mixed_float16's step ...", of two CPUs, of which one was.
    sweep = published("quickstart-amx-cpu")
    runs = sweep.tables.ok
    said = first_screen_html.causes(sweep.verdicts, runs)
    assert "diagnosed" not in said
    both = pd.concat([runs, runs.assign(gpu_model="Another")], ignore_index=True)
    name = sweep.verdicts[0].pair.candidate.gpu_model
    named = f" (on {wording.verbatim(name)}, alone diagnosed)."
    assert first_screen_html.causes(sweep.verdicts, both).endswith(named)


def test_what_an_ablation_proves_needs_no_trace():
    # Of the steps of another day a trace proves nothing; runs with and without the change do.
    sweep = published("sign-language-100px-cpu")
    assert not any(verdict.blamed and verdict.is_valid for verdict in sweep.verdicts)
    assert first_screen_html.sentences(sweep)[-1] == (
        r"Of the changes tried, no normalization helps most: with model banerjee\_resnet50, "
        "**float32** is 1.30× faster [1.21, 1.41] and **mixed_bfloat16** is 1.63× faster "
        "[1.54, 1.72]."
    )


def test_what_to_do_names_what_helps_against_the_largest_cause():
    said = first_screen_html.advice(published("why-imagenette-64px-cpu"))
    assert said.startswith("use **mixed_bfloat16**")
    # Nobody trains on one batch again and again: against what limits that alone nothing is advised.
    assert "To go faster" not in said
    # Of emulation the answer itself says that another policy helps.
    emulated = first_screen_html.advice(published("why-cpu"))
    assert emulated.startswith(
        "keep float32; **mixed_bfloat16**, whose arithmetic this CPU has, was"
    )
    # What was measured of XLA is said plainly ("90 % is lost to XLA's code": so?), and once.
    assert emulated.endswith(
        " was not measured. Leave XLA off (jit off): with it steps take 1.5 to 10.0 times as long."
    )
    assert "Leave XLA off (jit off): with it steps take 6.7 to 10.6 times" in said


def test_advice_names_where_a_gain_is_not_shown_if_that_is_rarer():
    # The puzzle: one setting of the five that gain was advised, of eight.
    said = first_screen_html.advice(published("imagenette-64px-cpu"))
    assert said.startswith("on this CPU, use **mixed_bfloat16**")
    assert said.count("batch size 32") == 3
    # Nor was the compiler tried at the other batch sizes.
    assert "Leave XLA off with batch size 32 (jit off)" in said
    assert "Not shown to be faster at batch size 32 (without XLA, prefetched input) or" in said


def test_a_loss_scale_that_diverges_is_to_avoid_where_none_is_shown_to_train():
    said = first_screen_html.advice(published("loss-scale-gpt-cpu"))
    assert said.startswith(
        "avoid **mixed_float16** with a loss scale of 2¹⁵; keep its dynamic scale, Keras's "
        "default, with which no run diverged; it takes about 17 repeats, not 6, to"
    )


def test_together_the_published_sweeps_have_almost_every_figure():
    sweeps = [published(place.name) for place in PUBLISHED]
    names = {figure.row.name for sweep in sweeps for figure in all_figures.figures(sweep)}
    assert {row.name for row in all_figures.FIGURES} - names == {"tokens_per_s_by_batch_size"}


def test_a_diagnosis_is_advised_only_where_there_is_something_to_diagnose():
    # The lie: "Where the time goes: mptexp diagnose", which refuses inference.
    assert "mptexp diagnose" not in first_screen_html.advice(
        published("quantized-inference-gpt-cpu")
    )
    assert "mptexp diagnose" in first_screen_html.advice(published("throughput-cpu"))


def test_the_head_says_of_how_many_repeats_the_ratios_are():
    rows = [record("float32", b, 0.1 + b / 1000) for b in range(5)]
    rows += [record("mixed_float16", b, 0.05 + b / 1000) for b in range(3)]
    lost = {"status": "oom", "error": "out of memory", "timing": {}, "history": []}
    rows += [record("mixed_float16", b) | lost for b in (3, 4)]
    # The lie: "n = 5 repeats", above a ratio of three.
    assert first_screen_html.conditions(tables(rows))[-1] == "n = 3 of 5 repeats, 10 runs"


def test_the_conditions_name_the_versions_of_all_runs():
    # The lie: the first record's versions, of devices measured with others.
    rows = [record(block=block) for block in range(4)]
    for one, version in zip(rows, ("2.21.0", "2.9.0", "2.21.0", "2.15.0"), strict=True):
        packages = {"tensorflow": version, "keras": "3.15.1"}
        one["environment"] = {"device": "GPU", "packages": packages, "commit": ""}
    two = "TensorFlow 2.9.0 and 2.21.0, Keras 3.15.1"
    assert two in first_screen_html.conditions(tables(rows[:3]))
    rows[2]["environment"]["packages"] = {"tensorflow": "2.10.0", "keras": "3.15.1"}
    assert "TensorFlow in 4 versions, Keras 3.15.1" in first_screen_html.conditions(tables(rows))


@pytest.mark.parametrize(("how", "warned"), [("target_ci", False), ("epochs", True)])
def test_that_nothing_was_learned_is_no_fault_of_runs_that_time_steps(how, warned, tmp_path):
    # The lie: "Not valid: accuracy of 3 of 51 runs: they learned nothing", of a sweep of times.
    rows = [
        record(policy, block, chance_accuracy=0.1)
        for policy in ("float32", "mixed_float16")
        for block in range(3)
    ]
    for one in rows:
        one["timing"] = one["timing"] | {"ended_by": how}
        one["history"][-1]["val_accuracy"] = 0.1
    page = first_screen_html.html(MeasuredSweep(SweepDir(tmp_path / "short"), tables(rows)))
    assert ("at chance level" in page) == warned
    assert ("runs ended once their times were known" in page) != warned


def test_a_sweep_without_an_input_says_so_on_its_first_screen():
    # The lie: "trains 1.01x as fast as TF32", and not a word that one batch was kept on the device.
    rows = [record(block=block) for block in range(2)]
    said = "one batch kept on the device"
    assert said not in first_screen_html.conditions(tables(rows))
    rows[0]["parameters"]["input_mode"] = "resident"
    assert said not in first_screen_html.conditions(tables(rows))  # of some, their rows say it
    rows[1]["parameters"]["input_mode"] = "resident"
    assert said in first_screen_html.conditions(tables(rows))


def test_a_page_says_after_how_many_epochs_its_accuracies_are():
    # 36 % of a network that trained for two epochs was taken for one that is broken.
    rows = [record(policy, b) for policy in ("float32", "mixed_float16") for b in range(3)]
    for one in rows:
        one["timing"]["ended_by"] = "epochs"
        one["history"] = [one["history"][-1] | {"epoch": n} for n in (1, 2)]
    assert "2 epochs" in first_screen_html.conditions(tables(rows))
    rows[0]["history"] = rows[0]["history"][:1]
    assert "1 to 2 epochs" in first_screen_html.conditions(tables(rows))
    rows[0]["timing"] = rows[0]["timing"] | {"ended_by": "max_steps"}  # within the epoch
    assert not any("epoch" in part for part in first_screen_html.conditions(tables(rows)))


def measured(root, times):
    """The sweep of these settings, each with step times by policy, as a report reads it."""
    for parameters, steps in times:
        for policy, step_s in steps.items():
            for block in range(3):
                jit = parameters.get("jit") == "on"
                size = parameters.get("batch_size", 32)
                made = record(policy, block, step_s * 1.001**block, batch_size=size, jit=jit)
                run = Run(**made["parameters"] | parameters)
                made |= {"parameters": run.model_dump(), "run_id": run.run_id()}
                made["environment"] = CARD
                made["identity"] |= {name: CARD[name] for name in ("device", "cpu", "cores")}
                store.write_record(root / "runs" / run.run_id() / "record.json", made)
    (root / "params.yaml").write_text("matrix: {policy: [float32]}\n")
    return measured_sweep.load(SweepDir(root))


def test_a_cause_with_a_remedy_explains_a_title(tmp_path):
    # Once no page at all: TypeError: unhashable type: 'dict'.
    both = [({"input_mode": "pipeline"}, {"float32": 0.4, "mixed_float16": 0.8})]
    both += [({"input_mode": "resident"}, {"float32": 0.1, "mixed_float16": 0.1})]
    sweep = measured(tmp_path, both)
    assert "input" in first_screen_html.causes(sweep.verdicts, sweep.tables.ok)
    assert first_screen_html.title(sweep).startswith("mixed_float16 trains 2.00× slower")


def test_two_policies_that_gain_on_one_batch_alone_are_named(tmp_path):
    # Once no page at all: TypeError: unhashable type: 'slice'.
    policies = ("float32", "mixed_float16", "mixed_bfloat16")
    resident = dict(zip(policies, (0.1, 0.05, 0.05), strict=True))
    both = [({"input_mode": "resident"}, resident)]
    both += [({"input_mode": "pipeline"}, dict.fromkeys(policies, 0.2))]
    said = first_screen_html.advice(measured(tmp_path, both))
    assert "mixed_float16 and mixed_bfloat16 gain where no time goes into input" in said


def test_xla_is_advised_against_where_it_hurts_alone(tmp_path):
    # The lie: "Leave XLA off (jit off): with it steps take 2.0 to 3.0 times as long", of a sweep
    # in which it makes another model four times as fast.
    times = [
        ({"model": "mlp", "jit": "off"}, {"float32": 0.2, "mixed_float16": 0.1}),
        ({"model": "mlp", "jit": "on"}, {"float32": 0.4, "mixed_float16": 0.3}),
        ({"model": "lenet", "jit": "off"}, {"float32": 0.8, "mixed_float16": 0.4}),
        ({"model": "lenet", "jit": "on"}, {"float32": 0.4, "mixed_float16": 0.1}),
    ]
    said = first_screen_html.advice(measured(tmp_path / "two", times))
    assert "Leave XLA off with model mlp (jit off): with it steps take 2.0 to 3.0 times" in said
    said = first_screen_html.advice(measured(tmp_path / "one", times[:2]))
    assert "Leave XLA off (jit off): with it steps take 2.0 to 3.0 times as long." in said


@pytest.mark.parametrize("rows", [{"rows": []}, None])
def test_without_a_trace_no_cause_is_excluded(rows):
    # The lie: "no known cause takes more than 10 % of the step", of steps that nobody traced.
    found = made(loss("host", 0.05))
    assert first_screen_html._nothing([replace(found, candidate={"profile": rows})]) == ""


def test_a_cause_that_is_not_certain_is_not_excluded():
    # The lie: "no known cause takes more than 10 %", beside "30 % (at least 3 %)".
    clean = published("why-imagenette-64px-cpu").verdicts[0]
    assert "no known cause" in first_screen_html._nothing([clean])
    unsure = replace(clean, losses=[loss("memory", 0.3, least=0.03)])
    assert not unsure.blamed
    assert first_screen_html._nothing([unsure]) == ""


def test_a_cause_found_at_one_setting_is_not_that_of_all(tmp_path):
    # The lie: "2.00× slower, because 87 % of its step is the input pipeline", of three batch
    # sizes, of which one alone was looked at.
    slower = {"float32": 0.4, "mixed_float16": 0.8}
    alone = [
        ({"batch_size": 128, "input_mode": "pipeline"}, slower),
        ({"batch_size": 128, "input_mode": "resident"}, {"float32": 0.1, "mixed_float16": 0.1}),
    ]
    assert ", because " in first_screen_html.title(measured(tmp_path / "one", alone))
    others = [({"batch_size": size, "input_mode": "pipeline"}, slower) for size in (32, 64)]
    said = first_screen_html.title(measured(tmp_path / "three", [*alone, *others]))
    assert said.startswith("mixed_float16 trains 2.00× slower")
    assert ", because " not in said


def test_that_a_policy_learned_nothing_is_no_fault_where_float32_did(tmp_path):
    # The contradiction: "not valid: accuracy of 3 of 6 runs, all of mixed_float16", and one line
    # below "accuracy is lower, −80.0 [−80.0, −80.0]" of just these.
    for policy, figure in (("float32", 0.9), ("mixed_float16", 0.1)):
        for block in range(3):
            made = record(policy, block, 0.1, chance_accuracy=0.1)
            made["history"][-1]["val_accuracy"] = figure
            store.write_record(tmp_path / "runs" / made["run_id"] / "record.json", made)
    (tmp_path / "params.yaml").write_text("matrix: {policy: [float32, mixed_float16]}\n")
    sweep = measured_sweep.load(tmp_path)
    assert "not trained" not in first_screen_html.html(sweep)
    assert first_screen_html.findings(sweep) == ()  # it stays with the details
    assert any("accuracy is lower" in text for text in first_screen_html.sentences(sweep))


def test_a_title_says_because_only_of_what_makes_the_difference():
    # The lies: "slower, because 50 % of its step is wait for input", of which float32 waits longer;
    # "not shown to train faster, because 12 % of its step is optimizer".
    waits = loss("input", 0.5, baseline_s=0.006)
    found = made(waits)
    slower = replace(found, pair=replace(found.pair, speedup=Contrast(0.85, 0.84, 0.86, 5)))
    assert not first_screen_html._is_explained(slower)
    alone = replace(slower, losses=[loss("input", 0.5, baseline_s=0.0)])
    assert first_screen_html._is_explained(alone)
    assert not first_screen_html._is_explained(replace(alone, unexplained=0.3))
    equal = replace(found, pair=replace(found.pair, speedup=Contrast(1.0, 0.99, 1.01, 5)))
    assert not first_screen_html._is_explained(
        replace(equal, losses=[loss("optimizer", 0.12, baseline_s=0.0012)])
    )
    # Without the wait the policy would be 1.67 times as fast.
    assert first_screen_html._is_explained(
        replace(equal, losses=[loss("input", 0.7, baseline_s=0.005)])
    )


def test_what_is_unexplained_is_said_where_no_cause_is():
    # "No known cause takes more than 10 % of the step", of which 80 % has no name.
    clean = published("why-imagenette-64px-cpu").verdicts[0]
    unknown = replace(clean, unexplained=0.8, as_layers=math.nan)
    assert first_screen_html._nothing([unknown]).endswith(", and 80 % of it is unexplained")
    assert "unexplained" not in first_screen_html._nothing([clean])


def test_what_goes_faster_is_of_the_policy_that_is_to_be_used(tmp_path):
    # The advice: "use mixed_bfloat16. To go faster: float32 for these layers", of mixed_float16's.
    sweep = published("why-imagenette-64px-cpu")
    assert first_screen_html.USED.findall(sweep.subject.advice) == ["mixed_bfloat16"]
    scaled = made(loss("loss scaling", 0.2))
    for policy, advised in (("mixed_float16", False), ("mixed_bfloat16", True)):
        run = scaled.pair.candidate.model_copy(update={"policy": policy})
        of = replace(scaled, pair=replace(scaled.pair, candidate=run))
        chosen = MeasuredSweep(sweep.directory, sweep.tables)
        chosen.__dict__["verdicts"] = [of]
        said = first_screen_html._remedies(chosen)
        # Nor is a policy advised that the sweep has measured.
        assert said == "To go faster: a fixed loss_scale, which costs less." * advised


def test_what_leaves_the_baseline_no_time_explains_nothing():
    # A trace of the baseline that waits longer than its step in the sweep takes: a ratio below 0.
    waits = loss("input", 0.5, baseline_s=0.02)
    found = made(waits)
    slower = replace(found, pair=replace(found.pair, speedup=Contrast(0.85, 0.84, 0.86, 5)))
    assert not first_screen_html._is_explained(slower)
