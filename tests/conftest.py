# SPDX-License-Identifier: Apache-2.0
# What holds for all tests from outside: which ones `scripts/test -k PATTERN` means, and that a passed test leaves no files.
import os
import re
import shutil

import pytest


# The smoke of the everyday run: small files that need no PyTorch and no daemon of others, each exit code and a job of several
# nodes among them. The rest runs with scripts/test --full.
SMOKE = re.compile(r"tests/system/test_(launcher_(contract|start|ends|several|nodes|restart_rules|safe_point)|musterctl|terminal|binaries)\.py")


# `-k`: a regular expression, as ctest's; pytest's own -k knows other rules.
def pytest_collection_modifyitems(config, items):
    pattern = os.environ.get("MUSTER_TEST_PATTERN")
    smoke = os.environ.get("MUSTER_TEST_SMOKE")
    chosen = [item for item in items if (not pattern or re.search(pattern, item.nodeid)) and (not smoke or SMOKE.match(item.nodeid))]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    report = outcome.get_result()
    if report.when == "call":
        item.muster_passed = report.passed


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item):
    """Removes a passed test's temporary folder once its servers are gone: kept, one run's etcd logs and copies of the
    launcher are 5 GB, and pytest keeps three runs."""
    outcome = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if folder and getattr(item, "muster_passed", False) and not outcome.excinfo:
        shutil.rmtree(folder, ignore_errors=True)
