# cmake --install, and a project of its own that finds, links and runs what was installed.
# SPDX-License-Identifier: Apache-2.0
import shutil

import pytest

from guide_support import GUIDES, blocks, differences


@pytest.fixture(scope="module")
def installed(tmp_path_factory, build, root):
    import subprocess

    def step(*command):
        done = subprocess.run([str(word) for word in command], text=True, capture_output=True, timeout=300)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    base = tmp_path_factory.mktemp("package")
    step("cmake", "--install", build, "--prefix", base / "first")
    shutil.move(base / "first", base / "prefix")  # an installed tree can be moved
    step("cmake", "-G", "Ninja", "-S", root / "tests/embed", "-B", base / "build", f"-DCMAKE_PREFIX_PATH={base}/prefix")
    step("cmake", "--build", base / "build")
    step("cmake", "-G", "Ninja", "-S", base / "prefix/share/muster/examples", "-B", base / "examples", f"-DCMAKE_PREFIX_PATH={base}/prefix")
    step("cmake", "--build", base / "examples")
    return base


def test_installed_tree_has_programs_libraries_headers_and_package(installed):
    prefix = installed / "prefix"
    assert {p.name for p in (prefix / "bin").iterdir()} >= {"muster", "musterd", "musterctl", "muster-preflight", "muster-profile"}
    headers = {p.name for p in (prefix / "include/muster").iterdir()}
    assert {"store.h", "tcp_store.h", "init.h", "process_group.h"} <= headers
    assert list(prefix.rglob("muster-config.cmake"))


@pytest.mark.parametrize("shell, path", [("bash", "bash-completion/completions/muster"), ("zsh", "zsh/site-functions/_muster"),
                                         ("fish", "fish/vendor_completions.d/muster.fish")])
def test_the_completion_of_each_shell_is_where_the_shell_looks_for_it(installed, run, shell, path):
    text = (installed / "prefix/share" / path).read_text()
    assert "nproc-per-node" in text
    assert text == run(installed / "prefix/bin/muster", f"--print-completion={shell}").stdout


def test_installed_package_names_no_path_of_the_build_machine(installed, root):
    for file in (installed / "prefix").rglob("*.cmake"):
        assert str(root) not in file.read_text(), file


def test_who_links_the_store_alone_needs_no_openssl(installed):
    targets = next((installed / "prefix").rglob("muster-targets.cmake")).read_text()
    store = targets.split("set_target_properties(muster::rendezvous", 1)[1].split("\n)", 1)[0]
    assert "Threads::Threads" in store
    assert "OpenSSL" not in store


def test_a_project_with_find_package_uses_the_store(installed, run):
    done = run(installed / "build/embed_store")
    assert (done.returncode, done.stdout) == (0, "greeting: hello\n"), done.stderr


def test_a_project_with_find_package_gathers_alone(installed, run):
    done = run(installed / "build/embed_worker", env={})
    assert (done.returncode, done.stdout) == (0, "rank 0 of 1: sum 1\n"), done.stderr


def test_a_project_with_find_package_gathers_under_the_installed_launcher(installed, run):
    done = run(installed / "prefix/bin/muster", "--standalone", "--nproc-per-node=3", installed / "build/embed_worker")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 3: sum 6" for rank in range(3)]


def test_the_installed_examples_are_a_project_that_trains_as_the_installed_programs_do(installed, run):
    flags = ["--epochs=1", "--batch-size=256", "--device=cpu"]
    launch = [installed / "prefix/bin/muster", "--standalone", "--nproc-per-node=2"]
    sums = {run(*launch, folder / "fashion_mnist", *flags).stdout.split()[-1] for folder in (installed / "prefix/bin", installed / "examples")}
    assert len(sums) == 1 and len(sums.pop()) == 64
    done = run(installed / "examples/imagenet_train", installed / "none")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1) and "none/train" in done.stderr
    sources = (installed / "prefix/share/muster/examples").glob("*_*.cc")
    assert {source.name for source in sources} == {"all_reduce.cc", "fashion_mnist.cc", "imagenet_train.cc", "muster_profile.cc"}


@pytest.mark.parametrize("name", ["fashion_mnist", "imagenet_train"])
def test_an_example_is_short_and_uses_installed_headers_alone(root, name):
    lines = (root / f"worker_runtime/examples/{name}.cc").read_text().splitlines()
    assert len(lines) < 250
    assert [line for line in lines if line.startswith('#include "')] == ['#include "command_line.h"']


def test_a_program_averages_its_own_gradients_without_a_model(installed, run):
    done = run(installed / "prefix/bin/muster", "--standalone", "--nproc-per-node=3", installed / "build/embed_gradients")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 3: y = 2.000 x -1.000" for rank in range(3)]


def test_an_operation_and_a_loss_of_a_program_s_own_train_data_parallel(installed, run):
    done = run(installed / "prefix/bin/muster", "--standalone", "--nproc-per-node=2", installed / "build/embed_own_parts")
    assert done.returncode == 0, done.stderr
    ends = {line.split(": ", 1)[1] for line in done.stdout.splitlines()}
    assert len(ends) == 1 and ends.pop().startswith("the loss fell by more than 20 times, parameters "), done.stdout


def test_an_operation_and_a_loss_with_cuda_kernels_train_on_the_device_that_is_there(installed, run):
    program = installed / "build/embed_own_cuda"
    if not program.exists():
        pytest.skip("nvcc is not there")
    done = run(program, env={})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("on c") and done.stdout.endswith(") the loss fell to less than a third\n"), done.stdout


def test_the_example_of_the_worker_runtime_trains_resnet18_on_two_ranks(installed, run, root):
    source = (root / "tests/embed/resnet18.cc").read_text()
    assert len(source.splitlines()) <= 60 and f"```cpp\n{source}```" in (root / "worker_runtime/README.md").read_text()
    losses = []
    for steps in (2, 30):
        done = run(installed / "prefix/bin/muster", "--standalone", "--nproc-per-node=2", installed / "build/embed_resnet18", str(steps))
        assert done.returncode == 0, done.stderr
        lines = sorted(done.stdout.splitlines())
        assert [line.split(" on ")[0] for line in lines] == ["rank 0 of 2", "rank 1 of 2"]
        assert lines[0].split("parameters ")[1] == lines[1].split("parameters ")[1]
        losses.append(float(lines[0].split("loss ")[1].split(",")[0]))
    assert losses[1] < losses[0] * 0.8, losses


@pytest.mark.parametrize("block", [block for block in blocks(GUIDES["en"]) if block.marker == "package"], ids=lambda block: block.commands[0])
def test_the_programs_of_the_guide_print_what_it_says(installed, run, block):
    name = block.commands[0].removeprefix("./")
    done = run(installed / f"build/embed_{name}", env={})
    assert (done.returncode, done.stderr, differences(block, done.stdout)) == (0, "", []), done.stdout
