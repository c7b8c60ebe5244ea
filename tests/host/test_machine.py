"""The name of a machine from its start to its end."""

from mptexp.host import machine


def test_a_machine_keeps_its_name_and_the_name_leads_to_no_machine(tmp_path, monkeypatch):
    drawn = tmp_path / "boot_id"
    monkeypatch.setattr(machine, "DRAWN", drawn)
    assert machine.boot() == ""
    names = []
    for text in ("6f1c\n", "6f1c\n", "7a2d\n"):
        drawn.write_text(text)
        names.append(machine.boot())
    assert names[0] == names[1] != names[2]
    assert len(names[0]) == 12
    assert "6f1c" not in names[0]
