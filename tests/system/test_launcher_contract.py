# SPDX-License-Identifier: Apache-2.0
"""What a worker is told, and how command lines are read, seen from outside."""
import json
import os
import re
import resource
import subprocess
import sys

import pytest

from launcher_support import MUSTER, ROOT, clean_environment, muster
from ports import free_port

DUMP = """
import json, os, sys
path = os.path.join(os.environ["DUMP_DIR"], os.environ["RANK"] + ".json")
json.dump({"env": dict(os.environ), "argv": sys.argv, "pgid": os.getpgid(0), "sid": os.getsid(0), "pid": os.getpid(),
           "ppid": os.getppid(), "fds": sorted(int(f) for f in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + f)),
           "status": open("/proc/self/status").read(), "cwd": os.getcwd()}, open(path, "w"))
"""


def dumps(muster, *args, env=None, count, script_args=()):
    script = muster.script("dump.py", DUMP)
    where = muster.tmp_path / "dumps"
    where.mkdir(exist_ok=True)
    result = muster.run(*args, script, *script_args, env=clean_environment(DUMP_DIR=where, **(env or {})))
    assert result.returncode == 0, result.stderr
    out = [json.loads((where / f"{rank}.json").read_text()) for rank in range(count)]
    assert len(list(where.iterdir())) == count
    return out


def contract_names():
    """Of the variables that every job's workers get."""
    text = (ROOT / "rendezvous/base/env_contract.h").read_text()
    names = dict(re.findall(r'string_view (k\w+) = "(\w+)"', text))
    return {names[constant] for constant, origin in re.findall(r"Variable\{(k\w+), Origin::(k\w+)", text) if origin not in ("kNetwork", "kPlacement", "kGrowth")}


def test_every_worker_gets_the_environment_of_the_contract(muster):
    workers = dumps(muster, "--nproc-per-node=3", "--role=trainer", "--max-restarts=2", "--rdzv-id=job7", count=3)
    for rank, worker in enumerate(workers):
        env = worker["env"]
        assert contract_names() <= set(env)
        expected = {
            "RANK": rank, "WORLD_SIZE": 3, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 3, "GROUP_RANK": 0,
            "GROUP_WORLD_SIZE": 1, "ROLE_NAME": "trainer", "ROLE_RANK": rank, "ROLE_WORLD_SIZE": 3,
            "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 2,
            "TORCHELASTIC_RUN_ID": "job7", "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1, "OMP_NUM_THREADS": 1,
            "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        }
        assert {name: env[name] for name in expected} == {name: str(value) for name, value in expected.items()}
        assert 0 < int(env["MASTER_PORT"]) < 65536
        assert re.search(rf"/job7_\w{{8}}/attempt_0/{rank}/error\.json$", env["TORCHELASTIC_ERROR_FILE"])
    assert len({worker["env"]["MASTER_PORT"] for worker in workers}) == 1


def test_the_rest_of_the_environment_is_the_launchers(muster):
    env = {"MY_OWN": "a=b c", "RANK": "77", "OMP_NUM_THREADS": "5", "PET_NNODES": "1"}
    worker = dumps(muster, "--nproc-per-node=1", env=env, count=1)[0]["env"]
    assert worker["MY_OWN"] == "a=b c"
    assert worker["RANK"] == "0"
    assert worker["OMP_NUM_THREADS"] == "5"
    assert worker["PET_NNODES"] == "1"
    names = set(worker) - {"TMPDIR", "CUDA_DEVICE_ORDER"} - set(clean_environment()) - contract_names() - {"DUMP_DIR", "LC_CTYPE"} - set(env)
    assert names == set()


def test_the_secret_is_in_no_environment_that_others_may_read(muster):
    secret = "a secret of more than sixteen bytes"
    script = muster.script("look.py", """
import os, subprocess
print("MUSTER_SECRET" in os.environ)
agent = os.getppid()
children = open(f"/proc/{agent}/task/{agent}/children").read().split()
for pid in [agent, *children]:
    print(b"of more than sixteen" in open(f"/proc/{pid}/environ", "rb").read())
""")
    result = muster.run("--nproc-per-node=1", script, env=clean_environment(MUSTER_SECRET=secret))
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.split()) >= 4 and set(result.stdout.split()) == {"False"}, result.stdout


def test_one_worker_gets_no_thread_limit_and_a_uuid_as_run_id(muster):
    env = dumps(muster, "--nproc-per-node=1", env={"OMP_NUM_THREADS": None}, count=1)[0]["env"]
    assert "OMP_NUM_THREADS" not in env
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", env["TORCHELASTIC_RUN_ID"])


def test_a_worker_has_its_own_session_and_no_foreign_descriptor_or_blocked_signal(muster):
    leak = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leak, True)
    script = muster.script("dump.py", DUMP)
    where = muster.tmp_path / "dumps"
    where.mkdir()
    process = muster.start("--nproc-per-node=2", script, env=clean_environment(DUMP_DIR=where), close_fds=False)
    process.communicate(timeout=60)
    os.close(leak)
    assert process.returncode == 0
    for rank in range(2):
        worker = json.loads((where / f"{rank}.json").read_text())
        assert worker["pgid"] == worker["sid"] == worker["pid"]
        assert worker["ppid"] == process.pid
        assert worker["fds"] == [0, 1, 2]
        assert worker["cwd"] == str(muster.tmp_path)
        assert re.search(r"SigBlk:\s+0+$", worker["status"], re.M)
        # Python itself ignores SIGPIPE and SIGXFSZ.
        assert re.search(r"SigIgn:\s+0*1001000$", worker["status"], re.M)


def test_local_rank_is_filled_into_arguments(muster):
    args = ["r=${local_rank}", "x=$local_rank", "$$", "$HOME", "${other}"]
    workers = dumps(muster, "--nproc-per-node=2", count=2, script_args=args)
    for rank, worker in enumerate(workers):
        assert worker["argv"][1:] == [f"r={rank}", f"x={rank}", "$", "$HOME", "${other}"]


@pytest.mark.parametrize("given,received", [
    (["--", "--foo"], ["--foo"]),
    (["a", "--", "b"], ["a", "--", "b"]),
    (["--nproc-per-node=9", "-m"], ["--nproc-per-node=9", "-m"]),
])
def test_what_follows_the_program_is_the_programs(muster, given, received):
    assert dumps(muster, "--nproc-per-node=1", count=1, script_args=given)[0]["argv"][1:] == received


@pytest.mark.parametrize("option", ["--nproc-per-node=2", "--nproc_per_node=2", "--nproc", "--nproc_per"])
def test_spellings(muster, option):
    args = [option] if "=" in option else [option, "2"]
    assert len(dumps(muster, *args, count=2)) == 2


def test_environment_variables_stand_for_options(muster):
    workers = dumps(muster, env={"PET_NPROC_PER_NODE": "2", "PET_ROLE": "x", "PET_RDZV_ID": "env"}, count=2)
    assert workers[0]["env"]["ROLE_NAME"] == "x"
    assert workers[0]["env"]["TORCHELASTIC_RUN_ID"] == "env"


def test_the_command_line_beats_the_environment(muster):
    assert len(dumps(muster, "--nproc-per-node=1", env={"PET_NPROC_PER_NODE": "2"}, count=1)) == 1


def test_a_virtual_local_rank_is_zero_with_one_device(muster):
    workers = dumps(muster, "--nproc-per-node=2", "--virtual-local-rank", env={"CUDA_VISIBLE_DEVICES": "4,7"}, count=2)
    assert [w["env"]["LOCAL_RANK"] for w in workers] == ["0", "0"]
    assert [w["env"]["CUDA_VISIBLE_DEVICES"] for w in workers] == ["4", "7"]
    assert [w["env"]["RANK"] for w in workers] == ["0", "1"]


def test_python_gets_u_and_modules_are_run(muster):
    muster.script("mod.py", "import sys; print(sys.argv[1:], sys.flags.unbuffered if hasattr(sys.flags, 'unbuffered') else '', "
                            "open('/proc/self/cmdline').read().split('\\0')[1:3])")
    result = muster.run("--nproc-per-node=1", "-m", "mod", "-m", "x")
    assert result.returncode == 0, result.stderr
    assert "['-m', 'x']" in result.stdout
    assert "['-u', '-m']" in result.stdout


def test_run_path_runs_the_script_as_main_and_records_its_exception(muster):
    muster.script("main.py", """
import sys
print(__name__, sys.argv, __file__, file=sys.stderr)
if sys.argv[1] == "raise": raise ValueError("boom")
sys.exit(int(sys.argv[1]))
""")
    logs = muster.tmp_path / "logs"
    ended = {what: muster.run("--run-path", "--nproc-per-node=1", f"--log-dir={logs}", "main.py", what, "$local_rank") for what in ("0", "3", "raise")}
    assert {what: result.returncode for what, result in ended.items()} == {"0": 0, "3": 3, "raise": 1}
    assert ended["0"].stderr == "__main__ ['main.py', '0', '0'] main.py\n"
    assert "main.py FAILED" in ended["raise"].stderr
    [path] = logs.glob("*/attempt_0/0/error.json")
    message = json.loads(path.read_text())["message"]
    assert message["message"] == "ValueError: boom" and message["extraInfo"]["timestamp"].isdigit()
    assert 'File "main.py", line 4, in <module>' in message["extraInfo"]["py_callstack"].replace(str(muster.tmp_path) + "/", "")


def test_an_executable_is_run_directly(muster):
    script = muster.script("prog", "#!/bin/sh\necho direct $RANK $1\n")
    script.chmod(0o755)
    for program in (["./prog"], ["prog"], ["--no-python", "./prog"], [str(script)]):
        result = muster.run("--nproc-per-node=1", *program, "arg")
        assert (result.returncode, result.stdout) == (0, "direct 0 arg\n"), result.stderr
    assert muster.run("--nproc-per-node=1", "echo", "from", "PATH").stdout == "from PATH\n"


def test_a_virtual_environments_python_is_used(muster):
    venv = muster.tmp_path / "venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").write_text("#!/bin/sh\necho venv python \"$@\"\n")
    (venv / "python").chmod(0o755)
    script = muster.script("t.py", "")
    env = clean_environment(VIRTUAL_ENV=venv.parent)
    del env["PYTHON_EXEC"]
    assert muster.run("--nproc-per-node=1", script.name, env=env).stdout == "venv python -u t.py\n"


@pytest.mark.parametrize("args,code,says", [
    ([], 2, "no program given"),
    (["--nosuch", "true"], 2, "unknown option --nosuch (see muster --help)"),
    (["--hostfile=hosts", "true"], 2, "unknown option --hostfile (see muster --help)"),
    (["--max-restats=1", "true"], 2, "--max-restarts"),
    (["--max-restarts=x", "true"], 2, "--max-restarts=x"),
    (["--nproc-per-node=0", "true"], 2, "--nproc-per-node=0"),
    (["--nproc-per-node=gpus", "true"], 2, "auto, gpu or cpu"),
    (["--nnodes=2", "--node-rank=2", "true"], 2, "0 to 1"),
    (["-t", "7", "true"], 2, "--tee"),
    (["--logs-specs=x", "true"], 2, "not supported"),
    (["--print-completion=ksh"], 2, "bash, zsh, fish, tcsh"),
    ([""], 2, "the program's name is empty"),
    (["--run-path", "./missing.py"], 127, "--run-path needs a script"),
    (["no-such-program-anywhere"], 127, "neither a file here nor a program on PATH"),
    (["./missing.py"], 127, "no such file"),
    (["--no-python", "./missing"], 127, "no such file"),
    (["-m", "--no-python", "x"], 2, "--no-python"),
    (["--log-dir=/dev/zero/x", "true"], 2, "--log-dir"),
])
def test_what_is_wrong_is_said_in_one_line(muster, args, code, says):
    result = muster.run(*args)
    assert result.returncode == code
    assert says in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


def test_a_directory_hides_no_program_and_what_cannot_be_reached_is_not_called_missing(muster):
    (muster.tmp_path / "sh").mkdir()
    assert muster.run("sh", "-c", "echo ran").stdout == "ran\n"
    (muster.tmp_path / "loop").symlink_to("loop")
    for program in ("./loop", "./loop/train.py"):
        result = muster.run(program)
        assert (result.returncode, "Too many levels of symbolic links" in result.stderr) == (126, True), result.stderr


def test_a_program_that_comes_through_a_pipe_is_read_by_python_alone(muster):
    result = subprocess.run([MUSTER, "--nproc-per-node=1", "/dev/stdin"], input="print('all of it')\n", capture_output=True, text=True, timeout=60,
                            env=clean_environment())
    assert (result.returncode, result.stdout) == (0, "all of it\n"), result.stderr


def test_an_error_file_that_is_a_fifo_holds_nobody_up(muster):
    script = muster.script("fifo.py", "import os, sys; os.mkfifo(os.environ['TORCHELASTIC_ERROR_FILE']); sys.exit(3)\n")
    result = muster.run("--nproc-per-node=1", script)
    assert result.returncode == 3 and "exit code 3" in result.stderr


def test_a_node_0_that_the_address_does_not_name_says_so(muster):
    """As the second of two nodes that both got no --node-rank."""
    args = ("--nnodes=2", f"--master-port={free_port()}", "--rdzv-conf=timeout=1", "true")
    assert "this is node 0, but 192.0.2.1 is no address of this host" in muster.run("--master-addr=192.0.2.1", *args).stderr
    assert "no address of this host" not in muster.run("--master-addr=127.0.0.1", *args).stderr


def test_a_file_that_cannot_be_executed_is_named(muster):
    binary = muster.tmp_path / "binary"
    binary.write_bytes(b"\x7fELF" + b"\0" * 60)
    result = muster.run("./binary")
    assert result.returncode == 126
    assert "chmod +x" in result.stderr
    binary.chmod(0o755)
    result = muster.run("--nproc-per-node=4", "./binary")
    assert result.returncode == 126
    assert "rank 0" in result.stderr and "execute ./binary" in result.stderr


@pytest.mark.parametrize("text,code,says", [
    (b"echo hi\n", 126, "a script without a first line such as #!/bin/sh"),
    (b"", 126, "it is empty"),
    (b"#!/no/such/sh\n", 127, "the interpreter that its first line names, does not"),
    (b"#!/bin/sh\r\necho\r\n", 127, "does that line end with CR LF?")])
def test_a_program_that_the_kernel_does_not_execute_says_what_to_try(muster, text, code, says):
    program = muster.tmp_path / "program"
    program.write_bytes(text)
    program.chmod(0o755)
    result = muster.run("--nproc-per-node=2", "./program")
    assert (result.returncode, result.stdout) == (code, "")
    assert says in result.stderr


@pytest.mark.parametrize("most", range(5, 24, 3))
def test_too_few_descriptors_end_muster_with_a_word(muster, most):
    result = muster.run("--nproc-per-node=2", "-t3", "--log-dir=logs", "true",
                        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)))
    assert result.returncode in (71, 75), result
    assert "Too many open files" in result.stderr and "see ulimit -n" in result.stderr


@pytest.mark.parametrize("args", [["--help"], ["--help-all"], ["--version"], ["--print-completion=bash"], ["--dry-run", "true"]])
def test_what_was_asked_for_and_cannot_be_written_is_no_success(muster, args):
    with open("/dev/full", "w") as full:
        result = muster.run(*args, stdout=full)
    assert (result.returncode, result.stderr) == (71, "muster: stdout: write: No space left on device (ENOSPC)\n")


@pytest.mark.parametrize("typed,offered", [
    ("--nno", "--nnodes"), ("--nproc_per_node 2 --duplicate-", "--duplicate-stdout-filters --duplicate-stderr-filters"),
    ("--nnodes = 2 -m --stand", "--standalone"), ("-r 3 prog --nno", ""), ("prog --nno", "")])
def test_a_shell_learns_the_options(muster, typed, offered):
    """bash splits at '=' as it likes to."""
    script = (f'eval "$({MUSTER} --print-completion=bash)"; COMP_WORDS=(muster {typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); '
              'complete -p muster && _muster && echo "${COMPREPLY[@]}"')
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout.splitlines()[1:]) == (0, [offered]), result


def test_help_lists_the_options_and_version_is_short(muster):
    result = muster.run("--help-all", env=clean_environment(PET_NNODES="nonsense"))
    assert result.returncode == 0
    assert "--nproc-per-node" in result.stdout and "Exit status" in result.stdout
    assert re.fullmatch(r"muster \d+\.\d+\.\d+\n", muster.run("--version").stdout)
