# SPDX-License-Identifier: Apache-2.0
"""Where the workers' output goes: unchanged by default, files under -r, files and prefixed lines under -t."""
import glob
import os
import re
import shutil
import signal
import socket
import subprocess

import pytest

from launcher_support import MUSTER, clean_environment, let_go, muster, wait_for

TALK = """
import os
os.write(1, b"out %s\\n" % os.environb[b"RANK"])  # in one piece: ranks share the stream
os.write(2, b"err %s\\n" % os.environb[b"RANK"])
"""


def talk(muster, *options, count=2, text=TALK, **kwargs):
    return muster.run(f"--nproc-per-node={count}", *options, muster.script("talk.py", text), **kwargs)


def files(base):
    """Without the links by generation, host and rank."""
    return sorted(os.path.relpath(p, base) for p in glob.glob(f"{base}/**", recursive=True)
                  if os.path.isfile(p) and not os.path.islink(p))


def test_output_passes_through_unchanged(muster):
    result = talk(muster)
    assert sorted(result.stdout.splitlines()) == ["out 0", "out 1"]
    assert sorted(result.stderr.splitlines()) == ["err 0", "err 1"]


def test_binary_output_passes_through_byte_for_byte(muster):
    script = muster.script("bytes.py", "import os, sys\ndata = bytes(range(256)) * 4000\nsys.stderr.buffer.write(data)\nsys.stdout.buffer.write(data)")
    result = subprocess.run([MUSTER, "--nproc-per-node=1", script], env=clean_environment(), capture_output=True, timeout=60)
    assert result.stdout == result.stderr == bytes(range(256)) * 4000


def test_redirects_write_torchruns_layout(muster):
    logs = muster.tmp_path / "logs"
    result = talk(muster, "--log-dir", logs, "--rdzv-id=job", "-r", "3")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    names = files(logs)
    assert [re.sub(r"_\w{8}/", "_X/", n) for n in names] == [
        f"job_X/attempt_0/{rank}/{stream}.log" for rank in range(2) for stream in ("stderr", "stdout")]
    for name in names:
        rank, stream = name.split("/")[2:]
        assert (logs / name).read_text() == f"{stream[3:6]} {rank}\n"


def test_redirects_by_rank_with_several_digits(muster):
    logs = muster.tmp_path / "logs"
    result = talk(muster, "--log-dir", logs, "-r", "11:1,0:2", count=12)
    assert sorted(re.sub(r".*/attempt_0/", "", n) for n in files(logs)) == ["0/stderr.log", "11/stdout.log"]
    assert len(result.stdout.splitlines()) == 11
    assert len(result.stderr.splitlines()) == 11


def test_tee_prefixes_whole_lines_and_keeps_the_files_as_they_were(muster):
    logs = muster.tmp_path / "logs"
    pieces = """
import os, sys
for i in range(200):
    sys.stdout.write("rank " + os.environ["RANK"]); sys.stdout.flush()
    sys.stdout.write(" line %d\\n" % i); sys.stdout.flush()
sys.stderr.write("no newline at the end"); sys.stderr.flush()
"""
    result = talk(muster, "--log-dir", logs, "-t", "3", "--role=r", text=pieces, count=4)
    lines = result.stdout.splitlines()
    for rank in range(4):
        mine = [line for line in lines if line.startswith(f"[r{rank}]:")]
        assert mine == [f"[r{rank}]:rank {rank} line {i}" for i in range(200)]
    assert len(lines) == 800
    assert sorted(result.stderr.splitlines()) == [f"[r{r}]:no newline at the end" for r in range(4)]
    [path] = glob.glob(f"{logs}/*/attempt_0/2/stdout.log")
    assert open(path).read() == "".join(f"rank 2 line {i}\n" for i in range(200))


def test_tee_is_shown_while_the_worker_runs(muster):
    script = muster.script("wait.py", "import signal; print('ready', flush=True); signal.pause()")
    process = muster.start("--nproc-per-node=1", "-t1", script)
    assert process.stdout.readline() == "[default0]:ready\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)


def test_the_prefix_follows_its_template(muster):
    result = talk(muster, "-t", "1", "--log-line-prefix-template", "<$role_name ${rank}/$local_rank $other> ", count=1)
    assert result.stdout == "<default 0/0 $other> out 0\n"
    env = clean_environment(TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="$rank|")
    assert talk(muster, "-t", "1", count=1, env=env).stdout == "0|out 0\n"


def test_the_filter_hides_other_ranks_but_not_their_files(muster):
    logs = muster.tmp_path / "logs"
    result = talk(muster, "--log-dir", logs, "-t", "1", "--local-ranks-filter=1", count=3)
    assert result.stdout == "[default1]:out 1\n"
    assert result.stderr == "err 1\n"
    assert len(files(logs)) == 3


def test_lines_with_a_text_are_also_kept_apart(muster):
    logs = muster.tmp_path / "logs"
    pieces = """
import os
for piece in (b"app", b"le 1\\nor", b"ange\\nplain\\napple 2"): os.write(1, piece)
os.write(2, b"apple\\nloss, high")
"""
    result = talk(muster, "--log-dir", logs, "-t3", "--duplicate-stdout-filters=apple,orange", "--duplicate-stderr-filters=s,, h",
                  text=pieces, count=1)
    assert sorted(result.stdout.splitlines()) == [f"[default0]:{line}" for line in ("apple 1", "apple 2", "orange", "plain")]
    [out] = logs.glob("*/attempt_0/filtered_stdout.log")
    assert out.read_text() == "".join(f"[default0]:{line}\n" for line in ("apple 1", "orange", "apple 2"))
    [err] = logs.glob("*/attempt_0/filtered_stderr.log")
    assert err.read_text() == "[default0]:loss, high\n"


def test_every_attempt_has_its_own_directory(muster):
    logs = muster.tmp_path / "logs"
    talk(muster, "--log-dir", logs, "-r", "1", "--max-restarts=1", text="import os, sys; print(os.environ['TORCHELASTIC_RESTART_COUNT']); sys.exit(1)", count=1)
    assert [open(p).read() for p in sorted(glob.glob(f"{logs}/*/attempt_*/0/stdout.log"))] == ["0\n", "1\n"]


def test_a_redirected_stderr_still_gives_the_last_lines(muster):
    result = talk(muster, "-r", "2", "--log-dir", muster.tmp_path / "logs",
                  text="import sys; print('the reason', file=sys.stderr); sys.exit(4)", count=1)
    assert result.returncode == 4
    assert "    the reason\n" in result.stderr


def test_without_a_log_dir_redirected_output_stays_and_its_place_is_named(muster):
    result = talk(muster, "-r", "1", count=1, env=clean_environment(TMPDIR=muster.tmp_path))
    path = re.search(r"the workers' output is in (\S+)", result.stderr).group(1)
    assert open(f"{path}/attempt_0/0/stdout.log").read() == "out 0\n"


@pytest.mark.parametrize("options", [["-r3"], []])
def test_a_tmpdir_that_is_not_here_is_done_without(muster, options):
    """As by Python: it may be that of the host which the job was sent from."""
    result = muster.run("--nproc-per-node=1", *options, "sh", "-c", "echo out", env=clean_environment(TMPDIR="/nonexistent/tmp"))
    assert result.returncode == 0
    if options:
        path = re.search(r"the workers' output is in (\S+)", result.stderr).group(1)
        assert open(f"{path}/attempt_0/0/stdout.log").read() == "out\n"
        shutil.rmtree(os.path.dirname(path))


def test_dev_null_as_log_dir_creates_nothing(muster):
    script = "import os; print(repr(os.environ['TORCHELASTIC_ERROR_FILE']))"
    result = talk(muster, "--log-dir=/dev/null", "-r3", text=script, count=1, env=clean_environment(TMPDIR=muster.tmp_path))
    assert result.stdout == "''\n"
    assert not glob.glob(f"{muster.tmp_path}/muster_*")


def test_a_run_id_with_a_slash_is_a_file_name(muster):
    logs = muster.tmp_path / "logs"
    assert talk(muster, "--rdzv-id=a/b", "--log-dir", logs, "-r1", count=1).returncode == 0
    assert len(glob.glob(f"{logs}/a_b_*/attempt_0/0/stdout.log")) == 1


def test_eight_loud_ranks_lose_and_tear_nothing(muster):
    loud = """
import os, sys
r = os.environ["RANK"]
block = "".join("%s %06d %s\\n" % (r, i, "x" * 80) for i in range(20000))
sys.stdout.write(block)
"""
    result = talk(muster, "-t1", "--log-dir", muster.tmp_path / "logs", text=loud, count=8, timeout=120)
    seen = {rank: 0 for rank in range(8)}
    for line in result.stdout.splitlines():
        match = re.fullmatch(r"\[default(\d)\]:(\d) (\d{6}) x{80}", line)
        assert match and match.group(1) == match.group(2), line
        rank = int(match.group(1))
        assert int(match.group(3)) == seen[rank]
        seen[rank] += 1
    assert set(seen.values()) == {20000}


def test_a_slow_reader_of_stderr_slows_the_worker_but_not_the_launcher(muster):
    script = muster.script("flood.py", """
import os, sys
open("started", "w").write("")
for i in range(20000): os.write(2, b"y" * 99 + b"\\n")
open("finished", "w").write("")
""")
    process = muster.start("--nproc-per-node=1", "--shutdown-timeout=5", script)
    wait_for((muster.tmp_path / "started").exists, "the worker to start")
    # Nobody reads: the launcher must still obey a signal.
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=30)
    assert process.returncode == 143
    assert not (muster.tmp_path / "finished").exists()


def run_dir(logs):
    (found,) = glob.glob(f"{logs}/*_????????")
    return found


SPEAK = """
import os, sys
rank = int(os.environ["RANK"])
print("everybody", flush=True)
print("rank", rank, flush=True)
print("to stderr", rank, file=sys.stderr, flush=True)
if rank == 2:
    print("ValueError: loss is nan", file=sys.stderr, flush=True)
    print("after it", file=sys.stderr, flush=True)
"""


def test_view_rank0_shows_rank_0_whole_and_the_others_from_their_first_error_on(muster):
    result = talk(muster, "--view=rank0", count=4, text=SPEAK)
    assert result.stdout.splitlines() == ["everybody", "rank 0"]
    assert sorted(result.stderr.splitlines()) == ["[default2]:ValueError: loss is nan", "[default2]:after it", "to stderr 0"]


def test_view_rank0_with_a_log_directory_shows_the_same_and_writes_everything(muster):
    logs = muster.tmp_path / "logs"
    result = talk(muster, "--view=rank0", "--log-dir", logs, count=4, text=SPEAK)
    assert result.stdout.splitlines() == ["everybody", "rank 0"]
    assert sorted(result.stderr.splitlines()) == ["[default2]:ValueError: loss is nan", "[default2]:after it", "to stderr 0"]
    for rank in range(4):
        assert f"rank {rank}\n" in open(f"{run_dir(logs)}/attempt_0/{rank}/stdout.log").read()


def test_view_fold_shows_equal_lines_of_all_ranks_once(muster):
    result = talk(muster, "--view=fold", "--log-line-prefix-template=[${rank}] ", count=8,
                  text="""
import os
open("here" + os.environ["RANK"], "w").close()
while not all(os.path.exists(f"here{rank}") for rank in range(8)): pass
print("hello", flush=True)
print("rank", os.environ["RANK"], flush=True)
""")
    lines = result.stdout.splitlines()
    # How many fall together depends on when they come, but lines of 8 ranks are not 8 lines.
    assert sum(line.endswith("hello") for line in lines) < 8
    said = sum(int(m[1]) if (m := re.match(r"\[x(\d+)", line)) else 1 for line in lines if line.endswith("hello"))
    assert said == 8
    assert sorted(line for line in lines if not line.endswith("hello")) == [f"[{r}] rank {r}" for r in range(8)]


def test_links_name_the_output_by_generation_host_and_rank(muster):
    logs = muster.tmp_path / "logs"
    result = talk(muster, "--log-dir", logs, "-r", "3", "--local-addr=node7", "--rdzv-backend=static",
                  "--nnodes=1", "--max-restarts=1",
                  text=TALK + "import sys\nsys.exit(int(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and os.environ['RANK'] == '1'))")
    assert result.returncode == 0
    for generation in range(2):
        for rank in range(2):
            base = f"{run_dir(logs)}/generation_{generation}/node7/{rank}"
            assert os.path.realpath(f"{base}.out") == f"{run_dir(logs)}/attempt_{generation}/{rank}/stdout.log"
            assert os.path.realpath(f"{base}.err") == f"{run_dir(logs)}/attempt_{generation}/{rank}/stderr.log"
    assert open(f"{run_dir(logs)}/generation_1/node7/1.out").read() == "out 1\n"


def test_the_prefix_knows_host_rank_generation_and_time(muster):
    result = talk(muster, "-t", "1", "--local-addr=node7.cluster",
                  "--log-line-prefix-template=${host} ${hostname} ${rank} g${generation} r${restart} ${time}|")
    for rank, line in enumerate(sorted(result.stdout.splitlines())):
        assert re.fullmatch(rf"node7\.cluster {socket.gethostname().split('.')[0]} {rank} g0 r0 \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{3}}[+-]\d{{4}}\|out {rank}", line)


def test_ranks_filter_shows_ranks_of_the_world(muster):
    for ranks in ("1,3", "1,3-9"):
        result = talk(muster, f"--ranks-filter={ranks}", count=4)
        assert sorted(result.stdout.splitlines()) == ["out 1", "out 3"]
        assert sorted(result.stderr.splitlines()) == ["err 1", "err 3"]


def test_a_view_that_does_not_exist_is_refused(muster):
    result = talk(muster, "--view=most")
    assert (result.returncode, result.stdout) == (2, "")
    assert "--view=most: not one of all, rank0, fold" in result.stderr


def test_stdout_of_a_rank_is_shown_once_its_stderr_had_an_error(muster):
    go = muster.tmp_path / "go"
    script = muster.script("late.py", f"""
import os, sys
if os.environ["RANK"] == "1":
    print("hidden", flush=True)
    print("RuntimeError: first", file=sys.stderr, flush=True)
    open({str(go)!r}).read()
    print("then", flush=True)
""")
    os.mkfifo(go)
    child = subprocess.Popen([MUSTER, "--nproc-per-node=2", "--view=rank0", script], env=clean_environment(),
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stderr.readline() == "[default1]:RuntimeError: first\n"
    let_go(go, "go")
    out, _ = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "[default1]:then\n")


def test_a_worker_that_fails_when_the_disk_of_its_log_is_full_is_said_to_have_had_no_room(muster):
    logs = muster.tmp_path / "logs"
    logs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", logs], check=True)
    try:
        result = muster.run("--nproc-per-node=1", "-r3", f"--log-dir={logs}", "sh", "-c", "head -c 1000000 /dev/zero; exit 3")
    finally:
        subprocess.run(["umount", "-l", logs], check=True)
    assert result.returncode == 3
    full = rf"{logs}/\S*/stderr.log: No space left on device \(ENOSPC\)"
    assert re.search(rf"cause     : {full}\n", result.stderr), result.stderr
    assert re.search(rf"exited with code 3 \({full}\); exit status 3", result.stderr), result.stderr


@pytest.mark.parametrize("temporary", ["kept", "/proc/none"])
def test_without_room_in_shared_memory_the_log_directory_is_in_tmpdir(muster, temporary):
    (muster.tmp_path / "kept").mkdir()
    script = muster.script("full.sh", f"mount -t tmpfs -o nr_inodes=1 tmpfs /dev/shm && exec {MUSTER} --nproc-per-node=1 "
                           "sh -c 'echo $TORCHELASTIC_ERROR_FILE'")
    done = subprocess.run(["unshare", "-m", "sh", script], capture_output=True, text=True, timeout=60, cwd=muster.tmp_path,
                          env=clean_environment(TMPDIR=muster.tmp_path / temporary))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{muster.tmp_path}/kept/muster_" if temporary == "kept" else "/tmp/muster_"), done.stdout
