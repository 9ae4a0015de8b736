# Our reading of node lists against Slurm's own, and the lists that Slurm writes for many nodes.
# SPDX-License-Identifier: Apache-2.0
import os
import random
import subprocess

from launcher_support import BIN

FIXED = [
    "n1", "n[1]", "n[1-2]", "gpu[001-004,7],login-2,rack[1-2]n[01-03]", "n[08-9]", "n[1-010]", "n[9-10,12]", "n[1,1]",
    "a[001-1000]", "[1-3]", "n[00-02,5]", "a[1-2][3-4]", "nid[00001-00003,00007],x-y_z[5-6]", "b,a,b", "0x7f[000001-000002]",
]
REFUSED_BY_BOTH = ["n[3-1]", "a[]", "a[-1]", "n[0x1-3]", "n[x]"]


def ours(lists):
    """Per list its names, or None for one that is refused."""
    done = subprocess.run([BIN / "hostlist_tool"], input="".join(f"{line}\n" for line in lists), text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(lists)
    return [None if line.startswith("refused: ") else line.split(",") for line in lines]


def seeded_dice():
    seed = int(os.environ.get("MUSTER_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"MUSTER_SEED={seed}")
    return random.Random(seed)


def theirs(slurm, text):
    done = slurm.run("scontrol", "show", "hostnames", text)
    if not done.stdout:  # its exit status says nothing
        assert "Invalid hostlist" in done.stderr, done.stderr
        return None
    return done.stdout.split()


def random_list(dice):
    def number_range():
        first = dice.randrange(0, 120)
        text = str(first).zfill(dice.choice((0, 0, 2, 3, 5)))
        return dice.choice((text, f"{text}-{first + dice.randrange(0, 12)}"))

    def bracket():
        return "[" + ",".join(number_range() for _ in range(dice.randrange(1, 4))) + "]"

    def entry():
        name = dice.choice(("n", "gpu", "login-", "rack_a-", "x9y"))
        # Slurm's order of three dimensions is its own, and it writes none.
        return name + dice.choice(("", str(dice.randrange(0, 50)), bracket(), bracket() + dice.choice("cn-") + bracket()))

    return ",".join(entry() for _ in range(dice.randrange(1, 5)))


def test_node_lists_mean_what_slurm_says(slurm):
    dice = seeded_dice()
    lists = FIXED + [random_list(dice) for _ in range(120)]
    for text, names in zip(lists, ours(lists)):
        assert names is not None and names == theirs(slurm, text), text


def test_what_slurm_refuses_is_refused(slurm):
    for text, names in zip(REFUSED_BY_BOTH, ours(REFUSED_BY_BOTH)):
        assert names is None, text
        assert theirs(slurm, text) is None, text


def test_what_slurm_writes_is_read_back(slurm):
    dice = seeded_dice()
    names = [sorted({f"{dice.choice(('n', 'gpu-', 'r1c'))}{dice.randrange(0, 130):0{width}}" for _ in range(60)})
             for width in (1, 2, 3, 3)]
    written = [slurm.run("scontrol", "show", "hostlistsorted", ",".join(some)).stdout.strip() for some in names]
    assert any("[" in text for text in written)
    for some, text, read in zip(names, written, ours(written)):
        assert sorted(read) == sorted(some), text
