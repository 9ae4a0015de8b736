# SPDX-License-Identifier: Apache-2.0
"""--log-max-size and --log-keep: names, links, what is shown, full disks, and the ends of those who take part."""
import glob
import os
import re
import resource
import signal

import pytest

from launcher_support import child_named, let_go, muster, rotated, wait_for

LINES = """
import os, sys
for i in range({count}):
    os.write(1, b"rank %s line %05d %s\\n" % (os.environb[b"RANK"], i, b"-" * 100))
"""
LINE = "rank {} line {:05d} " + "-" * 100 + "\n"


def names(folder):
    return sorted(os.path.basename(p) for p in glob.glob(f"{folder}/*"))


def run_dir(logs):
    (found,) = glob.glob(f"{logs}/*_????????")
    return found


def test_files_are_named_as_logrotate_does_it_and_the_link_is_to_the_newest(muster):
    logs = muster.tmp_path / "logs"
    script = muster.script("lines.py", LINES.format(count=1000))
    result = muster.run("--nproc-per-node=2", "-r3", "--log-dir", logs, "--log-max-size=8K", "--log-keep=3", "--local-addr=node7", script)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    base = run_dir(logs)
    for rank in range(2):
        folder = f"{base}/attempt_0/{rank}"
        assert names(folder) == ["stderr.log", "stdout.log", "stdout.log.1", "stdout.log.2", "stdout.log.3"]
        per_file = -(-8192 // len(LINE.format(0, 0)))  # the line that reaches the limit is the last
        left = 1000 % per_file or per_file
        for number, suffix in enumerate(["", ".1", ".2", ".3"]):
            last = 1000 if number == 0 else 1000 - left - (number - 1) * per_file
            first = last - (left if number == 0 else per_file)
            text = "".join(LINE.format(rank, i) for i in range(first, last))
            assert open(f"{folder}/stdout.log{suffix}").read() == text
        assert os.path.samefile(f"{base}/generation_0/node7/{rank}.out", f"{folder}/stdout.log")


def test_the_current_file_is_there_at_every_moment(muster):
    logs = muster.tmp_path / "logs"
    script = muster.script("lines.py", LINES.format(count=20000))
    process = muster.start("--nproc-per-node=1", "-r1", "--log-dir", logs, "--log-max-size=4K", "--log-keep=2", script)
    (path,) = wait_for(lambda: glob.glob(f"{logs}/*/attempt_0/0/stdout.log"), "the file")
    while process.poll() is None:
        open(path).close()  # no FileNotFoundError
    assert process.communicate() == ("", "")
    assert names(os.path.dirname(path)) == ["stdout.log", "stdout.log.1", "stdout.log.2"]


def test_each_attempt_rotates_its_own_files(muster):
    logs = muster.tmp_path / "logs"
    text = LINES.format(count=100) + "sys.exit(int(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and os.environ['RANK'] == '1'))  # no other rank ends it"
    result = muster.run("--nproc-per-node=2", "--max-restarts=1", "-t1", "--log-dir", logs, "--log-max-size=4K", "--log-keep=9", muster.script("twice.py", text))
    assert result.returncode == 0
    expected = "".join(LINE.format(1, i) for i in range(100))
    for attempt in range(2):
        (path,) = logs.glob(f"*/attempt_{attempt}/1/stdout.log")
        assert rotated(path).decode() == expected
        assert names(path.parent) == ["stdout.log", "stdout.log.1", "stdout.log.2"]
    assert "".join(line[11:] for line in result.stdout.splitlines(True) if line.startswith("[default1]:")) == expected * 2


def test_the_last_words_of_a_failed_worker_are_in_the_report(muster):
    logs = muster.tmp_path / "logs"
    text = "import os, sys\nif os.environ['RANK'] == '0': sys.exit()  # what one failure stops may not have said all\nfor i in range(300): print('line', i, file=sys.stderr)\nraise ValueError('the reason')"
    result = muster.run("--nproc-per-node=2", "-r2", "--log-dir", logs, "--log-max-size=4K", "--log-keep=9", muster.script("fail.py", text))
    assert result.returncode == 1
    assert "ValueError: the reason" in result.stderr
    assert "line 299\n" in result.stderr
    (path,) = logs.glob("*/attempt_0/1/stderr.log")
    assert rotated(path).decode().splitlines()[:300] == [f"line {i}" for i in range(300)]


def test_what_a_stopped_worker_says_last_is_in_its_file(muster):
    logs = muster.tmp_path / "logs"
    text = """
import os, signal, sys
def stop(*_):
    os.write(1, b"stopped\\n" * 1000)
    sys.exit(0)
signal.signal(signal.SIGINT, stop)
os.write(1, b"ready\\n")
while True: signal.pause()
"""
    process = muster.start("--nproc-per-node=2", "-t1", "--log-dir", logs, "--log-max-size=4K", "--log-keep=9", muster.script("stop.py", text), start_new_session=True)
    assert sorted(process.stdout.readline() for _ in range(2)) == ["[default0]:ready\n", "[default1]:ready\n"]
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the log writer's starter too
    out, _ = process.communicate(timeout=60)
    assert out.count("]:stopped\n") == 2000
    for path in logs.glob("*/attempt_0/?/stdout.log"):
        assert rotated(path) == b"ready\n" + b"stopped\n" * 1000


def test_a_full_disk_is_said_once_with_the_rank_and_noted_where_bytes_are_missing(muster):
    """A limit on the size of files stands for it: the log writer's is lifted later, as if somebody had made room."""
    logs = muster.tmp_path / "logs"
    text = """
import os
if os.environ["RANK"] == "1":
    for i in range(2000): os.write(1, b"line %05d %s\\n" % (i, b"-" * 100))
    open("full", "w").close()
    open("go").read()
    for i in range(2000, 2010): os.write(1, b"line %05d\\n" % i)
"""
    os.mkfifo(muster.tmp_path / "go")
    limit = 100_000
    process = muster.start("--nproc-per-node=2", "-r1", "--log-dir", logs, "--log-max-size=1M", muster.script("full.py", text),
                           preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY)))
    wait_for((muster.tmp_path / "full").exists, "the worker to have written")  # nothing keeps it waiting
    (path,) = logs.glob("*/attempt_0/1/stdout.log")
    assert process.stderr.readline() == (f"muster: rank 1: write {path}: File too large (EFBIG). The worker goes on; its "
                                         "output is lost until there is room again\n")
    writer = child_named(process.pid, "job-logs")
    resource.prlimit(writer, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    let_go(muster.tmp_path / "go")
    _, err = process.communicate(timeout=60)
    again = re.fullmatch(rf"muster: rank 1: {re.escape(str(path))} is written again; (\d+) bytes are missing in it\n", err)
    assert process.returncode == 0 and again
    before, note, after = re.fullmatch(rb"(.*)\nmuster: (\d+) bytes are missing here: File too large \(EFBIG\)\n(.*)", path.read_bytes(), re.S).groups()
    written = b"".join(b"line %05d %s\n" % (i, b"-" * 100) for i in range(2000))
    assert len(before) == limit and written.startswith(before)
    assert after == b"".join(b"line %05d\n" % i for i in range(2000, 2010))
    assert int(note) == int(again[1]) == len(written) - limit


def test_a_terminal_that_nobody_reads_does_not_keep_teed_workers_waiting(muster):
    """Less is kept than the worker writes: what it could not show meanwhile is named, and it goes on with whole lines."""
    logs = muster.tmp_path / "logs"
    text = LINES.format(count=40000) + "open('finished', 'w').close()\nopen('go').read()\nos.write(1, b'last\\n')\n"
    os.mkfifo(muster.tmp_path / "go")
    process = muster.start("--nproc-per-node=1", "-t1", "--log-dir", logs, "--log-max-size=64K", "--log-keep=2", muster.script("fast.py", text))
    wait_for((muster.tmp_path / "finished").exists, "the worker to have written", 60)
    let_go(muster.tmp_path / "go")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    numbers = []
    for line in out.splitlines(True):
        if line == "[default0]:last\n":
            continue
        match = re.fullmatch(r"\[default0\]:rank 0 line (\d{5}) -{100}\n", line)
        assert match, line
        numbers.append(int(match[1]))
    assert numbers == sorted(set(numbers)) and numbers[0] == 0 and numbers[-1] == 39999
    assert len(numbers) < 40000
    assert re.fullmatch(r"(muster: log files of local_rank 0 were rotated away before they could be shown; "
                        r"a larger --log-max-size or --log-keep gives the terminal more time\n)+", err)


def test_where_the_log_writer_is_killed_muster_writes_on_and_no_worker_notices(muster):
    """What is missing is what the dead process held at the most, and the files are rotated as before."""
    logs = muster.tmp_path / "logs"
    text = """
import os
for i in range(300_000): os.write(1, b"line %06d\\n" % i)
open("flooded", "w").close()
open("go").read()
os.write(1, b"line 300000\\n")
"""
    os.mkfifo(muster.tmp_path / "go")
    process = muster.start("--nproc-per-node=1", "-r1", "--log-dir", logs, "--log-max-size=64K", "--log-keep=1000", muster.script("flood.py", text))
    (path,) = wait_for(lambda: list(logs.glob("*/attempt_0/0/stdout.log")), "the file")
    wait_for(lambda: len(names(path.parent)) > 3, "rotations")
    writer = child_named(process.pid, "job-logs")
    os.kill(writer, signal.SIGKILL)
    assert process.stderr.readline() == (f"muster: the log writer (pid {writer}) was killed. muster writes the log files itself from now on. "
                                         "Up to 256 KiB of one rank's output may be missing\n")
    wait_for((muster.tmp_path / "flooded").exists, "the flood to be over", 120)
    let_go(muster.tmp_path / "go")
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0 and max(map(os.path.getsize, path.parent.iterdir())) < 65536 + 12
    numbers = [int(n) for n in re.findall(r"^line (\d{6})$", rotated(path).decode(), re.M)]
    assert numbers == sorted(set(numbers)) and numbers[-1] == 300_000
    assert 12 * (300_001 - len(numbers)) <= 256 * 1024 + 24


@pytest.mark.parametrize("options, says", [
    (("--log-max-size=10M",), "--log-max-size=10M: no log file is written"),
    (("-r3", "--log-max-size=10X"), "--log-max-size=10X: not a number of bytes, as in 500000, 64K, 100M or 2G"),
    (("-r3", "--log-max-size=100"), "--log-max-size=100: less than 4096 bytes"),
    (("-r3", "--log-keep=3"), "--log-keep=3: log files are rotated with --log-max-size only"),
    (("-r3", "--log-max-size=1M", "--log-keep=0"), "--log-keep"),
])
def test_what_cannot_be_meant_is_refused(muster, options, says):
    result = muster.run(*options, muster.script("no.py", "print('started')"))
    assert (result.returncode, result.stdout) == (2, "")
    assert says in result.stderr


def test_who_is_told_to_end_twice_does_not_wait_for_a_disk(muster):
    """The log writer, which is stopped here, stands for a disk that does not answer. All workers have ended well by then."""
    logs = muster.tmp_path / "logs"
    os.mkfifo(muster.tmp_path / "go")
    process = muster.start("--nproc-per-node=1", "-r1", "--log-dir", logs, "--log-max-size=64K",
                           muster.script("one.py", "import os\nopen('pid', 'w').write(str(os.getpid()))\nos.rename('pid', 'pid.done')\nopen('go').read()"))
    wait_for((muster.tmp_path / "pid.done").exists, "the worker")
    worker = int((muster.tmp_path / "pid.done").read_text())
    writer = child_named(process.pid, "job-logs")
    os.kill(writer, signal.SIGSTOP)
    try:
        let_go(muster.tmp_path / "go")
        wait_for(lambda: not os.path.exists(f"/proc/{worker}"), "the worker's end")
        process.send_signal(signal.SIGTERM)
        assert process.stderr.readline().endswith("SIGTERM received; waiting for what the workers left behind and wrote\n")
        process.send_signal(signal.SIGTERM)
        assert process.stderr.readline().endswith("SIGTERM received: not waiting for what the workers left behind and wrote\n")
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == 0
    finally:
        os.kill(writer, signal.SIGCONT)
