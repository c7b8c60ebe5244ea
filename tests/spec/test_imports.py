import os
import sys

import pytest

from mptexp.spec import imports


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
