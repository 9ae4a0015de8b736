# What scripts/test counts: test cases read from JUnit XML (ctest, pytest, scripts/lint) and steps that failed.
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import os
import re
import shlex
import xml.etree.ElementTree as xml

ACCEPTED_SKIP = "no GPU here"
_SKIP_LINE = re.compile(r"^\s*SKIP: (.+)$", re.MULTILINE)


@dataclasses.dataclass
class Case:
    name: str
    outcome: str  # passed, failed, skipped or flaky
    reason: str = ""
    seconds: float = 0
    plain: str = ""  # as its own runner calls it: ctest's name, or pytest's path::name


def _skip_reason(case, skipped):
    """A ctest test prints "SKIP: reason" and exits with 77; pytest puts the reason into the message."""
    output = case.findtext("system-out") or ""
    if match := _SKIP_LINE.search(output):
        return match[1].strip()
    message = (skipped.get("message") or "") if skipped is not None else ""
    if message.startswith(("SKIP_RETURN_CODE", "SKIP_REGULAR")):
        return "the test gave no reason"
    return message.strip() or case.get("status") or "no reason given"


def read_junit(path):
    """The cases of a JUnit file as ctest 3.25, pytest 7 and scripts/lint write it."""
    cases = []
    for case in xml.parse(path).getroot().iter("testcase"):
        name = plain = case.get("name", "")
        took = float(case.get("time") or 0)
        classname = case.get("classname") or ""
        if classname.startswith("tests."):
            plain = f"{classname.replace('.', '/')}.py::{name}"
        if classname and classname not in (name, "lint"):
            name = f"{classname.replace('.', '/')}: {name}"
        failure = case.find("failure")
        failure = case.find("error") if failure is None else failure
        skipped = case.find("skipped")
        if failure is not None or case.get("status") == "fail":
            reason = (failure.get("message") or "").strip().split("\n")[0] if failure is not None else ""
            cases.append(Case(name, "failed", reason, took, plain))
        elif skipped is not None or case.get("status") in ("notrun", "disabled"):
            cases.append(Case(name, "skipped", _skip_reason(case, skipped), took, plain))
        else:
            cases.append(Case(name, "passed", "", took, plain))
    return cases


class Results:
    AGAIN = 2  # runs alone that a failed test has to pass to count as flaky
    MOST_AGAIN = 12  # more failures than this are no coincidence

    def __init__(self):
        self.cases = []
        self.durations = []
        self.slowest = []  # (seconds, name)

    def add_step(self, step):
        """A step that is no test (setup, a build) counts only when it failed."""
        self.durations.append((step.name, step.seconds))
        if not step.ok:
            self.cases.append(Case(step.name, "failed", step.problem))

    def add_junit(self, suite, path, step, again=None):
        """`again`: runs one case alone and says whether it passed. Used in CI for failed ones: one flaky test must not cost a
        whole run, but it is named."""
        self.durations.append((suite, step.seconds))
        try:
            cases = read_junit(path)
        except (OSError, xml.ParseError) as error:
            self.cases.append(Case(suite, "failed", step.problem or f"no results: {error}"))
            return
        for case in cases:
            case.name = case.name if case.name.startswith(suite) else f"{suite}: {case.name}"
            self.slowest.append((case.seconds, case.name))
        self.cases += cases
        failed = [case for case in cases if case.outcome == "failed"]
        # A suite that failed as a whole, whatever became of each of its tests: it left processes behind, or timed out.
        if step.left or step.code == 124 or (not step.ok and not failed):
            self.cases.append(Case(suite, "failed", step.problem))
        if again and os.environ.get("CI") == "true" and len(failed) <= self.MOST_AGAIN:
            for case in failed:
                if all(again(case) for _ in range(self.AGAIN)):
                    case.outcome = "flaky"

    def finish(self, seconds):
        """Prints the summary; the exit status of the run."""
        print()
        for name, took in self.durations:
            print(f"{took:8.1f} s  {name}")
        print(f"{seconds:8.1f} s  in all")
        slowest = sorted(self.slowest, reverse=True)[:10]
        if slowest and seconds > 600:
            print("the ten slowest tests:")
            print("\n".join(f"{took:8.1f} s  {name}" for took, name in slowest))
        for case in self.cases:
            if case.outcome == "flaky":
                print(f"flaky: {case.name}: failed once ({case.reason}), then passed {self.AGAIN} times alone")
        for case in self.cases:
            if case.outcome == "failed":
                print(f"failed: {case.name}{': ' + case.reason if case.reason else ''}")
                if case.plain:
                    print(f"  repeat it: scripts/test -k {shlex.quote(re.escape(case.plain.split('::')[-1]))}")
        skipped = [case for case in self.cases if case.outcome == "skipped"]
        for case in skipped:
            print(f"skipped: {case.name}: {case.reason}")
        refused = [c for c in skipped if os.environ.get("CI") == "true" and not c.reason.startswith(ACCEPTED_SKIP)]
        if refused:
            print(f'CI=true: {len(refused)} skips for another reason than "{ACCEPTED_SKIP}" fail the run')
        count = {o: sum(c.outcome == o for c in self.cases) for o in ("passed", "failed", "skipped", "flaky")}
        count["passed"] += count["flaky"]
        print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped", flush=True)
        return 1 if count["failed"] or refused or not count["passed"] else 0
