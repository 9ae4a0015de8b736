# SPDX-License-Identifier: Apache-2.0
"""The same command lines under torchrun and under muster: what differs is what launcher/torchrun.md says, and no more."""
import dataclasses
import json

import pytest
from launcher_support import ROOT
from parity_runs import WORKER, Run, differences
from parity_table import ADDS, EXPLAINS, SHOWN_BY, check, topics
from ports import free_port
from torch_generations import PYTHON

@dataclasses.dataclass
class Case:
    """One node. {port} is a free port, {folder} the run's directory."""

    options: str = ""
    words: str = ""  # what the worker is to do
    shows: tuple = ()  # rows of the table
    environment: dict = dataclasses.field(default_factory=dict)
    program: tuple = (WORKER,)
    look: object = None  # more to compare: a function of the run
    main: str = "torchrun"
    ours: str = None  # muster's options, where they are others


TALK = "out=a err=b"
CASES = {
    "one worker": Case("", TALK, environment={"OMP_NUM_THREADS": None}),
    # With a thread for each, muster is silent where torchrun warns; with more, it says so too and gives them.
    "two workers": Case("--nproc-per-node=2", TALK, ("`OMP_NUM_THREADS` not set, several workers",), {"OMP_NUM_THREADS": None},
                        look=lambda run: {"warns of OMP_NUM_THREADS": "OMP_NUM_THREADS" in run.errors()}),
    "as many workers as processors": Case("--nproc_per_node cpu", environment={"OMP_NUM_THREADS": None}),
    "a host's name": Case("--local-addr=localhost", shows=("one node, no port given",)),
    "standalone": Case("--standalone --nproc-per-node=2 --role=trainer --max-restarts=3"),
    "standalone with an id": Case("--standalone --rdzv-id=mine", shows=("`--rdzv-id` with `--standalone` or nothing else",)),
    "static": Case("--master-port={port} --nproc-per-node=2 --rdzv-id=job-7", TALK),
    "static without an id": Case("--master-addr=localhost --master_port={port}"),
    "static at an endpoint": Case("--rdzv-endpoint=localhost:{port} --node_rank 0"),
    "c10d": Case("--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-conf=join_timeout=60,last_call_timeout=1"),
    "c10d with an id": Case("--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id=mine"),
    "a slash in the id": Case("--master-port={port} --rdzv-id=a/b", shows=("`/` in `--rdzv-id`",)),
    "everything from the environment": Case(words=TALK, environment={
        "PET_NPROC_PER_NODE": 2, "PET_ROLE": "x", "PET_MAX_RESTARTS": 2, "PET_TEE": "0:3", "PET_REDIRECTS": "1:1", "PET_NNODES": "1:1",
        "PET_LOG_LINE_PREFIX_TEMPLATE": "<$rank> ", "PET_MASTER_PORT": "{port}", "PET_RDZV_ID": "env", "PET_START_METHOD": "bogus",
        "PET_SIGNALS_TO_HANDLE": "SIGTERM", "PET_MONITOR_INTERVAL": 0.05, "PET_DUPLICATE_STDOUT_FILTERS": "a"}),
    "the command line before the environment": Case("--nproc-per-node=1 --role=y", environment={"PET_NPROC_PER_NODE": 2, "PET_ROLE": "x"}),
    "a module from the environment": Case(program=("parity_worker",), environment={"PET_MODULE": 1, "PET_STANDALONE": 1, "PET_NO_PYTHON": 0}),
    "defaults that are given": Case("--nproc-per-node=2", environment={
        "OMP_NUM_THREADS": 5, "TORCH_NCCL_ASYNC_ERROR_HANDLING": 0, "RANK": 77, "MASTER_ADDR": "elsewhere"}),
    "virtual local ranks": Case("--nproc-per-node=2 --virtual-local-rank", environment={"CUDA_VISIBLE_DEVICES": "4, 7 ,9"}),
    "virtual local ranks without a list": Case("--nproc-per-node=2 --virtual-local-rank", environment={"CUDA_VISIBLE_DEVICES": None}),
    "virtual local ranks beyond the list": Case("--nproc-per-node=2 --virtual-local-rank", shows=("exit status",),
                                                environment={"CUDA_VISIBLE_DEVICES": "4"}, look=lambda run: run.forget_workers()),
    "an empty role": Case("--role= -t1 --log_dir={folder}/logs", TALK),
    "signals are told": Case("--signals-to-handle=SIGTERM,SIGUSR1"),
    "substitution": Case("--nproc-per-node=2", "r=${local_rank} x=$local_rank $$ $HOME ${other}"),
    "a double dash": Case("--standalone", "-- --foo -m"),
    "a double dash before": Case("--standalone --", "-- a"),
    "a module": Case("-m", "a -m b", program=("parity_worker",)),
    "a command": Case("--no-python --nproc-per-node=2", program=("sh", "-c", "echo said ${local_rank}$1; exit 0", "x", "y")),
    "a binary without --no-python": Case("", "said", ("a program that is not a `.py` file", "exit status"), program=("/bin/echo",)),
    "a virtual environment": Case(shows=("interpreter without `PYTHON_EXEC`",),
                                  environment={"PYTHON_EXEC": None, "VIRTUAL_ENV": "{folder}/venv"}),
    "redirects": Case("-r3 --nproc-per-node=2 --rdzv-id=job --master-port={port}", TALK),
    "redirects by rank": Case("--redirects 0:1,1:2 --nproc-per-node=3", TALK),
    "many ranks' redirects": Case("-r 0:1,11:2", TALK, ("`-r`/`-t` local ranks",), look=lambda run: run.forget_workers()),
    "tee": Case("-t3 --nproc-per-node=2 --role r", TALK),
    "tee and redirects": Case("-r 0:3 -t 1:1 --nproc-per-node=2", TALK),
    "a prefix": Case("-t 1 --log-line-prefix-template=${hostname}|$role_name/${local_rank}/$rank/$other: --nproc-per-node=2", TALK),
    "a prefix from the environment": Case("-t 1", TALK, environment={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "$rank> "}),
    "filtered ranks": Case("--local-ranks-filter=1 --nproc-per-node=3", TALK),
    "filtered ranks with tee": Case("--local_ranks_filter 0,2 -t3 -r1 --nproc-per-node=3 --duplicate-stdout-filters=said", TALK),
    "filtered lines": Case("-t3 --nproc-per-node=2 --duplicate-stdout-filters=a,,1,c\xa01 --duplicate-stderr-filters=b",
                           "out=a,1 out=a out=c\xa0 err=b err=c"),
    "filtered lines of nothing that is teed": Case("-r3 --duplicate_stdout_filters=a --duplicate_stderr_filters=", TALK),
    "every line duplicated": Case("-t 1 --duplicate-stdout-filters=", TALK),
    "no log directory": Case("--log-dir=/dev/null -r3 -t3", TALK),
    "a temporary log directory": Case("-r3", TALK, ("log directory without `--log-dir`",), {"PET_LOG_DIR": None}),
    "a temporary directory without logs": Case("", TALK, ("log directory without `--log-dir`",), {"PET_LOG_DIR": None}),
    "a file timer": Case("", shows=("`TORCHELASTIC_ENABLE_FILE_TIMER=1`",), environment={"TORCHELASTIC_ENABLE_FILE_TIMER": 1}),
    "a store of worker 0": Case("", shows=("`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`",),
                                environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": 1}),
    "workers that are all alike": Case("--nproc-per-node=2", environment={"TORCH_ELASTIC_WORKER_IDENTICAL": 1}),
    "events": Case("--event-log-handler=console", shows=("`--event-log-handler=console`",),
                   look=lambda run: {"events on stderr": "torchelastic.worker.status" in run.errors()}),
    "a restart": Case("--max-restarts=2 --nproc-per-node=2 -r3", "out=a hold=0.0.0.ready@1/0 exit=3@1/0 catch=ready@0/0"),
    "a restart of a static job": Case("--max-restarts=1 --master-port={port}", "exit=3@0/0"),
    "restarts are spent": Case("--max-restarts=1 --nproc-per-node=2 -r3",
                               "out=a hold=0.0.0.ready@1/0 hold=0.0.1.ready@1/1 exit=3@1 catch=ready@0", ("exit status",)),
    "a code": Case("", "exit=7", ("exit status",)),
    "a signal": Case("", "signal=SIGKILL", ("exit status",)),
    "an error file": Case("", "raise=boom"),
    "an error text": Case("-r3", "text=boom"),
    "an error file that is none": Case("", "garbage={", ("an error file that is not what `@record` writes",)),
    "an error file beside a code": Case("--nproc-per-node=2 -r3", "hold=0.1.0.json@0 raise=boom@0 hold=never", ("report",)),
    "an error file for the one above": Case("", "raise=boom", environment={"TORCHELASTIC_ERROR_FILE": "{folder}/logs/above.json"}),
    "an error text for the one above": Case("", "text=boom", environment={"TORCHELASTIC_ERROR_FILE": "{folder}/logs/above.json"}),
    "the stopped are no failures": Case("--nproc-per-node=3", "hold=0.0.0.json@1 hold=0.2.0.json@1 exit=3@1 hold=never", (
        "exit status", "report")),
    "run-path": Case("--run-path --start-method=fork --nproc-per-node=2 -r3", "out=a exit=0", ("`--run-path`",)),
    "run-path with an exception": Case("--run-path --no-python -m --start-method=fork -r1", "out=a throw=boom", ("`--run-path`",)),
    "launch": Case("--nproc-per-node=2", "--lr 1", main="launch", ours="--nproc-per-node=2 --no-use-env"),
    "launch of a module": Case("-m", "x", program=("parity_worker",), main="launch", ours="-m --no-use-env"),
    "launch with the environment": Case("--use_env --nproc-per-node=2", "x", main="launch"),
    "launch as torchrun": Case("--nproc-per-node=2", "x", ("`python -m torch.distributed.launch`",), main="launch"),
}


AHEAD = 4  # so many torchruns at once: most of their time is sleep


def start(run, case, port):
    options = case.ours if case.ours is not None and run.launcher == "muster" else case.options
    words = [*options.split(" "), *map(str, case.program), *case.words.split(" ")]
    environment = {name: value if value is None else str(value).replace("{port}", str(port)) for name, value in case.environment.items()}
    run.start([word.replace("{port}", str(port)) for word in words if word], environment, case.main)


@pytest.fixture(scope="module")
def theirs(torchruns, tmp_path_factory):
    """Case -> torchrun's run, begun some cases ahead, and the port it was given."""
    begun = {}

    def find(name):
        at = list(CASES).index(name)
        for near in list(CASES)[at:at + AHEAD]:
            if near not in begun:
                run = Run(torchruns, "torchrun", tmp_path_factory.mktemp("torchrun"))
                port = free_port() if "{port}" in CASES[near].options + str(CASES[near].environment) else 0
                begun[near] = run, port
                start(run, CASES[near], port)
        return begun[name]

    yield find
    for run, _ in begun.values():
        for agent in run.agents:
            agent.wait()
        run.close()


@pytest.mark.parametrize("name", CASES)
def test_a_command_line_does_the_same_but_for_the_rows_it_shows(theirs, tmp_path, name):
    case = CASES[name]
    run, port = theirs(name)
    run.agents[0].wait()  # before muster: both may be given the same port
    ours = Run(None, "muster", tmp_path)
    venv = tmp_path / "venv/bin"
    venv.mkdir(parents=True)
    (venv / "python").symlink_to(PYTHON)
    try:
        start(ours, case, port)
        ours.agents[0].wait()
        seen = [{**(case.look(run) if case.look else {}), **run.observe([port])} for run in (run, ours)]
    finally:
        ours.close()
    check(differences(*seen), case.shows)


def test_a_torchrun_of_its_own_does_what_the_forked_ones_do(both, torchruns):
    """The one that the others stand for, PyTorch's import and all."""
    forked, _ = both()
    alone, _ = both("alone")
    for run in (forked, alone):
        run.start(["--nproc-per-node=2", "-r3", "--max-restarts=1", WORKER, "out=a", "hold=0.0.0.ready@1/0", "exit=3@1/0",
                   "catch=ready@0/0"], alone=run is alone)
        assert run.agents[0].wait() == 0, run.errors()
    assert differences(forked.observe(), alone.observe()) == {}


def test_every_row_of_the_table_is_shown_and_nothing_else_is():
    assert sorted(topics()) == sorted([*EXPLAINS, *ADDS, *SHOWN_BY]), "launcher/torchrun.md and tests/interop/parity_table.py"
    text = "".join(path.read_text() for path in (ROOT / "tests/interop").glob("test_torchrun_parity*.py"))
    assert [topic for topic in EXPLAINS if f'"{topic}"' not in text] == []
    for topic, (path, test) in SHOWN_BY.items():
        definition = f"def {test}(" if path.endswith(".py") else f'TEST_CASE("{test}"'
        assert definition in (ROOT / path).read_text(), f"{topic}: {path} has no test {test}"
