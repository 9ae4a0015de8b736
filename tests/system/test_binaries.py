# muster, musterctl and musterd are one file each: nothing but glibc at run time, and a copy elsewhere works.
# SPDX-License-Identifier: Apache-2.0
import re
import shutil

import pytest

# glibc's libraries; before 2.34 it was several files. linux-vdso is the kernel's.
GLIBC = {"linux-vdso.so.1", "libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2"}
LOADER = re.compile(r"^(/\S*/)?ld-linux-[\w-]+\.so\.\d+$")
PROGRAMS = ["muster", "musterctl", "musterd"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_needs_nothing_but_glibc(program, bin_dir, run):
    done = run("ldd", bin_dir / program)
    assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    assert "libc.so.6" in names, done.stdout
    assert [n for n in names if n not in GLIBC and not LOADER.match(n)] == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_copy_of_the_single_file_runs_elsewhere(program, bin_dir, run, tmp_path):
    copy = shutil.copy2(bin_dir / program, tmp_path)
    done = run(copy, "--help", cwd=tmp_path, env={})
    assert done.returncode == 0, done.stderr
    assert program in done.stdout
    assert done.stderr == ""


def test_a_copied_launcher_starts_workers(bin_dir, run, tmp_path):
    copy = shutil.copy2(bin_dir / "muster", tmp_path)
    done = run(copy, "--standalone", "--nproc-per-node=2", "--no-python", "/bin/sh", "-c", "echo rank=$RANK of $WORLD_SIZE",
               cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank=0 of 2", "rank=1 of 2"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_version_is_the_projects(program, bin_dir, run, root):
    version = re.search(r"project\(muster VERSION ([\d.]+)", (root / "CMakeLists.txt").read_text())[1]
    done = run(bin_dir / program, "--version")
    assert done.returncode == 0, done.stderr
    assert version in done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_unknown_option_is_a_usage_error(program, bin_dir, run):
    done = run(bin_dir / program, "--no-such-option")
    assert done.returncode == 2
    assert "--no-such-option" in done.stderr
