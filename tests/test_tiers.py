"""`make test` and `make test-processes` share out all tests, and an unmarked one can't start a process unseen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
HERE = Path(__file__).parent
TESTS = """
import contextlib, multiprocessing, subprocess, sys, threading
import pytest

PYTHON = [sys.executable, "-c", ""]

@pytest.fixture(scope="module")
def child():
    return subprocess.run(PYTHON, check=True)

def test_starts_nothing(): pass
def test_small_program(): subprocess.run(["git", "--version"], check=True, capture_output=True)
def test_python(): subprocess.run(PYTHON, check=True)
def test_fixture(child): pass
def test_multiprocessing(): multiprocessing.get_context("spawn").Process(target=print).start()
def test_takes_the_failure_for_its_own():
    with contextlib.suppress(BaseException): subprocess.run(PYTHON)
def test_in_a_thread():
    thread = threading.Thread(target=lambda: contextlib.suppress(BaseException).__enter__() or subprocess.run(PYTHON))
    thread.start()
    thread.join()
@pytest.mark.process
def test_marked(): subprocess.run(PYTHON, check=True)
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with our conftest.py and tests of every kind."""
    pytester.makeconftest((HERE / "conftest.py").read_text())
    pytester.makeini("[pytest]\nmarkers = process: starts one\nfilterwarnings = ignore")
    pytester.makepyfile(TESTS)
    return pytester


def test_an_unmarked_test_that_starts_a_process_fails_and_says_which_mark_to_add(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess("-m", "not process", "-p", "no:cacheprovider", "-p", "no:xdist")
    outcomes = result.parseoutcomes()
    assert outcomes["deselected"] == 1
    bad = {"python", "fixture", "multiprocessing", "takes_the_failure_for_its_own", "in_a_thread"}
    said = result.stdout.str()
    assert set(re.findall(r"^(?:FAILED|ERROR) \S*::test_(\w+)", said, re.M)) == bad
    assert "mark it with @pytest.mark.process" in said


@pytest.mark.process
def test_a_marked_test_may(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess("-m", "process", "-p", "no:cacheprovider", "-p", "no:xdist")
    assert result.parseoutcomes() == {"passed": 1, "deselected": 7}


def test_the_two_commands_share_out_all_tests() -> None:
    """Each is the other's complement, and CI runs both."""
    makefile = (HERE.parent / "Makefile").read_text()
    assert re.findall(r"\$\(PYTEST\) -m (\S+|\".*?\") \$\(ARGS\)", makefile) == ['"not process"', "process"]
    ci = (HERE.parent / ".ci" / "run").read_text().splitlines()
    assert ci[-2:] == ["make test", "make test-processes"]
