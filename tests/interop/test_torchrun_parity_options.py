# SPDX-License-Identifier: Apache-2.0
"""Every option of torchrun, its spellings and variables, and what either launcher refuses."""
import dataclasses
import subprocess
import sys

import pytest
from launcher_support import MUSTER, ROOT
from parity_runs import SECONDS, WORKER, Run
from parity_table import check

import torch_generations
from torch_generations import PACKAGED, PYTHON

sys.path.insert(0, str(ROOT / "scripts"))
from checks import reference  # noqa: E402

HUMAN_DEFAULTS = {"nnodes": "1:1", "nproc-per-node": "1", "rdzv-id": "none", "log-line-prefix-template": "",
                  "local-ranks-filter": "", "node-rank": 0, "master-port": None, "shutdown-timeout": None, "log-dir": None,
                  "local-addr": None, "rdzv-backend": "static"}  # rows of the table, or said in words in --help


@dataclasses.dataclass
class Row:
    name: str
    letter: str
    env: str
    takes: bool
    default: str
    refused: bool
    own: bool


def table():
    """launcher/cli/option_table.h."""
    return [Row(row["name"], row["letter"], row["variable"], row["takes"], row["default"], "kRefused" in row["traits"], row["own"])
            for row in reference.options()]


def test_the_options_are_torchruns_with_their_variables_and_defaults(torchruns):
    rows = {row.name: row for row in table()}
    theirs = {}
    for option in torchruns.wait(torchruns.ask(launcher="options"), "answer"):
        long = [spelling[2:] for spelling in option["spellings"] if spelling.startswith("--")]
        assert {spelling.replace("_", "-") for spelling in long} == {long[0]}
        theirs[long[0]] = option
        row = rows[long[0]]
        assert row.letter == "".join(s[1] for s in option["spellings"] if not s.startswith("--"))
        assert row.env == option["env"]
        assert row.takes == option["takes"]
        assert not row.own
        if not row.refused and row.takes:
            assert HUMAN_DEFAULTS.get(row.name, row.default) == (option["default"] if row.name in HUMAN_DEFAULTS else text(option["default"])), row.name
    assert sorted(row.name for row in rows.values() if not row.own) == sorted(theirs), "own options say so in option_table.h"


def text(default):
    return "" if default in (None, []) else str(default)


def test_what_is_short_enough_for_torchrun_is_so_for_muster(torchruns):
    names = [option["spellings"][-1][2:].replace("_", "-") for option in torchruns.wait(torchruns.ask(launcher="options"), "answer")]
    takes = {row.name: row.takes for row in table()}
    for name in names:
        short = next(name[:size] for size in range(1, len(name) + 1) if sum(other.startswith(name[:size]) for other in names) == 1 or size == len(name))
        word = f"--{short}" if takes[name] else f"--{short}=x"
        result = subprocess.run([MUSTER, word], capture_output=True, text=True, timeout=60)
        wanted = f"--{name} needs a value" if takes[name] else f"--{name} takes no value"
        assert wanted in result.stderr, (word, result.stderr)


def test_an_unknown_option_names_the_nearest():
    for given, nearest in [("--nproc-per-nodes", "--nproc-per-node"), ("--max_restart_s", "--max-restarts"),
                           ("--rdvz-backend", "--rdzv-backend"), ("--mastr-port", "--master-port"), ("--use-envs", "--use-env")]:
        result = subprocess.run([MUSTER, f"{given}=1", "true"], capture_output=True, text=True, timeout=60)
        assert (result.returncode, result.stderr) == (
            2, f"muster: unknown option {given}; the nearest is {nearest} (see muster --help)\n")


# Options that torchrun refuses: with what, and what muster's line must name.
WRONG = [
    ("--nosuch", {}, "--nosuch"), ("--no", {}, "ambiguous"), ("--nnodes --standalone", {}, "--nnodes"), ("-x", {}, "-x"),
    ("--standalone=1", {}, "--standalone"), ("--nnodes=1:1:1", {}, "--nnodes=1:1:1"), ("--nnodes=0", {}, "--nnodes=0"),
    ("--nnodes=3:2", {}, "--nnodes=3:2"), ("--nnodes=x", {}, "--nnodes=x"), ("--nproc-per-node=x", {}, "--nproc-per-node=x"),
    ("--nproc-per-node=0", {}, "--nproc-per-node=0"), ("--max-restarts=-1", {}, "--max-restarts=-1"),
    ("--max-restarts=x", {}, "--max-restarts=x"), ("", {"PET_MAX_RESTARTS": "x"}, "PET_MAX_RESTARTS=x"),
    ("", {"PET_STANDALONE": "true"}, "PET_STANDALONE=true"), ("", {"PET_NNODES": ""}, "PET_NNODES="),
    ("--monitor-interval=0", {}, "--monitor-interval=0"), ("--monitor-interval=x", {}, "--monitor-interval=x"),
    ("--start-method=bogus", {}, "--start-method=bogus"), ("--event-log-handler=bogus", {}, "--event-log-handler=bogus"),
    ("-r 4", {}, "--redirects"), ("-t 0:1,", {}, "--tee"), ("-t a", {}, "--tee"), ("--local-ranks-filter=a", {}, "--local-ranks-filter=a"),
    ("--rdzv-conf=a", {}, "--rdzv-conf=a"), ("--rdzv-conf==1", {}, "--rdzv-conf"), ("--rdzv-conf=a=", {}, "--rdzv-conf"),
    ("--rdzv-backend=bogus", {}, "--rdzv-backend=bogus"), ("--rdzv-endpoint=h", {}, "--rdzv-endpoint"),
    ("--rdzv-backend=c10d --rdzv-endpoint=h:99999", {}, "--rdzv-endpoint"), ("--rdzv-endpoint=a/b:1", {}, "--rdzv-endpoint"),
    ("--master-port=x", {}, "--master-port=x"), ("--master-port=70000", {}, "--master-port=70000"),
    ("--shutdown-timeout=x", {}, "--shutdown-timeout=x"), ("--signals-to-handle=SIGKILL", {}, "--signals-to-handle=SIGKILL"),
    ("--log-dir=parity_worker.py", {}, "--log-dir=parity_worker.py"), ("--log-dir=/dev/null --duplicate-stdout-filters=a", {}, "--duplicate"),
    ("-m --no-python", {}, "--no-python"), ("--logs-specs=bogus", {}, "--logs-specs"), ("--numa-binding=bogus", {}, "--numa-binding"),
]
# Passed over by torchrun.
PASSED = [("--signals-to-handle=SIGTERM,BOGUS", "BOGUS"), ("--rdzv-backend=c10d --rdzv-conf=bogus=1", "bogus"),
          ("--shutdown-timeout=-1", "--shutdown-timeout=-1")]
# Torchrun's, and not muster's; torchrun refuses it here too, for want of a plug-in.
MISSING = ["--logs-specs=x"]


def refusals(both, cases):
    """What both say to each command line: (torchrun refuses, muster's line)."""
    pairs = [both(number) for number in range(len(cases))]
    for (options, environment, _), pair in zip(cases, pairs):
        for run in pair:
            run.start([*options.split(), WORKER], environment)
    for (options, _, says), pair in zip(cases, pairs):
        theirs, ours = pair
        assert ours.agents[0].wait() == 2, f"{options}: {ours.errors()}"
        [line] = ours.errors().splitlines()
        assert line.startswith("muster") and says in line
        yield options, theirs.agents[0].wait(), theirs


@pytest.mark.parametrize("first", range(0, len(WRONG), 8))
def test_what_torchrun_refuses_muster_refuses_in_one_line(both, first):
    for options, status, run in refusals(both, WRONG[first:first + 8]):
        assert status in (1, 2), options
        assert not list((run.folder / "told").iterdir()), options


def test_what_torchrun_passes_over_muster_refuses(both):
    for _, status, _ in refusals(both, [(options, {}, says) for options, says in PASSED]):
        check({"accepted": (status == 0, False)}, ("wrong values",))


@pytest.mark.parametrize("option", MISSING)
def test_what_muster_has_not_is_refused_with_what_to_use_instead(option):
    result = subprocess.run([MUSTER, option, "true"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and "is not supported: " in result.stderr


def test_launch_of_pytorch_1_13_spells_the_argument_with_an_underscore(tmp_path):
    """Debian's launcher needs a value for where output goes: on Python 3.11 it misreads its own default."""
    if reason := torch_generations.missing(PACKAGED):
        pytest.skip(reason)
    seen = []
    options = ["--nproc_per_node=2", "--redirects=1", "--tee=1", f"--log_dir={tmp_path / 'logs'}"]
    for name, command in [("launch", [PYTHON, "-m", "torch.distributed.launch", *options]),
                          ("muster", [MUSTER, "--local-rank-arg=local_rank", *options])]:
        run = Run(None, name, tmp_path / name)
        environment = torch_generations.environment(PACKAGED, PARITY_DIR=run.folder / "told", PARITY_NODE=0)
        subprocess.run([*command, WORKER, "--lr", "1"], env=environment, check=True, timeout=SECONDS, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        seen.append([run.told(f"0.{rank}.0.json")["argv"][1:] for rank in range(2)])
    assert seen[0] == [[f"--local_rank={rank}", "--lr", "1"] for rank in range(2)]
    assert seen[0] == seen[1]


def test_the_argument_with_the_local_rank_excludes_what_launch_excludes():
    for options, says in [(["--no-use-env", "--no-python"], "--no-python"), (["--no-use-env", "--use-env"], "--use-env"),
                          (["--local-rank-arg=x", "--use-env"], "--local-rank-arg")]:
        result = subprocess.run([MUSTER, *options, "true"], capture_output=True, text=True, timeout=60)
        assert result.returncode == 2 and says in result.stderr
