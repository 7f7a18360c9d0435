"""What libraries say on standard error is kept, wherever they write it."""

import contextlib
import io
import os
import sys
import tempfile

import pytest

from lowerdeck.runtime.messages import captured_messages, kept_messages


def test_messages_are_kept_in_order_where_python_writes_elsewhere() -> None:
    """As in a notebook: `sys.stderr` is no file, and C++ writes to the descriptor."""
    notebook = io.StringIO()
    with contextlib.redirect_stderr(notebook):
        with captured_messages("cpuinfo") as messages:
            print("[XNNCompiler.cpp:1262] by the bindings", file=sys.stderr)
            os.write(2, b"[cpuinfo_utils.cpp:71] nothing of interest\n")
            os.write(2, b"[method.cpp:128] by the library \xff\n")
            print("last", end="", file=sys.stderr)
        print("after", file=sys.stderr)
    assert messages == ["[XNNCompiler.cpp:1262] by the bindings", "[method.cpp:128] by the library \ufffd", "last"]
    assert notebook.getvalue() == "after\n"


def test_messages_of_a_block_that_raises_are_kept() -> None:
    try:
        with captured_messages() as messages:
            print("why", file=sys.stderr)
            raise RuntimeError("error 0x1")
    except RuntimeError:
        assert messages == ["why"]
    else:
        raise AssertionError("it was swallowed")


def test_a_kept_file_has_what_was_captured_too(capfd: pytest.CaptureFixture[str]) -> None:
    """A process that is ended cannot tell what it has captured."""
    with tempfile.TemporaryFile() as file:
        with kept_messages(file):
            os.write(2, b"first\n")
            with captured_messages() as inner:
                os.write(2, b"second\n")
            print("third", file=sys.stderr)
        os.write(2, b"afterwards\n")
        file.seek(0)
        assert file.read() == b"first\nsecond\nthird\n"
    assert inner == ["second"]
    assert capfd.readouterr().err == "afterwards\n"
