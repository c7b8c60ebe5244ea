from mptexp.errors import ParamsError, UserError


def test_a_cell_shows_the_message_alone():
    assert ParamsError("epochs is 0")._render_traceback_() == ["ParamsError: epochs is 0"]


def test_the_users_own_error_comes_before_it():
    try:
        raise ZeroDivisionError("in a model of one's own")
    except ZeroDivisionError as error:
        shown = ParamsError("model mine:build failed")
        shown.__cause__ = error
    *cause, last = shown._render_traceback_()
    assert last == "ParamsError: model mine:build failed"
    assert cause[-1] == "ZeroDivisionError: in a model of one's own"
    assert any("test_errors.py" in line for line in cause)


def test_it_is_caught_as_what_it_is():
    assert issubclass(ParamsError, (ValueError, UserError))
