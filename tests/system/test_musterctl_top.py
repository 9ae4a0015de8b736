# SPDX-License-Identifier: Apache-2.0
"""musterctl top and open: the live view of a job, as lines and on a real terminal (tmux)."""
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request

import pytest

from launcher_support import MUSTER, ROOT, clean_environment, wait_for
from ports import free_port

CTL = os.path.join(os.path.dirname(MUSTER), "musterctl")
TENSORBOARD = ROOT / ".venv/tensorboard"


def document(ranks=8):
    every = range(ranks)
    return {"job": {"run_id": "train", "program": "train.py", "state": "running", "generation": 1, "restarts": 0, "max_restarts": 3,
                    "nodes": 2, "world_size": ranks, "began": 1000, "now": 1754, "version": "x"},
            "nodes": [{"node": node, "host": f"n{node + 1}", "state": "running", "age_s": 0.1, "gpus": []} for node in range(2)],
            "ranks": {"rank": list(every), "node": [2 * rank // ranks for rank in every], "state": ["running"] * ranks,
                      "step": [100 + rank for rank in every], "phase": ["all\x1b]0;x\x07_reduce"] * ranks},
            "straggler": None, "events": [], "failure": None, "hang": None}


class Page(http.server.ThreadingHTTPServer):
    """What a job's first agent serves: a document that the test changes, and logs."""

    def __init__(self):
        self.document, self.token, self.answer, self.asked = document(), None, None, []
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        page = self.server
        page.asked.append(self.path)
        status, body = 200, json.dumps(page.document)
        if page.token and self.headers.get("Authorization") != f"Bearer {page.token}":
            status, body = 401, "no"
        elif self.path.startswith("/api/log"):
            body = "".join(f"line {i} of {self.path}\x1b[2J\n" for i in range(100))
        elif page.answer:
            status, body = page.answer
        elif self.path != "/api/status":
            status, body = 404, "no such page"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        try:
            self.wfile.write(body.encode())
        except OSError:
            pass  # it did not want all of it

    def log_message(self, *_):
        pass


@pytest.fixture
def page():
    out = Page()
    yield out
    out.shutdown()
    out.server_close()


def ctl(*words, **env):
    return subprocess.run([CTL, *map(str, words)], env=clean_environment(**env), capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=60)


def rows_of(text):
    """The lines of ranks, in words."""
    return [line.split() for line in text.splitlines() if re.match(r"\d+ +\S+ +running", line)]


class Screen:
    """musterctl in a terminal of tmux, started by a shell that says when it is back."""

    def __init__(self, folder, command, columns=100, rows=24, **env):
        self.socket = str(folder / "tmux")
        script = folder / "shell.sh"
        script.write_text(f"trap : INT\nstty -a | grep -o '.echo ' >before\necho the shell\n{command}\necho ended $?\n"
                          "stty -a | grep -o '.echo ' >after\nread wait\n")
        subprocess.run(["tmux", "-S", self.socket, "-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows),
                        f"cd {folder} && sh shell.sh"], env=clean_environment(LC_ALL="C.UTF-8", **env), check=True, timeout=60)

    def tmux(self, *words):
        return subprocess.run(["tmux", "-S", self.socket, *words], capture_output=True, text=True, timeout=60).stdout

    def lines(self):
        return self.tmux("capture-pane", "-p").splitlines()

    def key(self, *keys):
        self.tmux("send-keys", *keys)

    def shows(self, condition, what):
        return wait_for(lambda: (lines := self.lines()) and condition(lines) and lines, f"{what}, not\n" + "\n".join(self.lines()), 60)

    def shows_text(self, text):
        return self.shows(lambda lines: any(text in line for line in lines), text)

    def ranks(self):
        return [int(row[0]) for row in rows_of("\n".join(self.lines()))]

    def close(self):
        self.tmux("kill-server")


@pytest.fixture
def screen(tmp_path):
    opened = []

    def start(*words, before="", **options):
        opened.append(Screen(tmp_path, f"{before} {CTL} " + " ".join(map(str, words)), **options))
        return opened[-1]
    yield start
    for one in opened:
        one.close()


@pytest.fixture
def ssh(tmp_path):
    """Runs a command that begins with ssh, against an sshd of this machine, whatever host it names."""
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if not sshd:
        pytest.skip("no sshd (Debian: openssh-server)")
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True, timeout=60)
    if os.getuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    port, started = free_port(), []
    (tmp_path / "sshd_config").write_text(f"ListenAddress 127.0.0.1:{port}\nHostKey {tmp_path}/host_key\nAuthorizedKeysFile {tmp_path}/key.pub\n"
                                          "StrictModes no\nUsePAM no\nPidFile none\n")
    (tmp_path / "ssh_config").write_text(f"Host *\nHostName 127.0.0.1\nPort {port}\nIdentityFile {tmp_path}/key\nBatchMode yes\n"
                                         f"UserKnownHostsFile {tmp_path}/known_hosts\nStrictHostKeyChecking no\nExitOnForwardFailure yes\n")
    with open(tmp_path / "sshd.log", "w") as log:
        started.append(subprocess.Popen([sshd, "-D", "-e", "-f", tmp_path / "sshd_config"], stdin=subprocess.DEVNULL, stderr=log))
    wait_for(lambda: "Server listening" in (tmp_path / "sshd.log").read_text(), "sshd")

    def run(command):
        words = command.split()
        assert words[0] == "ssh"
        with open(tmp_path / "ssh.log", "w") as log:
            started.append(subprocess.Popen(["ssh", "-F", tmp_path / "ssh_config", *words[1:]], stdin=subprocess.DEVNULL, stderr=log))
    yield run
    for process in reversed(started):
        process.terminate()
        process.wait(60)


def test_without_a_terminal_it_prints_the_ranks_once(page):
    result = ctl("top", "--url", f"http://{page.address}/")
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "train (train.py): running, for 12m"
    assert rows_of(result.stdout)[-1][:5] == ["7", "n2", "running", "-", "107"]
    assert "\x1b" not in result.stdout and "\x07" not in result.stdout
    assert page.asked == ["/api/status"]


def test_lines_come_again_as_often_as_asked_and_json_is_the_document(page):
    result = ctl("top", "--url", page.address, "-n", 3, "-d", "0.1")
    assert result.returncode == 0 and result.stdout.count("train (train.py)") == 3
    assert json.loads(ctl("top", "--url", page.address, "--json").stdout) == page.document
    endless = subprocess.Popen([CTL, "top", "--url", page.address, "-d", "0.1"], env=clean_environment(), stdout=subprocess.PIPE,
                               stdin=subprocess.DEVNULL, text=True)
    for _ in range(30):
        assert endless.stdout.readline()
    endless.stdout.close()
    assert endless.wait(timeout=60) == 0


def test_what_goes_wrong_is_one_line_and_an_exit_status(page, tmp_path):
    at = f"--url={page.address}"
    page.token = "abc"
    assert ctl("top", at).returncode == 78 and "wants a token" in ctl("top", at).stderr
    assert ctl("top", f"--url=http://{page.address}/?token=abc").returncode == 0
    page.token = None
    for answer, text in {(404, "no such\x1b[2J page"): "HTTP status 404: no such page", (200, "[]"): "no status document",
                         (200, " " * (9 << 20)): "longer than 8388608 bytes"}.items():
        page.answer = answer
        result = ctl("top", at)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (69, "", 1) and text in result.stderr
    closed = ctl("top", f"--url=127.0.0.1:{free_port()}")
    assert closed.returncode == 69 and "does the job still run?" in closed.stderr
    assert ctl("top", "--url=x").returncode == 2
    assert ctl("top", at, "--endpoint=127.0.0.1").returncode == 2
    runtime = {"MUSTER_RUNTIME_DIR": str(tmp_path / "none")}
    assert ctl("top", **runtime).returncode == 1 and ctl("open", "none", **runtime).returncode == 1


def test_a_silent_page_has_a_deadline(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        result = ctl("top", f"--url=127.0.0.1:{silent.getsockname()[1]}", "--timeout=0.2")
    assert result.returncode == 69 and "no answer in time" in result.stderr


@pytest.mark.parametrize("before", ["env TERM=dumb", "env TERM=no-such-terminal", "env -u TERM"])
def test_a_terminal_without_a_screen_gets_lines(page, screen, before):
    one = screen("top", "--url", page.address, before=before)
    lines = one.shows_text("ended 0")
    assert lines[:2] == ["the shell", "train (train.py): running, for 12m"] and one.ranks() == list(range(8))


def test_on_a_terminal_keys_sort_filter_and_select(page, screen):
    one = screen("top", "--url", page.address, "-d", "0.2")
    one.shows(lambda _: one.ranks() == list(range(8)), "all ranks")
    one.key("r")
    one.shows(lambda _: one.ranks() == list(range(7, -1, -1)), "ranks in reverse")
    one.key("r", "s", "s", "s", "s")
    one.shows_text("by STEP")
    one.key("/")
    one.shows_text("filter: _")
    one.key("n", "2", "Enter")
    one.shows(lambda _: one.ranks() == [4, 5, 6, 7], "the ranks of n2")
    page.document["ranks"]["step"][7] = 1
    one.shows(lambda _: one.ranks() == [7, 4, 5, 6], "a rank that has moved")
    one.key("?")
    one.shows_text("page keys, Home, End")


def test_a_ranks_log_opens_at_its_end_and_scrolls(page, screen):
    one = screen("top", "--url", page.address, "-d", "0.2")
    one.shows(lambda _: one.ranks(), "the ranks")
    one.key("Down", "Down", "Enter")
    lines = one.shows_text("line 99 of /api/log?rank=2&")
    assert lines[2] == "log of rank 2" and not any("line 5 of" in line for line in lines)
    one.key("Home")
    one.shows_text("line 0 of")
    one.key("q")
    one.shows_text("by RANK")


def test_a_failure_and_a_hang_arrive_with_their_reports(page, screen):
    one = screen("top", "--url", page.address, "-d", "0.2")
    one.shows(lambda _: one.ranks(), "the ranks")
    page.document["failure"] = {"text": "rank 3 on n1 exited with 7", "report": "the first error:\n  ValueError: loss is nan\n"}
    page.document["hang"] = {"text": "rank 5 stands still", "report": "rank 5: futex\n  train.py:12 in step\n"}
    one.shows_text("failure: rank 3 on n1 exited with 7 (f)")
    one.key("f")
    one.shows_text("  ValueError: loss is nan")
    one.key("h")
    one.shows_text("  train.py:12 in step")
    page.shutdown()
    page.server_close()
    one.shows_text("does the job still run?")
    assert any("hang: rank 5 stands still" in line for line in one.lines())  # what was seen last stays


def test_the_screen_follows_the_size_of_the_terminal(page, screen):
    page.document = document(4096)
    one = screen("top", "--url", page.address, rows=12)
    one.shows(lambda _: one.ranks() == list(range(8)), "as many ranks as there is room for")
    one.tmux("resize-window", "-x", "60", "-y", "30")
    one.shows(lambda lines: len(lines) == 30 and lines[29].startswith("by RANK") and one.ranks() == list(range(26)), "30 lines")
    one.key("End")
    one.shows(lambda _: one.ranks() == list(range(4070, 4096)), "the last ranks")


@pytest.mark.parametrize("how, status", [("q", 0), ("C-c", 130), (signal.SIGTERM, 143)])
def test_the_terminal_is_as_before_when_it_ends(page, screen, tmp_path, how, status):
    one = screen("top", "--url", page.address)
    one.shows_text("by RANK")
    if isinstance(how, str):
        one.key(how)
    else:
        pane = one.tmux("display-message", "-p", "#{pane_pid}").strip()
        child = subprocess.run(["pgrep", "-P", pane, "musterctl"], capture_output=True, text=True, timeout=60).stdout
        os.kill(int(child), how)
    lines = one.shows_text(f"ended {status}")
    assert lines[0] == "the shell"  # the screen before is back
    wait_for(lambda: (tmp_path / "after").exists() and (tmp_path / "after").read_text(), "the shell")
    assert (tmp_path / "after").read_text() == (tmp_path / "before").read_text() != ""


# Reports steps until it is told to fail.
TRAIN = """
import os, signal, sys
rank, step = os.environ["RANK"], 0
print("rank", rank, "begins", flush=True)
while not os.path.exists("go"):
    step += 1
    with open(os.environ["MUSTER_PROGRESS_FILE"], "w") as file:
        file.write(f"epoch 1/3 step {step}/100000 loss 0.5")
    signal.sigtimedwait([], 0.1)
sys.exit("ValueError: loss is nan" if rank == "1" else 0)
"""


@pytest.fixture
def job(tmp_path):
    """Starts a detached job; its name."""
    environment = {"MUSTER_RUNTIME_DIR": str(tmp_path / "runtime")}
    (tmp_path / "train.py").write_text(TRAIN)

    def start(*options):
        started = subprocess.run([MUSTER, "--detach", "--nproc-per-node=4", *options, "train.py"], cwd=tmp_path, timeout=60,
                                 env=clean_environment(**environment), capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert started.returncode == 0, started.stderr
        return started.stdout.strip()
    start.environment = environment
    yield start
    for entry in json.loads(ctl("ls", "--json", **environment).stdout or "[]"):
        ctl("stop", "--now", entry["name"], **environment)


def read(address):
    """The text there; None while nothing listens."""
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return answer.read().decode()
    except urllib.error.URLError as error:
        assert isinstance(error.reason, ConnectionError), error
    except ConnectionError:  # the tunnel stands and leads to nobody yet
        pass
    return None


def test_the_tunnel_that_open_prints_leads_to_the_page_and_to_the_metrics(job, ssh):
    text = ctl("open", job(), **job.environment).stdout
    # The ports of the reader's own machine, which is this one here, may be taken.
    here = str(free_port())
    text = text.replace("-L 8080:", f"-L {here}:").replace(":8080/", f":{here}/").replace("-L 6006:", f"-L {free_port()}:")
    ssh(re.search(r"^ *(ssh .*)$", text, re.M)[1])
    page, metrics = re.findall(rf"http://127.0.0.1:{here}/\S*", text)
    assert "<title>" in wait_for(lambda: read(page), "the tunnel", 60)
    assert json.loads(read(page.replace("/?", "/api/status?")))["job"]["world_size"] == 4
    assert "muster_agent_info{" in read(metrics)


def test_the_tunnel_that_open_prints_leads_to_a_tensorboard(job, ssh, tmp_path):
    if not TENSORBOARD.is_dir():
        pytest.skip("no tensorboard here: scripts/setup --full installs it")
    text = ctl("open", job(), **job.environment).stdout
    assert "-L 6006:127.0.0.1:6006 " in text and "http://127.0.0.1:6006/ " in text
    (command,) = re.findall(r"^ *tensorboard --port 6006 --logdir DIR\b", text, re.M)
    # The ports of both machines, which are one here, may be taken.
    here, there = str(free_port()), str(free_port())
    text = text.replace("-L 8080:", f"-L {free_port()}:").replace("-L 6006:127.0.0.1:6006 ", f"-L {here}:127.0.0.1:{there} ")
    ssh(re.search(r"^ *(ssh .*)$", text, re.M)[1])
    words = command.replace("6006", there).replace("DIR", str(tmp_path)).split()
    with open(tmp_path / "tensorboard.log", "w") as log:
        board = subprocess.Popen(["/usr/bin/python3", "-m", "tensorboard.main", *words[1:]], stdout=log, stderr=log, cwd=tmp_path,
                                 env=clean_environment(PYTHONPATH=TENSORBOARD))
    try:
        assert "<title>TensorBoard</title>" in wait_for(lambda: read(f"http://127.0.0.1:{here}/"), "TensorBoard", 90)
    finally:
        board.kill()
        board.wait()


def test_each_detached_job_can_be_watched_and_by_its_owner_alone(job, tmp_path, screen):
    name = job("-r", "3", f"--log-dir={tmp_path / 'logs'}")
    ranks = wait_for(lambda: (rows := rows_of(ctl("top", **job.environment).stdout)) and all(row[4].endswith("/100000") for row in rows) and rows, "steps of all ranks")
    assert [row[0] for row in ranks] == ["0", "1", "2", "3"] and ranks[0][2:4] == ["running", "1"]
    entry = json.loads(ctl("status", "--json", name, **job.environment).stdout)
    assert ctl("top", f"--url={entry['metrics']}").returncode == 78
    port = entry["metrics"].rsplit(":", 1)[1]
    tunnel = ctl("open", name, **job.environment).stdout
    assert f"ssh -N -L 8080:127.0.0.1:{port} -L 6006:127.0.0.1:6006 {entry['host']}\n" in tunnel
    assert f"http://127.0.0.1:8080/?token={entry['page_token']}  the job\n" in tunnel
    one = screen("top", name, "-d", "0.2", **job.environment)
    one.shows(lambda _: one.ranks() == [0, 1, 2, 3], "the ranks")
    one.key("Down", "l")
    one.shows_text("rank 1 begins")
    one.key("q")
    (tmp_path / "go").touch()
    one.shows_text("does the job still run?")
    assert ctl("top", name, **job.environment).returncode == 1


def test_a_job_is_found_by_its_coordinator(job):
    port = free_port()
    job("--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-id=far", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=last_call_timeout=1",
        "--metrics-addr=0")
    shown = wait_for(lambda: (result := ctl("top", "far", f"--endpoint=127.0.0.1:{port}")).returncode == 0 and result, "the job")
    assert shown.stdout.startswith("far (")
    assert "ssh -N -L 8080:127.0.0.1:" in ctl("open", f"--endpoint=127.0.0.1:{port}").stdout
    assert ctl("top", "other", f"--endpoint=127.0.0.1:{port}").returncode == 1
