# How a measured series grows, and what a job of many nodes runs out of first. Pure functions: numbers in, numbers out; unit tests
# give them series that are known. Written for `scripts/bench report`.
# SPDX-License-Identifier: Apache-2.0
import math
import typing

# In this order where two fit equally well.
MODELS = {"a + b log n": math.log, "a + b n": float, "a + b n log n": lambda n: n * math.log(n)}
FEWEST = 3  # sizes: with two, every model fits exactly
# One-sided 95 % of Student's t by degrees of freedom: the interval between both sides has 90 %.
_STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
_LARGEST = 1e12


class Fit(typing.NamedTuple):
    """value = a + b f(n) by least squares of relative errors: what is measured varies in proportion to its size."""

    model: str
    a: float
    b: float
    error: float  # of predictions of a size that was left out: root mean square, relative
    scatter: float  # of the points around the fit, relative
    inverse: tuple  # of the normal equations: (s00, s01, s11)
    points: int

    def at(self, n):
        return self.a + self.b * MODELS[self.model](n)

    def interval(self, n):
        """(low, high): 90 % of a further measurement at n, if the model holds there."""
        x, value = MODELS[self.model](n), self.at(n)
        s00, s01, s11 = self.inverse
        student = _STUDENT[self.points - 3] if self.points - 3 < len(_STUDENT) else 1.8
        half = student * self.scatter * math.sqrt(max(0.0, s00 + 2 * s01 * x + s11 * x * x) + value * value)
        return max(0.0, value - half), value + half


def _least_squares(points, function):
    """a, b and the inverse of the normal equations, each point weighted by 1 / y^2."""
    weights = [1 / (y * y) for _, y in points]
    xs = [function(n) for n, _ in points]
    w, wx = sum(weights), sum(v * x for v, x in zip(weights, xs))
    # Around the mean: sums of squares of n log n at 10,000 leave no digits otherwise.
    mean = wx / w
    spread = sum(v * (x - mean) ** 2 for v, x in zip(weights, xs))
    wy = sum(v * y for v, (_, y) in zip(weights, points))
    b = sum(v * (x - mean) * y for v, x, (_, y) in zip(weights, xs, points)) / spread
    return wy / w - b * mean, b, (1 / w + mean * mean / spread, -mean / spread, 1 / spread)


def left_out_error(points, model):
    """Each size predicted from all others: root mean square of the relative errors."""
    errors = []
    for index, (n, y) in enumerate(points):
        rest = points[:index] + points[index + 1:]
        a, b, _ = _least_squares(rest, MODELS[model])
        errors.append((a + b * MODELS[model](n) - y) / y)
    return math.sqrt(sum(error * error for error in errors) / len(errors))


def fit(points):
    """The model with the smallest error on sizes that were left out. `points`: (n >= 1, value > 0) of FEWEST sizes or more;
    None where there are fewer."""
    points = sorted(points)
    if len({n for n, _ in points}) < FEWEST or len(points) < FEWEST:
        return None
    errors = {model: left_out_error(points, model) for model in MODELS}
    best = min(MODELS, key=lambda model: round(errors[model], 6))  # of equals the first
    a, b, inverse = _least_squares(points, MODELS[best])
    squares = sum(((a + b * MODELS[best](n) - y) / y) ** 2 for n, y in points)
    return Fit(best, a, b, errors[best], math.sqrt(squares / (len(points) - 2)), inverse, len(points))


def largest(limit, function):
    """The largest n at which a growing function(n) is at most the limit; 0 if none is, infinity if it stays below."""
    if function(1) > limit:
        return 0
    if function(_LARGEST) <= limit:
        return math.inf
    low, high = 1, int(_LARGEST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if function(middle) <= limit else (low, middle)
    return low


class Limit(typing.NamedTuple):
    what: str
    ends_at: float  # nodes: more have no room; infinity: never
    at_target: str  # what the target needs
    why: str


class Costs(typing.NamedTuple):
    """What rendezvous.json has measured."""

    descriptors: int
    bytes_per_agent: float
    bytes_per_client: float
    cpu_us_per_client: float
    head_connections_per_agent: float  # behind agents that proxy the store
    head_bytes_per_client: float
    head_cpu_us_per_client: float
    join: Fit  # milliseconds over nodes
    failure: Fit


OWN_DESCRIPTORS = 64
SYSTEMD_DESCRIPTORS = 524288
MEMORY = 16 << 30
LOCAL_PORTS = 60999 - 32768 + 1
JOIN_TIMEOUT_S = 600
HEARTBEATS_S = 15  # keep_alive_interval times keep_alive_max_attempt: who is silent for longer is counted out


def limits(costs, nodes=10000, ranks=8):
    """What a job of so many ranks a node has used up at which number of nodes, the first of them first."""
    rows = []
    ways = [("each rank at the head's store", 1 + ranks, costs.bytes_per_agent + ranks * costs.bytes_per_client, costs.cpu_us_per_client)]
    if costs.head_connections_per_agent:
        ways.append(("--store-proxy", costs.head_connections_per_agent, costs.bytes_per_agent + ranks * costs.head_bytes_per_client,
                     costs.head_cpu_us_per_client))
    for way, connections, size, cpu_us in ways:
        for count, whose in dict.fromkeys([(costs.descriptors, "as where it was measured"), (SYSTEMD_DESCRIPTORS, "systemd's default hard limit")]):
            rows.append(Limit(f"descriptors, {way}", (count - OWN_DESCRIPTORS) // connections, f"{connections * nodes:,.0f} connections",
                              f"{connections:.0f} a node at the head, which may have {count:,}, {whose}"))
        rows.append(Limit(f"memory, {way}", MEMORY // size, f"{size * nodes / (1 << 20):,.0f} MiB",
                          f"{size:,.0f} bytes a node at a head with {MEMORY >> 30} GiB"))
        rows.append(Limit(f"local ports behind one address, {way}", LOCAL_PORTS // connections, f"{connections * nodes:,.0f} ports",
                          f"{LOCAL_PORTS:,} of one source address to one port: all nodes behind one NAT; nodes with addresses of their own "
                          f"need {connections:.0f} each"))

        def start(n, cpu_us=cpu_us):
            return costs.join.at(n) / 1000 + n * ranks * cpu_us / 1e6

        if costs.join:
            rows.append(Limit(f"time to join, {way}", largest(JOIN_TIMEOUT_S, start), f"{start(nodes):.1f} s",
                              f"join, then {ranks} clients a node of {cpu_us:.0f} us each, before join_timeout, {JOIN_TIMEOUT_S} s"))
    if costs.failure:
        rows.append(Limit("heartbeats", largest(1000 * HEARTBEATS_S, costs.failure.at), f"{costs.failure.at(nodes):.0f} ms",
                          f"telling all of a failure keeps the loop of the head busy; after {HEARTBEATS_S} s without one agents count it out"))
    return sorted(rows, key=lambda row: row.ends_at)
