# SPDX-License-Identifier: Apache-2.0
"""A job that loses a rank in the middle of training and goes on from its checkpoint, launched by muster."""
import pathlib
import re
import subprocess

from launcher_support import MUSTER

SCRIPT = pathlib.Path(__file__).with_name("elastic_training.py")


def test_training_resumes_after_a_rank_died(torch, tmp_path):
    result = subprocess.run([MUSTER, "--nproc-per-node=2", "--max-restarts=1", SCRIPT, tmp_path], env=torch.environment(),
                            capture_output=True, text=True, timeout=180)
    assert result.returncode == 0, result.stderr
    begun = sorted(re.findall(r"rank (\d) attempt (\d) begins at step (\d+)", result.stdout))
    # Rank 1 died at step 6, without which rank 0 cannot finish that step: step 5 is what was saved last.
    assert begun == [("0", "0", "0"), ("0", "1", "6"), ("1", "0", "0"), ("1", "1", "6")], result.stdout
    assert sorted(re.findall(r"rank (\d) attempt 1 is right", result.stdout)) == ["0", "1"], result.stdout
