# The results of scripts/bench as one list of metrics, each with its unit, its direction and its spread, whichever bench measured
# it: what the comparison and the report go through. Reads files; knows no plots.
# SPDX-License-Identifier: Apache-2.0
import json
import math
import pathlib
import typing

BENCHES = ("train", "data", "ckpt", "launch", "logs", "all_reduce", "store", "rendezvous", "dp_vs_ddp", "parameter_server", "scaling_rule")
WHOLE_RUN = "bench.json"  # what `scripts/bench all` writes


class BadInput(Exception):
    """A file that is no result; the text is one line."""


class Metric(typing.NamedTuple):
    unit: str
    better: str  # "lower" or "higher"
    summary: dict  # median, p25, p75, runs, as measure.summary makes them


class Results(typing.NamedTuple):
    source: str
    benches: dict  # name -> what the bench saved, with its machine
    unfinished: dict  # name -> why it has no figures
    run: dict  # of a whole run: options, seconds, peers


def one(value):
    """Measured once."""
    return {"median": value, "p25": value, "p75": value, "runs": 1, "samples": [value]}


def scaled(summary, factor):
    return {key: value if key == "runs" else [factor * each for each in value] if isinstance(value, list) else factor * value
            for key, value in summary.items()}


def _train(r):
    for case in r["cases"]:
        title = f"{case['model']}, batch {case['batch_size']}, ranks {case['ranks']}"
        for side in ("muster", "torch"):
            yield f"{title}: {side}", "images/s", "higher", scaled(case[side], case["batch_size"] * case["ranks"])
    for side in ("plain", "shards"):
        if r.get("logical_shards"):
            yield f"2 ranks, {side}", "steps/s", "higher", r["logical_shards"][side]
    for name, start in r.get("starts", {}).items():
        yield f"first step {name}", "ms", "lower", start["milliseconds"]
        yield f"memory after it, {name}", "MB", "lower", start["pss_mb"]


def _data(r):
    for part, text in (("loading", ""), ("loading_large", " of large images")):
        for side in ("exact", "scaled", "torch") if part in r else ():
            yield f"loading{text}: {side}", "images/s", "higher", r[part][side]["images_per_second"]
            yield f"memory{text}: {side}", "MB", "lower", r[part][side]["pss_mb"]
    for workers, each in r["empty_batch_us"].items():
        yield f"a batch without work, {workers}", "us", "lower", each
    yield f"listing of {r['listing']['files']} files", "s", "lower", r["listing"]["seconds"]


def _ckpt(r):
    for what, text in (("written", "on the disk"), ("stop", "the step waits")):
        for side, each in r[what].items():
            yield f"{r['bytes'] // 10**6} MB, {text}: {side}", "s", "lower", each


def _launch(r):
    for group, text in (("sizes", "{} ranks"), ("nodes", "{} nodes")):
        for count, each in r.get(group, {}).items():
            for tool, summary in each["tools"].items():
                yield f"{text.format(count)}: {tool}", "ms", "lower", summary
    for title, each in r.get("memory", {}).items():
        yield f"PSS of the agent, {title}", "KiB", "lower", one(each["agent_kb"]["pss"])
    for title, each in r.get("deaths", {}).items():
        yield f"death to all stopped: {title}", "ms", "lower", each["stopped"]
        yield f"death to all restarted: {title}", "ms", "lower", each["restarted"]


def _logs(r):
    for way, each in r["ways"].items():
        yield f"{r['ranks']} ranks: {way}", "MB/s", "higher", each


def _all_reduce(r):
    for row in r["rows"]:
        yield f"{row['bytes']} bytes, {r['ranks']} ranks: {row['transport']}", "us", "lower", row


def _store(r):
    for part, text in (("loads", ""), ("beside_idle", f", beside {r.get('idle_connections')} idle"), ("with_in_flight", f", {r.get('in_flight')} in flight")):
        for operation, sizes in r.get(part, {}).items():
            for connections, servers in sizes.items():
                for server, each in servers.items():
                    yield f"{operation}, {connections} connections{text}: {server}", "operations/s", "higher", each["per_second"]


def _rendezvous(r):
    for nodes, cell in r["nodes"].items():
        for step in ("join", "failure", "again", "finish"):
            yield f"{nodes} agents: {step}", "ms", "lower", cell[step]["ms"]
        yield f"{nodes} agents: memory of each", "bytes", "lower", cell["bytes_per_agent"]
    for nodes, ways in r.get("torchrun", {}).items():
        for way, time in ways.items():
            yield f"{nodes} agents beside torchrun's, join: {way}", "ms", "lower", time
    for group, text in (("clients", "clients"), ("clients_behind_agents", "clients behind agents")):
        for clients, cell in r.get(group, {}).items():
            yield f"{clients} {text}: all woken", "ms", "lower", cell["done_ms"]
    for clients, cell in r["clients"].items():
        yield f"{clients} clients: memory of each", "bytes", "lower", cell["server_bytes_per_client"]
        yield f"{clients} clients: processor time of each", "us", "lower", cell["server_cpu_us_per_client"]
    for size, each in r.get("bytes_per_key", {}).items():
        yield f"a key with a value of {size} bytes", "bytes", "lower", one(each)


def _dp_vs_ddp(r):
    for row in r["rows"]:
        yield f"global batch {row['batch']}: {row['mode']}", "steps/s", "higher", row["rate"]


def _parameter_server(r):
    for row in r["rows"]:
        yield f"{row['bytes']} bytes, {row['ranks']} ranks: {row['way']}", "us", "lower", row["micros"]


def _scaling_rule(r):
    for row in r["rows"]:
        yield f"{row['ranks']} ranks, {row['rule']}: to the loss", "s", "lower", row["seconds"]


_OF = {name: globals()[f"_{name}"] for name in BENCHES}


def metrics(benches):
    """{"bench: metric": Metric} of all that the results have."""
    found = {}
    for bench, result in benches.items():
        for name, unit, better, summary in _OF[bench](result):
            found[f"{bench}: {name}"] = Metric(unit, better, summary)
    return found


def _read(path):
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    except ValueError:
        raise BadInput(f"{path}: not JSON") from None
    if not isinstance(value, dict):
        raise BadInput(f"{path}: not a result of scripts/bench")
    return value


def _take(path, benches, unfinished, run):
    value = _read(path)
    if isinstance(value.get("benches"), dict):
        run.update({key: each for key, each in value.items() if key != "benches"})
        whole = value["benches"]
        for name, each in whole.items():
            if name not in BENCHES or not isinstance(each, dict):
                raise BadInput(f"{path}: there is no bench '{name}'")
            if each.get("status") != "ok":
                unfinished[name] = f"{each.get('status')}: {each.get('text')}"
        found = {name: each.get("result") for name, each in whole.items() if each.get("status") == "ok"}
    elif path.stem in BENCHES:
        found = {path.stem: value}
    else:
        raise BadInput(f"{path}: not a result of scripts/bench: no 'benches' in it, and no bench is called '{path.stem}'")
    for name, result in found.items():
        try:
            for metric in metrics({name: result}).values():
                if not all(math.isfinite(metric.summary[key]) for key in ("median", "p25", "p75", "runs")):
                    raise ValueError
            if not isinstance(result.get("machine", {}), dict):
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError):
            raise BadInput(f"{path}: not a result of scripts/bench {name}") from None
    benches.update(found)


def load(paths):
    """Files of single benches, a file of a whole run, or folders of either; later ones replace earlier ones. BadInput."""
    benches, unfinished, run = {}, {}, {}
    for path in map(pathlib.Path, paths):
        files = [path]
        if path.is_dir():
            files = [path / WHOLE_RUN] if (path / WHOLE_RUN).exists() else sorted(each for each in path.glob("*.json") if each.stem in BENCHES)
            if not files:
                raise BadInput(f"{path}: no result of scripts/bench in it")
        for file in files:
            _take(file, benches, unfinished, run)
    return Results(", ".join(map(str, paths)), {name: benches[name] for name in BENCHES if name in benches}, unfinished, run)


def series(benches):
    """{title: (unit of n, unit, {n: summary})}: what was measured at several sizes, and is expected to grow with them."""
    found = {}
    launch, store, rendezvous = (benches.get(name, {}) for name in ("launch", "store", "rendezvous"))
    for group, text, what in (("sizes", "launch over ranks of one node", "ranks"), ("nodes", "launch over nodes, all on one machine", "nodes")):
        points = {int(n): each["tools"]["muster"] for n, each in launch.get(group, {}).items() if "muster" in each["tools"]}
        found[text] = what, "ms", points
    for step, text in (("join", "join"), ("failure", "all told of a failure"), ("again", "all in the next world"), ("finish", "all know of the end")):
        found[text] = "nodes", "ms", {int(n): cell[step]["ms"] for n, cell in rendezvous.get("nodes", {}).items()}
    for operation, sizes in store.get("loads", {}).items():
        found[f"store, {operation}: median latency"] = "connections", "us", {int(n): servers["musterd"]["p50_us"] for n, servers in sizes.items()}
    return {title: each for title, each in found.items() if each[2]}
