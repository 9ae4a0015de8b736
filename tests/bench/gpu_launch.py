# Checks the launcher on the GPUs of this machine, with PyTorch where it is found.
# SPDX-License-Identifier: Apache-2.0
"""gpu_launch - muster on the GPUs of this machine: PyTorch's DDP over NCCL beside torchrun, the figures that NVML gives under DCGM's
names, who holds a GPU, and the reports of failures and hangs as real workers cause them. With --device cpu a rehearsal of what
needs no GPU, over gloo."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import measure

# Several ranks share the one GPU where there is no second: NCCL takes them for different hosts.
DDP = """
import os, signal, torch, torch.distributed as dist
rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
if cuda := torch.cuda.is_available():
    gpus = torch.cuda.device_count()
    if gpus < int(os.environ["LOCAL_WORLD_SIZE"]):
        os.environ["NCCL_HOSTID"] = f"host-{rank}"
    torch.cuda.set_device(local % gpus)
device = torch.device("cuda", local % gpus) if cuda else torch.device("cpu")
dist.init_process_group("nccl" if cuda else "gloo")
torch.manual_seed(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.Generator().manual_seed(rank)
for step in range(20):
    if step == int(os.environ.get("STOPS_AT", -1)) and rank == 1:
        signal.pause()
    x = torch.randn(32, 64, generator=data).to(device)
    loss = (model(x) - x[:, :8]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
loss = loss.detach()
dist.all_reduce(loss)
if rank == 0:
    print(f"world {dist.get_world_size()} loss {loss.item() / dist.get_world_size():.5f}", flush=True)
if not cuda:
    os._exit(0)  # PyTorch 2.14 over gloo aborts about one end in ten: "terminate called without an active exception"
dist.destroy_process_group()
"""
HOLDER = """
import sys, torch
free, total = torch.cuda.mem_get_info()
kept = torch.empty(free - (300 << 20), dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("holds", flush=True)
sys.stdin.read()
"""
NEEDS = "import torch; torch.empty(8 << 30, dtype=torch.uint8, device='cuda')\n"
# What nvidia-smi has to say, too, while the load stays the same.
SMI = {"DCGM_FI_DEV_FB_USED": "memory.used", "DCGM_FI_DEV_FB_FREE": "memory.free", "DCGM_FI_DEV_SM_CLOCK": "clocks.sm", "DCGM_FI_DEV_MEM_CLOCK": "clocks.mem"}
FAULT = "import torch; x = torch.ones(3, device='cuda'); print(x[torch.tensor([5], device='cuda')].sum().item())\n"


def steady_metrics(ask, end):
    """The metrics once two readings of the GPUs in turn tell the same utilisation: NVML's is a mean of up to a second."""
    age, busy = float("inf"), []
    while time.monotonic() < end:
        text = ask()
        said = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith(("DCGM_FI_DEV_GPU_UTIL{", "muster_gpu_figures_age_seconds ")))
        age_now = float(said.pop("muster_gpu_figures_age_seconds", "inf"))
        busy_now = [float(value) for value in said.values()]
        if age_now < age:  # a new reading
            if busy and max(busy_now) > 0 and all(abs(now - before) <= 0.05 * before for now, before in zip(busy_now, busy)):
                return text
            busy = busy_now
        age = age_now
        time.sleep(0.2)  # between looks
    raise measure.Failed(f"the utilisation of the GPUs does not become steady: {busy}")


class Launcher:
    def __init__(self, options, rows, folder):
        self.options, self.rows, self.folder = options, rows, folder
        self.bin = options.build / "bin"
        self.environment = {**os.environ, "MUSTER_RUNTIME_DIR": str(folder / "runtime")}

    def script(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def run(self, *words, seconds=90, status=0):
        done = subprocess.run(list(map(str, words)), env=self.environment, cwd=self.folder, text=True, capture_output=True, stdin=subprocess.DEVNULL,
                              timeout=max(1, min(seconds, self.rows.left())))
        if done.returncode != status:
            raise measure.Failed(f"exit code {done.returncode}, not {status}: {(done.stdout + done.stderr)[-3000:]}")
        return done.stdout + done.stderr

    def muster(self, *words, **options):
        return self.run(self.bin / "muster", "--standalone", f"--log-dir={tempfile.mkdtemp(dir=self.folder)}", *words, **options)

    def ddp(self, ranks):
        """The same script under muster and under torchrun: the same loss, and how long each takes."""
        script = self.script("ddp.py", DDP)
        torchrun = [self.options.python, "-m", "torch.distributed.run", "--standalone"]
        sides = {"muster": [self.bin / "muster", "--standalone", "--tee=3"], "torchrun": torchrun}
        seconds, losses = {name: [] for name in sides}, set()
        for _ in range(self.options.rounds):
            for name, command in sides.items():
                began = time.monotonic()
                text = self.run(*command, f"--nproc-per-node={ranks}", script)
                seconds[name].append(time.monotonic() - began)
                losses.add(re.search(rf"world {ranks} loss [\d.]+", text)[0])
        if len(losses) != 1:
            raise measure.Failed(f"the losses differ: {losses}")
        row = {name: measure.summary(values) for name, values in seconds.items()}
        return row | {"unit": "seconds", "loss": losses.pop(), "text": ", ".join(f"{name} {row[name]['median']:.2f} s" for name in sides)}

    def figures(self):
        """What /metrics, the page, musterctl gpus and top tell while a job of the worker runtime trains."""
        job = subprocess.Popen([str(self.bin / "muster"), "--standalone", "--nproc-per-node=gpu", "--rdzv-id=figures", "--metrics-addr=127.0.0.1:0",
                                str(self.bin / "train_steps"), f"--device={self.options.device}", "--model=resnet50", "--batch-size=64", "--samples=256",
                                "--image=224", "--autocast=bf16", "--steps=1000000"], env=self.environment, cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            said = []
            while not (found := re.search(r"http://(127\.0\.0\.1:\d+)", said[-1] if said else "")):
                if not (line := job.stdout.readline()):
                    raise measure.Failed(f"no address: {said}")
                said.append(line)
            address = found[1]

            def ask(path):
                with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
                    return answer.read().decode()
            end = time.monotonic() + 60
            while not (page := json.loads(ask("/api/status")))["ranks"]["throughput"] or None in page["ranks"]["throughput"]:
                if time.monotonic() > end:
                    raise measure.Failed("no rank told its throughput")
                time.sleep(0.2)
            text = steady_metrics(lambda: ask("/metrics"), end)
            smi = self.run("nvidia-smi", f"--query-gpu={','.join(SMI.values())}", "--format=csv,noheader,nounits")
            row = {"metrics": [line for line in text.splitlines() if "DCGM_FI" in line and not line.startswith("#")], "page": json.loads(ask("/api/status")),
                   "gpus_text": self.run(self.bin / "musterctl", "gpus"), "nvidia_smi": dict(zip(SMI, map(float, smi.splitlines()[0].split(", "))))}
        finally:
            job.send_signal(signal.SIGTERM)
            try:
                job.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                job.kill()
        ours = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in row["metrics"] if 'gpu="0"' in line}
        if far := [name for name, theirs in row["nvidia_smi"].items() if abs(ours.get(name, -1) - theirs) > 0.05 * theirs]:
            raise measure.Failed(f"{', '.join(far)} differ from nvidia-smi: {ours}, {row['nvidia_smi']}")
        return row | {"text": f"{len(row['metrics'])} figures of GPUs; {row['gpus_text'].strip().splitlines()[-1]}"}

    def full_gpu(self):
        """A worker for which the GPU has no memory left: the report names who holds it."""
        with subprocess.Popen([self.options.python, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            try:
                if holder.stdout.readline() != "holds\n":
                    raise measure.Failed("the other process could not take the memory")
                text = self.muster("--nproc-per-node=1", self.script("needs.py", NEEDS), status=1)
                if f"pid {holder.pid} " not in text:
                    raise measure.Failed(f"the report does not name pid {holder.pid}: {text}")
            finally:
                holder.kill()
        return {"output": text, "text": next(line.strip() for line in text.splitlines() if f"pid {holder.pid} " in line)}

    def fault(self):
        text = self.muster("--nproc-per-node=1", self.script("fault.py", FAULT), status=1)
        return {"output": text, "text": next((line.strip() for line in text.splitlines() if "cause" in line), "")}

    def hang(self):
        """Rank 1 does not come to its all-reduce: the report names it."""
        self.environment["STOPS_AT"] = "10"
        try:
            text = self.muster("--nproc-per-node=2", "--hang-timeout=6:12", "--on-hang=stop", self.script("ddp.py", DDP), status=124)
        finally:
            del self.environment["STOPS_AT"]
        return {"output": text, "text": next((line.strip() for line in text.splitlines() if "hang" in line.lower()), "")}


def main(arguments):
    def add(parser):
        parser.add_argument("--python", default=shutil.which("python3"), help="one that has PyTorch")

    options = measure.gpu_options(__doc__, arguments, add, programs=("muster", "musterctl", "train_steps"))
    options.build = options.build.resolve()
    rows = measure.Rows(options)
    with tempfile.TemporaryDirectory() as name:
        launcher = Launcher(options, rows, pathlib.Path(name))
        for ranks in (1, 2):
            rows.add(f"DDP, {ranks} rank{'s' * (ranks > 1)}", lambda r=ranks: launcher.ddp(r))
        rows.add("a rank that does not come", launcher.hang)
        if options.device == "cuda":
            rows.add("a GPU without memory", launcher.full_gpu)
            rows.add("a fault on the GPU", launcher.fault)
            rows.add("figures of NVML", launcher.figures)
    return rows.exit_code()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
