from support import PROJECT

from mptexp.spec import project


def test_the_package_lies_in_the_checkout():
    assert (project.PACKAGE / "cli.py").exists()
    assert project.PROJECT == PROJECT
