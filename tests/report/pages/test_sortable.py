import base64
import hashlib

from mptexp.report.pages import sortable


def test_the_policy_admits_this_script_and_no_other():
    algorithm, _, digest = sortable.hash_source().strip("'").partition("-")
    assert algorithm == "sha256"
    assert base64.b64decode(digest) == hashlib.sha256(sortable.script().encode()).digest()


def test_the_script_is_whole_within_a_page():
    script = sortable.script()
    assert sortable.SETTINGS in script
    assert "</script" not in script  # it would end the element that holds it
    assert "export{" not in script
    assert "import " not in script.partition("\n")[0][:200]  # nothing else is loaded
    assert f'"#{sortable.ID} table"' in script
