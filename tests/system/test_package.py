# cmake --install, and a project of its own that finds, links and runs what was installed.
# SPDX-License-Identifier: Apache-2.0
import shutil
import subprocess

import pytest

from guide_support import GUIDES, blocks, differences


# Compiling a user's two projects takes 75 s on two cores, and several times that beside other tests on a slow machine.
pytestmark = pytest.mark.timeout(900)


def step(*command):
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True, timeout=800)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="module")
def installed(tmp_path_factory, build):
    base = tmp_path_factory.mktemp("package")
    step("cmake", "--install", build, "--prefix", base / "first")
    shutil.move(base / "first", base / "prefix")  # an installed tree can be moved
    return base / "prefix"


@pytest.fixture(scope="module")
def embed(installed, root):
    """The programs of tests/embed, built against what was installed."""
    folder = installed.parent / "embed"
    step("cmake", "-G", "Ninja", "-S", root / "tests/embed", "-B", folder, f"-DCMAKE_PREFIX_PATH={installed}")
    step("cmake", "--build", folder)
    return folder


@pytest.fixture(scope="module")
def examples(installed):
    """The programs of the installed examples, built as a project of their own."""
    folder = installed.parent / "examples"
    step("cmake", "-G", "Ninja", "-S", installed / "share/muster/examples", "-B", folder, f"-DCMAKE_PREFIX_PATH={installed}")
    step("cmake", "--build", folder)
    return folder


def test_installed_tree_has_programs_libraries_headers_and_package(installed):
    assert {p.name for p in (installed / "bin").iterdir()} >= {"muster", "musterd", "musterctl", "muster-preflight", "muster-profile"}
    headers = {p.name for p in (installed / "include/muster").iterdir()}
    assert {"store.h", "tcp_store.h", "init.h", "process_group.h"} <= headers
    assert list(installed.rglob("muster-config.cmake"))


@pytest.mark.parametrize("shell, path", [("bash", "bash-completion/completions/muster"), ("zsh", "zsh/site-functions/_muster"),
                                         ("fish", "fish/vendor_completions.d/muster.fish")])
def test_the_completion_of_each_shell_is_where_the_shell_looks_for_it(installed, run, shell, path):
    text = (installed / "share" / path).read_text()
    assert "nproc-per-node" in text
    assert text == run(installed / "bin/muster", f"--print-completion={shell}").stdout


def test_installed_package_names_no_path_of_the_build_machine(installed, root):
    for file in installed.rglob("*.cmake"):
        assert str(root) not in file.read_text(), file


def test_who_links_the_store_alone_needs_no_openssl(installed):
    targets = next(installed.rglob("muster-targets.cmake")).read_text()
    store = targets.split("set_target_properties(muster::rendezvous", 1)[1].split("\n)", 1)[0]
    assert "Threads::Threads" in store
    assert "OpenSSL" not in store


def test_a_project_with_find_package_uses_the_store(embed, run):
    done = run(embed / "embed_store")
    assert (done.returncode, done.stdout) == (0, "greeting: hello\n"), done.stderr


def test_a_project_with_find_package_gathers_alone(embed, run):
    done = run(embed / "embed_worker", env={})
    assert (done.returncode, done.stdout) == (0, "rank 0 of 1: sum 1\n"), done.stderr


def test_a_project_with_find_package_gathers_under_the_installed_launcher(installed, embed, run):
    done = run(installed / "bin/muster", "--standalone", "--nproc-per-node=3", embed / "embed_worker")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 3: sum 6" for rank in range(3)]


def test_the_installed_examples_are_a_project_that_trains_as_the_installed_programs_do(installed, examples, run):
    flags = ["--epochs=1", "--batch-size=256", "--device=cpu"]
    launch = [installed / "bin/muster", "--standalone", "--nproc-per-node=2"]
    sums = {run(*launch, folder / "fashion_mnist", *flags).stdout.split()[-1] for folder in (installed / "bin", examples)}
    assert len(sums) == 1 and len(sums.pop()) == 64
    done = run(examples / "imagenet_train", installed / "none")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1) and "none/train" in done.stderr
    sources = (installed / "share/muster/examples").glob("*_*.cc")
    assert {source.name for source in sources} == {"all_reduce.cc", "fashion_mnist.cc", "imagenet_train.cc", "muster_profile.cc"}


@pytest.mark.parametrize("name", ["fashion_mnist", "imagenet_train"])
def test_an_example_is_short_and_uses_installed_headers_alone(root, name):
    lines = (root / f"worker_runtime/examples/{name}.cc").read_text().splitlines()
    assert len(lines) < 250
    assert [line for line in lines if line.startswith('#include "')] == ['#include "command_line.h"']


def test_a_program_averages_its_own_gradients_without_a_model(installed, embed, run):
    done = run(installed / "bin/muster", "--standalone", "--nproc-per-node=3", embed / "embed_gradients")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 3: y = 2.000 x -1.000" for rank in range(3)]


def test_an_operation_and_a_loss_of_a_program_s_own_train_data_parallel(installed, embed, run):
    done = run(installed / "bin/muster", "--standalone", "--nproc-per-node=2", embed / "embed_own_parts")
    assert done.returncode == 0, done.stderr
    ends = {line.split(": ", 1)[1] for line in done.stdout.splitlines()}
    assert len(ends) == 1 and ends.pop().startswith("the loss fell by more than 20 times, parameters "), done.stdout


def test_an_operation_and_a_loss_with_cuda_kernels_train_on_the_device_that_is_there(embed, run):
    program = embed / "embed_own_cuda"
    if not program.exists():
        pytest.skip("nvcc is not there")
    done = run(program, env={})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("on c") and done.stdout.endswith(") the loss fell to less than a third\n"), done.stdout


def test_the_example_of_the_worker_runtime_trains_resnet18_on_two_ranks(installed, embed, run, root):
    source = (root / "tests/embed/resnet18.cc").read_text()
    assert len(source.splitlines()) <= 60 and f"```cpp\n{source}```" in (root / "worker_runtime/README.md").read_text()
    losses = []
    for steps in (2, 30):
        done = run(installed / "bin/muster", "--standalone", "--nproc-per-node=2", embed / "embed_resnet18", str(steps))
        assert done.returncode == 0, done.stderr
        lines = sorted(done.stdout.splitlines())
        assert [line.split(" on ")[0] for line in lines] == ["rank 0 of 2", "rank 1 of 2"]
        assert lines[0].split("parameters ")[1] == lines[1].split("parameters ")[1]
        losses.append(float(lines[0].split("loss ")[1].split(",")[0]))
    assert losses[1] < losses[0] * 0.8, losses


@pytest.mark.parametrize("block", [block for block in blocks(GUIDES["en"]) if block.marker == "package"], ids=lambda block: block.commands[0])
def test_the_programs_of_the_guide_print_what_it_says(embed, run, block):
    name = block.commands[0].removeprefix("./")
    done = run(embed / f"embed_{name}", env={})
    assert (done.returncode, done.stderr, differences(block, done.stdout)) == (0, "", []), done.stdout
