# The generated parts of documents: README.md's measured figures, from the files under tests/bench/results/, and
# CONTRIBUTING.md's picture of the folders, from the table of include_layers. scripts/format rewrites them, scripts/lint compares.
# SPDX-License-Identifier: Apache-2.0
import json
import re

from . import include_layers, source_tree

_PART = re.compile(r"(<!-- (\w+): [^>]*-->\n).*?(<!-- end -->)", re.DOTALL)


def _result(name):
    return json.loads((source_tree.ROOT / f"tests/bench/results/{name}.json").read_text())


def _number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _cell(figure):
    return f"{_number(figure['median'])} [{_number(figure['p25'])}, {_number(figure['p75'])}]" if figure else ""


def _table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _machine(*names):
    machines = {name: _result(name)["machine"] for name in names}
    shown = sorted({f"{m['cores']} cores of an {m['cpu']}, {m['system']}" for m in machines.values()})
    commits = ", ".join(f"{name} at {m['commit']}" + (" with changes" if m.get("dirty") else "") for name, m in machines.items())
    return f"{'; '.join(shown)}; {commits}"


def _launch():
    launch = _result("launch")
    tools = [tool for tool in launch["sizes"]["256"]["tools"] if tool != "muster"]
    tools.insert(1, "muster")
    rows = [[f"{size} ranks", *(_cell(launch["sizes"][size]["tools"].get(tool)) for tool in tools)] for size in launch["sizes"]]
    rows += [[f"{count} nodes of 2", *(_cell(launch["nodes"][count]["tools"].get(tool)) for tool in tools)]
             for count in launch["nodes"] if count != "1"]
    return "Time from start to exit of a program that does nothing, in ms; nodes are agents on this one machine:\n\n" + \
        _table(["", *tools], rows)


def _deaths():
    rows = [[title, _cell(each["stopped"]), _cell(each["restarted"])] for title, each in _result("launch")["deaths"].items()]
    return "From a worker's death until all others are gone, and until all run again, in ms:\n\n" + \
        _table(["", "all stopped", "all restarted"], rows)


def _store():
    store = _result("store")
    servers = ["musterd", "proxied", "redis", "torch 1.13", "torch libuv"]
    thousands = lambda figure: {key: figure[key] / 1000 for key in ("median", "p25", "p75")}  # noqa: E731
    rows = [[name.upper(), *(_cell(thousands(loads["32"][server]["per_second"])) if server in loads["32"] else ""
                             for server in servers)]
            for name, loads in store["loads"].items() if "32" in loads and name in ("set", "get", "add", "multi_get", "wait_get")]
    return "One operation of the store at a time from each of 32 clients, values of 64 bytes, in thousands per second:\n\n" + \
        _table(["", *servers], rows)


def _gathering():
    rendezvous = _result("rendezvous")
    nodes = rendezvous["nodes"]
    clients, each = max(rendezvous["clients"].items(), key=lambda item: int(item[0]))
    done = each["done_ms"]["median"] if isinstance(each["done_ms"], dict) else each["done_ms"]
    return "Until all agents of a job with a secret have joined, in ms:\n\n" + \
           _table([f"{int(count):,} agents" for count in nodes], [[_cell(each["join"]["ms"]) for each in nodes.values()]]) + \
           f"\n{int(clients):,} store clients each add 1 to a counter and wait for one key; the last is woken after {done / 1000:.1f} s.\n"


def _training():
    train = _result("train")
    rows = [[f"{case['model']}, batch {case['batch_size']}, {case['ranks']} rank{'s' * (case['ranks'] > 1)}", _cell(case["muster"]), _cell(case["torch"]),
             f"{case['ratio']['of_medians']:.1f}"] for case in train["cases"]]
    alone, whole = (train["starts"][name]["milliseconds"]["median"] for name in ("alone", "with FashionMNIST"))
    scaling = " and ".join(f"{ratio['of_medians']:.2f} at batch {batch}" for batch, ratio in train.get("scaling", {}).items())
    return "Training steps per second of each rank on the CPU, one thread each:\n\n" + _table(["", "muster::worker", train["torch"], "ratio"], rows) + \
        f"\nThe first step is done {_number(alone)} ms after exec, {_number(whole)} ms where FashionMNIST is read and unpacked before." + \
        (f" Each of\ntwo ranks has this part of one rank's speed: {scaling}.\n" if scaling else "\n")


def _figures():
    return f"Medians [quartiles]. {_machine('launch', 'store', 'rendezvous', 'train')}.\n\n" + "\n".join(
        part() for part in (_launch, _deaths, _store, _gathering, _training))


FILES = {"README.md": {"figures": _figures}, ".github/CONTRIBUTING.md": {"picture": lambda: f"```mermaid\n{include_layers.picture()}```\n"}}


def rewritten(name, text):
    parts = FILES[name]
    return _PART.sub(lambda match: match[1] + parts[match[2]]() + match[3] if match[2] in parts else match[0], text)


def rewrite():
    for name in FILES:
        path = source_tree.ROOT / name
        path.write_text(rewritten(name, path.read_text()))


def run():
    problems = []
    for name, parts in FILES.items():
        text = source_tree.text(name)
        found = {match[2] for match in _PART.finditer(text)}
        problems += [f"{name}: the generated part '{part}' is missing" for part in parts if part not in found]
        if rewritten(name, text) != text:
            problems.append(f"{name}: the picture or the figures are not those of the code and of tests/bench/results; run scripts/format")
    if (lines := source_tree.text("README.md").count("\n")) > 200:
        problems.append(f"README.md: {lines} lines, at most 200 are read")
    return problems
