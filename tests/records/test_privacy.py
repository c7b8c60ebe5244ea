from pathlib import Path

from mptexp.records import privacy


def test_private_names_are_taken_out():
    where = str(Path.home() / "secret")
    assert privacy.scrub(f"at {where}, in {Path.cwd()}/reports") == "at ~/secret, in ./reports"
    assert privacy.scrub(f"{Path.cwd()}-old") == f"{Path.cwd()}-old"


def test_what_identifies_a_run_is_never_rewritten(monkeypatch):
    monkeypatch.setattr(privacy.socket, "gethostname", lambda: "tensorflow")
    monkeypatch.setattr(privacy.getpass, "getuser", lambda: "train")
    privacy._private_names.cache_clear()
    record = {
        "parameters": {"backend": "tensorflow"},
        "notebook": "train",
        "error": "on tensorflow",
    }
    scrubbed = privacy.scrub(record | {"place": "train@x /home/train/a, train it"})
    privacy._private_names.cache_clear()
    assert scrubbed["parameters"] == {"backend": "tensorflow"}
    assert scrubbed["notebook"] == "train"
    assert scrubbed["error"] == "on <host>"
    assert scrubbed["place"] == "<user>@x /home/<user>/a, train it"
