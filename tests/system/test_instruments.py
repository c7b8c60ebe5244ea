import json

import pytest
from support import mptexp

TINY = """\
defaults: {dataset: digits, model: mlp, width: 0.0625, epochs: 1, max_steps: 10}
matrix: {policy: [float32]}
"""


def test_an_unknown_backend_is_refused(tmp_path):
    done = mptexp("doctor", "--check", "--backend", "abacus", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "abacus: unknown; allowed: tensorflow, jax, torch" in done.stderr.replace("\n", " ")


@pytest.mark.soak
def test_the_instruments_of_this_machine_prove_themselves_and_reports_show_it(tmp_path):
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = mptexp("doctor", "--check", "--format", "json", cwd=tmp_path, **cache)
    checks = json.loads(done.stdout)
    assert {c["instrument"] for c in checks if c["passed"]} >= {"clock", "memory", "product"}
    assert {c["instrument"] for c in checks if c["passed"] is False} == set()
    assert done.returncode == 0
    (tmp_path / "tiny.yaml").write_text(TINY)
    done = mptexp("run", "tiny.yaml", cwd=tmp_path, **cache)
    assert done.returncode == 0, done.stderr
    assert "The instruments were checked" in (tmp_path / "reports/tiny/index.html").read_text()
