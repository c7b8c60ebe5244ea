import gc
import os
import subprocess
import sys
import weakref

import pandas
import pytest

from mptexp.host import imports


def test_quiet_silences_standard_error_and_gives_it_back(capfd):
    with imports.quiet():
        os.write(2, b"greeting")
    os.write(2, b"after")
    assert capfd.readouterr().err == "after"


def test_a_package_is_hidden_for_a_while_unless_it_is_loaded(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with imports.without("colorsys"), pytest.raises(ImportError):
        import colorsys
    with imports.without("os"):
        import os
    import colorsys

    assert colorsys
    assert os


def test_a_lazy_module_is_imported_at_first_use(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    colours = imports.Lazy("colorsys")
    assert "colorsys" not in sys.modules
    assert colours.rgb_to_yiq(0, 0, 0) == (0, 0, 0)
    assert "colorsys" in sys.modules
    with pytest.raises(AttributeError, match="no_such_function"):
        _ = colours.no_such_function


def test_a_report_has_its_own_texts_and_leaves_a_users_as_they_were():
    with pandas.option_context("mode.string_storage", "pyarrow"):
        with imports.for_a_report():
            assert pandas.Series(["a"]).dtype.storage == "python"
        assert pandas.Series(["a"]).dtype.storage == "pyarrow"


def test_what_is_imported_uncollected_is_looked_through_by_no_collection():
    collections, kept, garbage = [], [], weakref.WeakSet()
    gc.callbacks.append(lambda phase, _: collections.append(phase))
    made = Owned()
    made.itself = made
    garbage.add(made)
    del made
    try:
        with imports.uncollected():
            assert not garbage, "garbage from before would be kept for ever"
            collections.clear()
            kept = [[] for _ in range(10_000)]
            assert not collections
            assert not gc.isenabled()
        assert not any(each is kept[0] for each in gc.get_objects())  # which names none frozen
    finally:
        gc.callbacks.pop()
        gc.unfreeze()
    assert gc.isenabled()


def test_who_collects_nothing_goes_on_so():
    gc.disable()
    try:
        with imports.uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize(("asked", "hidden"), [("tensorflow", True), ("jax", False), (None, False)])
def test_jax_is_hidden_unless_it_may_be_the_backend_of_keras(asked, hidden, monkeypatch):
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    if asked:
        monkeypatch.setenv("KERAS_BACKEND", asked)
    with imports.framework("no_such_framework"):
        assert ("jax" in sys.modules) is hidden
    assert "jax" not in sys.modules


def test_of_a_framework_that_is_there_no_model_is_kept(capfd):
    before = gc.get_freeze_count()
    with imports.framework("os"):
        os.write(2, b"greeting")
        assert gc.isenabled()
    assert gc.get_freeze_count() <= before  # what is frozen may end
    assert capfd.readouterr().err == ""


class Owned:
    """What may be referred to weakly."""


def test_what_a_module_is_drawn_with_is_there_without_what_it_does_not_need():
    program = (
        "import sys\n"
        "from mptexp.report.figures.style import sns\n"
        "assert sns.lineplot and 'scipy.stats' not in sys.modules\n"
        "import scipy.stats\n"
        "print(scipy.stats.norm.cdf(0))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "0.5\n", done.stderr
