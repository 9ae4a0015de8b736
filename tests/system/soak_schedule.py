# SPDX-License-Identifier: Apache-2.0
"""Which faults scripts/soak does, when and to whom: a pure function of the seed and the length. Targets are places (agent 2
of a job, a node, a disk), not processes: who is there at that time is found out then, and a place may be empty."""
import collections
import random

Event = collections.namedtuple("Event", "at fault target seconds")  # seconds until it is undone; 0: it is not

NODES = (1, 2, 3)  # node 0 has musterd
TRAINED = [f"train/{i}" for i in range(3)]
IDLE = [f"{job}/{i}" for job in ("idle0", "idle1") for i in range(5)]
PAUSES = (0.1, 1, 4.5)  # of what is stopped or cut off; a node is lost after 3 s
REST_EVERY = 20  # seconds of faults; then all has to come to rest

# Seconds between two faults, on average; for each fault its share, its targets and how long it may last.
STREAMS = (
    # Jobs whose workers do nothing: many worlds in little time.
    (0.4, {"join": (25, IDLE, ()), "worker-killed": (24, IDLE, ()), "worker-stopped": (6, IDLE, PAUSES),
           "agent-killed": (12, IDLE, ()), "agent-leaves": (8, IDLE, ()), "agent-stopped": (9, IDLE, PAUSES)}),
    (1.5, {"join": (1, TRAINED, ())}),
    # A training has to come back from each of these.
    (5, {"worker-killed": (5, TRAINED, ()), "worker-stopped": (2, TRAINED, PAUSES), "worker-hangs": (1, TRAINED, ()),
         "agent-killed": (3, TRAINED, ()), "agent-leaves": (2, TRAINED, ()), "agent-stopped": (2, TRAINED, PAUSES),
         "guardian-killed": (2, TRAINED, ()), "node-stopped": (2, TRAINED, PAUSES), "node-killed": (1, TRAINED, ()),
         "store-host-killed": (2, ["train"], ())}),
    (4, {"musterd-killed": (4, ["musterd"], ()), "musterd-stopped": (2, ["musterd"], PAUSES),
         "cut-off": (2, NODES, PAUSES), "link-down": (2, NODES, PAUSES), "drops": (2, NODES, PAUSES),
         "slow-link": (3, NODES, (2, 6)), "disk-full": (5, ["checkpoints", "logs"], (1, 4))}),
)


def schedule(seed, seconds):
    """Events in the order of time. Of one node, disk or daemon none begins before the one before it is undone."""
    dice, events, busy = random.Random(seed), [], {}
    for pace, faults in STREAMS:
        at = dice.expovariate(1 / pace)
        while at < seconds:
            fault = dice.choices(list(faults), [share for share, *_ in faults.values()])[0]
            _, targets, lasts = faults[fault]
            target = dice.choice(targets)
            target = f"node {target}" if targets is NODES else target
            lasting = dice.choice(lasts) if lasts else 0
            if busy.get(target, 0) <= at:
                events.append(Event(round(at, 2), fault, target, lasting))
                if "/" not in target:
                    busy[target] = at + lasting
            at += dice.expovariate(1 / pace)
    events += [Event(float(at), "rest", "all", 0) for at in range(REST_EVERY, int(seconds) + 1, REST_EVERY)]
    return sorted(events)


def line(event):
    lasting = f" for {event.seconds:g} s" if event.seconds else ""
    return f"{event.at:8.2f} s  {event.fault} {event.target}{lasting}"
