# The benches' programs at tiny sizes: that they still speak with musterd and print figures, not what the figures are.
# SPDX-License-Identifier: Apache-2.0
import math
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
import ckpt  # noqa: E402
import data  # noqa: E402
import dp_vs_ddp  # noqa: E402
import launch  # noqa: E402
import launch_deaths  # noqa: E402
import launch_memory  # noqa: E402
import launch_tools  # noqa: E402
import measure  # noqa: E402
import parameter_server  # noqa: E402
import rendezvous  # noqa: E402
import scaling_rule  # noqa: E402
import store  # noqa: E402
import store_servers  # noqa: E402


@pytest.fixture(autouse=True)
def built_programs(bin_dir, monkeypatch):
    monkeypatch.setattr(measure, "program", lambda name: str(bin_dir / name))


@pytest.mark.parametrize("operation, protocol", [(operation, protocol) for operation in store.OPERATIONS for protocol in ("modern", "legacy")
                                                 if (operation, protocol) != ("multi_get", "legacy")])  # PyTorch up to 2.0 has none
def test_the_store_load_measures_every_operation_of_both_generations(operation, protocol):
    with store_servers.musterd() as server:
        server.protocol = protocol
        figures = store.load(server, operation, 3, "--operations=51")
    assert figures["per_second"] > 0
    assert 3 * figures["rounds"] == 51 if operation == "fan_out" else figures["operations"] >= 51
    assert figures["bytes_out"] > 0 and figures["bytes_in"] > 0


@pytest.mark.parametrize("operation", ["set", "get", "add", "multi_get"])
def test_the_store_load_can_have_several_requests_in_flight(operation):
    with store_servers.musterd() as server:
        figures = store.load(server, operation, 3, "--operations=480", "--in-flight=16")
        assert figures["operations"] >= 480 and figures["operations"] % 16 == 0
        with pytest.raises(measure.Failed, match="round trips"):
            store.load(server, "wait_get", 3, "--operations=16", "--in-flight=16")


def test_the_store_load_sees_a_wrong_answer():
    with store_servers.floor() as server:
        assert store.load(server, "get", 2, "--operations=20")["operations"] >= 20
        with pytest.raises(measure.Failed, match="not the answer"):
            store.load(server, "wait_get", 2, "--operations=20")


@pytest.mark.parametrize("secret", ["", "a secret of the bench"])
def test_the_control_load_takes_a_job_from_join_to_its_end(secret):
    env = {**rendezvous.os.environ, "MUSTER_SECRET": secret}
    with store_servers.musterd(env=env) as server:
        figures = measure.json_line([measure.program("control_load"), f"--port={server.port}", "--nodes=20",
                                     f"--server-pid={server.pid}"], env=env)
    # Constant per node: preamble and Start, Proof, Join; preamble, Challenge, Welcome, Assignment and at most a
    # reason for waiting each second.
    assert figures["join"]["sent_messages"] == 3
    assert figures["join"]["received_messages"] >= 4
    assert figures["failure"]["received_messages"] == 1
    assert figures["finish"]["received_messages"] == 1


def test_agents_of_torchrun_join_at_musterd():
    assert rendezvous.join_by_torchrun(store_servers.musterd, 3) > 0
    assert rendezvous.join_by_muster(3) > 0


def test_clients_check_in_at_several_stores_from_several_processes():
    figures = rendezvous.check_in(clients=101, generators=2, most_per_server=60)
    assert figures["done_ms"] >= figures["counted_ms"] > 0
    assert math.isfinite(figures["server_bytes_per_client"])


def test_clients_check_in_at_one_store_behind_the_agents_of_several_nodes():
    figures = rendezvous.check_in_behind_agents(clients=101, agents=3, generators=2, most_per_process=60)
    assert figures["done_ms"] >= figures["counted_ms"] > 0
    assert figures["head_connections"] == 3
    assert figures["head_cpu_ms"] > 0


def test_clients_are_shared_out_evenly():
    assert rendezvous.shares(98304, 19936) == [19661] * 4 + [19660]
    assert rendezvous.shares(5, 10) == [5]


@pytest.mark.parametrize("nodes", [1, 3])
def test_launchers_are_timed_side_by_side(nodes, capsys):
    with launch_tools.Tools(wanted=[]) as tools:
        shown = launch.Contest(tools, nodes, 2, rounds=2).show()
    assert {name: each["runs"] for name, each in shown["tools"].items()} == {"posix_spawn loop": 2, "muster": 2}
    assert shown["notes"] == [] and "times the floor" in capsys.readouterr().out


def test_a_launcher_that_fails_is_left_out_with_its_reason():
    with launch_tools.Tools(wanted=[]) as tools:
        tools.known.append(launch_tools.Tool("broken", lambda *_: ["false"]))
        shown = launch.Contest(tools, 1, 2, rounds=1).show()
    assert "broken" not in shown["tools"]
    assert "broken: exit status 1" in shown["notes"][0] and "left out" in shown["notes"][-1]


@pytest.mark.parametrize("nodes", [1, 2])
def test_deaths_are_followed_by_stops_and_restarts(nodes, tmp_path):
    command = [measure.program("muster"), "--no-python", "--nproc-per-node=2", "--max-restarts=2", f"--nnodes={nodes}",
               "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{launch_tools.free_port()}"]
    job = launch_deaths.Stamped(tmp_path, command, nodes, 2 * nodes)
    try:
        for attempt in (0, 1):
            asked, stopped, restarted = job.die(attempt, victim=1)
            assert 0 <= asked and 0 < stopped and 0 < restarted
        job.end(2)
    finally:
        job.close()


def test_an_agent_weighs_less_than_8_mb_with_a_secret_too(monkeypatch):
    monkeypatch.setenv("MUSTER_SECRET", "a secret of the bench")
    endpoint = f"--rdzv-endpoint=127.0.0.1:{launch_tools.free_port()}"
    with launch_memory.agents(2, 8, "--nnodes=2", "--rdzv-backend=c10d", endpoint) as pids:
        assert max(launch_memory.weight(pid)["rss"] for pid in pids) < 8192
        assert launch_memory.weight(launch_memory.guardian(pids[0]))["rss"] < 4096


def test_what_a_checkpoint_costs_is_measured_against_the_disk_and_pytorch(tmp_path, capsys):
    if not all((measure.ROOT / ".venv" / name).is_dir() for name in ("torch", "safetensors")):
        pytest.skip("no current PyTorch or safetensors here: scripts/setup --full installs them")
    assert ckpt.main(["--megabytes=8", "--rounds=2", f"--directory={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    for side in ("the disk", "muster, with the stop", "muster, beside the step", "torch.save 2.14", "safetensors save_file", "one memory copy"):
        assert f"\n{side}" in shown, shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_the_data_bench_measures_batches_without_work(bin_dir, workers):
    line = measure.json_line([str(bin_dir / "data_load"), "empty", str(workers), "50"])
    assert line["batches"] == 49 and line["seconds"] > 0


def test_the_data_bench_lists_a_folder_and_loads_what_pytorch_loads(bin_dir, tmp_path, monkeypatch, capsys):
    if not (measure.ROOT / ".venv/torchvision").is_dir():
        pytest.skip("no torchvision here: scripts/setup --full installs it")
    monkeypatch.setattr(data, "best_workers", lambda torch, root, batch: (1, {1: 1.0}))
    assert data.main(["--rounds=2", "--images=8", "--batch-size=4", "--batches=20", "--files=100"]) == 0
    out = capsys.readouterr().out
    assert out.count("images/s") >= 10 and out.count("scaled against exact: PSNR") == 2 and "a folder of 100 images listed" in out and "muster, scaled" in out


def test_dp_vs_ddp_shows_the_three_ways_with_one_loss(monkeypatch, capsys):
    saved = {}
    monkeypatch.setattr(measure, "save", lambda name, result: saved.update({name: result}))
    assert dp_vs_ddp.main(["--batches=8", "--samples=160", "--rounds=1", "--save"]) == 0
    rows = {row["mode"]: row for row in saved["dp_vs_ddp"]["rows"]}
    assert [len(rows[mode]["memory"]) for mode in ("single", "dp", "ddp")] == [1, 2, 2]
    assert max(row["loss"] for row in rows.values()) - min(row["loss"] for row in rows.values()) < 1e-4
    assert rows["dp"]["memory"][0] > rows["dp"]["memory"][1]  # the optimizer's state
    assert "Rows of GPUs: none" in capsys.readouterr().out


def test_the_parameter_server_and_the_ring_send_what_the_formulas_say(monkeypatch, tmp_path):
    saved = {}
    monkeypatch.setattr(measure, "save", lambda name, result: saved.update({name: result}))
    plot = tmp_path / "plot.svg"
    assert parameter_server.main(["--ranks=2,4", "--bytes=4096,65536", "--seconds=0.01", "--rounds=1", f"--plot={plot}", "--save"]) == 0
    for row in saved["parameter_server"]["rows"]:
        ranks, size = row["ranks"], row["bytes"]
        assert row["sent"] == {"parameter_server": size * (ranks - 1), "ring": 2 * size * (ranks - 1) // ranks, "all_reduce": 0}[row["way"]]
        assert row["micros"]["median"] > 0
    drawn = xml.etree.ElementTree.fromstring(plot.read_text())
    assert len(drawn.findall("{http://www.w3.org/2000/svg}polyline")) == 2 * 3


def test_the_scaling_rule_counts_the_steps_to_a_loss(monkeypatch):
    saved = {}
    monkeypatch.setattr(measure, "save", lambda name, result: saved.update({name: result}))
    assert scaling_rule.main(["--ranks=1,2", "--until=1.5", "--steps=400", "--seeds=1", "--save"]) == 0
    rows = saved["scaling_rule"]["rows"]
    assert [(row["ranks"], row["rule"]) for row in rows] == [(1, "same rate"), (2, "same rate"), (2, "rate x ranks"), (2, "x ranks, warm-up")]
    assert all(row["reached"] == 1 and 0 < row["steps"][0] < 400 for row in rows)


@pytest.mark.parametrize("arguments", [["dp", "--replicas=0"], ["dp", "--batch=x"], ["other"], []])
def test_the_training_program_refuses_bad_arguments_with_one_line(bin_dir, arguments):
    done = subprocess.run([bin_dir / "parallel_training", *arguments], text=True, capture_output=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not done.stdout


@pytest.mark.parametrize("arguments, words", [(["--backend=mpi"], "--backend: mpi: use gloo, shm or tcp, which need no mpirun"), (["--count=0"], "--count"),
                                              (["--count=1", "--bytes=8"], "excludes"), (["--iterations=x"], "--iterations"), (["other"], "unknown argument other"),
                                              (["--device=0,3"], "0,3: this program sums on the CPU; use cpu or auto")])
def test_all_reduce_refuses_bad_arguments_with_one_line(bin_dir, arguments, words):
    done = subprocess.run([bin_dir / "all_reduce", *arguments], text=True, capture_output=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and words in done.stderr and not done.stdout


def test_all_reduce_takes_an_init_method_a_backend_and_sizes(bin_dir, tmp_path):
    ranks = [subprocess.Popen([bin_dir / "all_reduce", f"--init-method=file://{tmp_path}/store?rank={rank}&world_size=2", "--backend=tcp", "--bytes=4096",
                               "--iterations=3", f"--local_rank={rank}", "--device=cpu"], stdout=subprocess.PIPE, text=True) for rank in range(2)]
    for rank, process in enumerate(ranks):
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert output.startswith(f"rank {rank} of 2: sum 3 over tcp, 4096 bytes in ")
    assert "--init-method" in subprocess.run([bin_dir / "all_reduce", "--help"], text=True, capture_output=True, check=True).stdout
