# SPDX-License-Identifier: Apache-2.0
"""A worker that tells who it was told to be, and what was told."""
import json

TELL = """import json, os
names = ("RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT "
         "TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE SLURM_JOB_ID SLURM_STEP_ID SLURM_NODEID SLURM_PROCID SLURM_LOCALID "
         "OMP_NUM_THREADS MUSTER_SECRET").split()
# In one write: lines of several tasks share a pipe.
os.write(1, (json.dumps({name: os.environ.get(name) for name in names} | {"pid": os.getpid()}) + "\\n").encode())
"""


def told(text):
    """What the workers told, by rank."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return sorted(lines, key=lambda line: int(line["RANK"]))


def column(workers, name):
    return [worker[name] for worker in workers]
