# `scripts/bench report`: one HTML file of results, with plots as inline SVG, the growth of the measured series and what a large
# job runs out of first. Measures nothing; without matplotlib it has tables alone, and says so.
# SPDX-License-Identifier: Apache-2.0
import html
import json
import math
import os
import pathlib
import statistics
import subprocess

import compare
import growth
import measure
import metrics

NODES, RANKS = 10000, 8
WORST = 1.0  # error of a size that was left out, above which a fit says nothing of sizes beyond
ASSUMPTIONS = f"""A fit is least squares of relative errors over the medians. Of a + b n, a + b log n and a + b n log n that one is taken which
predicts best a size that was left out; its error there is given. The interval has 90 % of further measurements, if the model holds
at that size: no fit knows of a queue, a cache or a table that is full only beyond what was measured. With three sizes the interval
says little. All series are of one machine, where client, server and all agents share the cores: launches over nodes add up the work of all
nodes, which nodes of their own do at the same time, and joins have neither a network's delay nor its losses. A start of {NODES:,} nodes
with {RANKS} ranks each is a node's launch, a join of {NODES:,} agents and the check-in of {NODES * RANKS:,} clients.
A limit beyond ten times the largest size that was measured is an order of magnitude."""
STYLE = """body{font:14px/1.45 sans-serif;max-width:64em;margin:2em auto;padding:0 1em;color:#111;background:#fff}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}table{border-collapse:collapse;margin:.6em 0;font-size:.88em}
td,th{padding:.15em .7em;border-bottom:1px solid #ccc;text-align:left;vertical-align:top}td.n,th.n{text-align:right;white-space:nowrap}
figure{margin:1.2em 0;break-inside:avoid}figure>strong,svg{display:block}figcaption{color:#333;font-size:.88em}svg{max-width:100%;height:auto}
.note{color:#333}@media print{body{font-size:10.5pt;margin:0}h2{break-after:avoid}tr{break-inside:avoid}}"""


def point(x, summary):
    return [x, summary["median"], summary["p25"], summary["p75"]]


def chart(bench, title, kind, x, y, series, **more):
    """A line of one size would be a dot: then bars."""
    if kind == "lines" and len({each[0] for points in series.values() for each in points}) == 1:
        kind, series = "bars", {"": [[name, *each[1:]] for name, points in series.items() for each in points]}
        title = f"{title}, at one size"
    return {"bench": bench, "title": title, "kind": kind, "x": x, "y": y, **more,
            "series": [{"name": name, "points": points} for name, points in series.items() if points]}


def _launch(launch):
    for group, title, x in (("sizes", "Launch over ranks of one node", "ranks"), ("nodes", "Launch over nodes, all on one machine", "nodes")):
        series = {}
        for n, each in sorted(launch.get(group, {}).items(), key=lambda item: int(item[0])):
            for tool, summary in each["tools"].items():
                series.setdefault(tool, []).append(point(int(n), summary))
        yield chart("launch", title, "lines", x, "ms from start to exit", series)
    deaths = launch.get("deaths", {})
    yield chart("launch", "From a worker's death until all are stopped, and until all run again", "bars", "", "ms",
                {f"all {what}": [point(title, each[what]) for title, each in deaths.items()] for what in ("stopped", "restarted")}, log=True)
    yield chart("launch", "Memory of an agent while its workers run", "bars", "", "PSS, KiB (measured once)",
                {who: [point(title, metrics.one(each[f"{who}_kb"]["pss"])) for title, each in launch.get("memory", {}).items()] for who in ("agent", "guardian")})


def _store(store):
    for operation, sizes in store["loads"].items():
        series = {}
        for n, servers in sorted(sizes.items(), key=lambda item: int(item[0])):
            for server, each in servers.items():
                series.setdefault(server, []).append(point(int(n), each["per_second"]))
        yield chart("store", f"Store over connections: {operation}", "lines", "connections", "operations a second", series)


def _rendezvous(rendezvous):
    series = {step: [point(int(n), cell[step]["ms"]) for n, cell in rendezvous["nodes"].items()] for step in ("join", "failure", "again", "finish")}
    for nodes, ways in rendezvous.get("torchrun", {}).items():
        for way in list(ways)[1:]:
            series.setdefault(f"join by {way}", []).append(point(int(nodes), ways[way]))
    yield chart("rendezvous", "Joins over nodes", "lines", "nodes", "ms until all have it", series)
    yield chart("rendezvous", "Memory of the coordinator over nodes", "lines", "nodes", "bytes of each agent",
                {"musterd": [point(int(n), cell["bytes_per_agent"]) for n, cell in rendezvous["nodes"].items()]})


def _all_reduce(result):
    series = {}
    for row in result["rows"]:
        series.setdefault(row["transport"], []).append(point(row["bytes"], row))
    yield chart("all_reduce", f"All-reduce over bytes, {result['ranks']} ranks", "lines", "bytes", "us", series)


def _train(train):
    series = {"muster": [], "PyTorch": []}
    for case in train["cases"]:
        ranks, images = case["ranks"], case["batch_size"] * case["ranks"]
        title = f"{case['model']}, batch {case['batch_size']}, {ranks} rank{'s' if ranks > 1 else ''}"
        for name, side in (("muster", "muster"), ("PyTorch", "torch")):
            series[name].append(point(title, metrics.scaled(case[side], images)))
    yield chart("train", "Training throughput and scaling", "bars", "", "images a second, of all ranks", series, log=True)


def _scaling(result):
    series = {}
    for row in result["rows"]:
        series.setdefault(row["rule"], []).append(point(f"{row['ranks']} ranks", row["seconds"]))
    yield chart("scaling_rule", "Time to a fixed test loss", "bars", "", "s", series)


def _listed(bench):
    """All that a bench has, one chart for each unit."""
    def charts(result):
        by_unit = {}
        for name, metric in metrics.metrics({bench: result}).items():
            by_unit.setdefault(metric.unit, []).append(point(name.removeprefix(f"{bench}: "), metric.summary))
        for unit, points in by_unit.items():
            yield chart(bench, f"{bench}, {unit}", "bars", "", unit, {unit: points}, log=True)
    return charts


_CHARTS = {"launch": _launch, "store": _store, "rendezvous": _rendezvous, "all_reduce": _all_reduce, "train": _train, "scaling_rule": _scaling,
           **{bench: _listed(bench) for bench in ("data", "ckpt", "logs", "dp_vs_ddp", "parameter_server")}}


def charts(benches):
    return [each for bench in _CHARTS if bench in benches for each in _CHARTS[bench](benches[bench]) if each["series"]]


class Growth:
    """Fits of all series, and what follows for a job of NODES x RANKS."""

    def __init__(self, benches):
        self.fits, self.unfit, self.limits = {}, [], []
        for title, (unit, value, points) in metrics.series(benches).items():
            fitted = growth.fit([(n, s["median"]) for n, s in points.items() if s["median"] > 0])
            if fitted and fitted.error > WORST:
                self.unfit.append(f"{title}: the best model, {fitted.model}, misses a size that was left out by {100 * fitted.error:.0f} %")
            elif fitted:
                self.fits[title] = unit, value, points, fitted
            else:
                self.unfit.append(f"{title}: measured at {len(points)} size{'s' if len(points) > 1 else ''}, {growth.FEWEST} are needed")
        if "rendezvous" in benches:
            self.limits = growth.limits(self._costs(benches["rendezvous"]), NODES, RANKS)

    def _costs(self, rendezvous):
        largest = lambda cells: cells[max(cells, key=int)] if cells else {}  # noqa: E731
        median = lambda cell, key: cell[key]["median"] if cell else 0.0  # noqa: E731
        node, client, behind = (largest(rendezvous.get(key, {})) for key in ("nodes", "clients", "clients_behind_agents"))
        fits = {title: each[-1] for title, each in self.fits.items()}
        return growth.Costs(
            rendezvous["descriptors"], median(node, "bytes_per_agent"), median(client, "server_bytes_per_client"),
            median(client, "server_cpu_us_per_client"), median(behind, "head_connections") / behind["agents"] if behind else 0.0,
            median(behind, "head_bytes_per_client"), 1000 * median(behind, "head_cpu_ms") / max(map(int, rendezvous["clients_behind_agents"])) if behind else 0.0,
            fits.get("join"), fits.get("all told of a failure"))

    @staticmethod
    def target(unit):
        """How large this series gets in such a job."""
        return {"nodes": NODES, "ranks": RANKS, "connections": NODES * RANKS}[unit]

    def rows(self):
        """Head and lines of the table of fits."""
        yield ["series", "model", "a", "b", "error of a size left out", "measured up to", "at", "90 % interval", "measured there"]
        for title, (unit, value, points, fitted) in self.fits.items():
            n, top = self.target(unit), max(points)
            low, high = fitted.interval(n)
            yield [title, fitted.model, f"{compare.number(fitted.a)} {value}", f"{compare.number(fitted.b)} {value}", f"{100 * fitted.error:.0f} %", f"{top:,} {unit}",
                   f"{n:,}: {compare.number(fitted.at(n))} {value}", f"{compare.number(low)} to {compare.number(high)}",
                   compare.cell(points[n]) if n in points else "no"]

    def limit_rows(self):
        yield ["what ends", "at nodes", f"needed by {NODES:,} x {RANKS}", "why"]
        for limit in self.limits:
            yield [limit.what, "never" if math.isinf(limit.ends_at) else f"{limit.ends_at:,.0f}", limit.at_target, limit.why]

    def chart(self, unit, value):
        series = []
        for title, (its_unit, its_value, points, fitted) in self.fits.items():
            if (its_unit, its_value) == (unit, value):
                top = max(self.target(unit), *points)
                steps = [min(points) * (top / min(points)) ** (i / 60) for i in range(61)]
                tiny = 1e-3 * min(s["median"] for s in points.values())  # logarithmic axes have no zero
                series.append({"name": title, "points": [point(n, s) for n, s in sorted(points.items())],
                               "fit": [[n, max(tiny, fitted.at(n)), *(max(tiny, each) for each in fitted.interval(n))] for n in steps]})
        return {"bench": "", "title": f"Growth over {unit}", "kind": "lines", "x": unit, "y": value, "series": series}

    def charts(self):
        kinds = dict.fromkeys((unit, value) for unit, value, _, _ in self.fits.values())
        return [self.chart(*kind) for kind in kinds]


def drawn(specs):
    """SVG texts, or None where matplotlib is missing."""
    path = measure.ROOT / ".venv/matplotlib"
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "MPLCONFIGDIR": os.environ.get("MPLCONFIGDIR", str(measure.ROOT / "build"))}
    if path.is_dir():
        env["PYTHONPATH"] = str(path)
    done = subprocess.run(["/usr/bin/python3", str(measure.ROOT / "tests/bench/charts.py")], input=json.dumps(specs), env=env, text=True,
                          capture_output=True, timeout=300)
    if done.returncode == 3:
        return None
    if done.returncode:
        raise measure.Failed(f"charts.py: exit status {done.returncode}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def table(rows, numbers=()):
    """HTML of a head and lines; the columns of these numbers stand to the right."""
    head, *lines = rows
    kind = lambda column: ' class="n"' if column in numbers else ""  # noqa: E731
    text = "".join(f"<th{kind(i)}>{html.escape(str(each))}</th>" for i, each in enumerate(head))
    body = "".join("<tr>" + "".join(f"<td{kind(i)}>{html.escape(str(each))}</td>" for i, each in enumerate(line)) + "</tr>\n" for line in lines)
    return f"<table><thead><tr>{text}</tr></thead><tbody>\n{body}</tbody></table>\n"


def load_of(result):
    m = result.get("machine", {})
    if "load_during" not in m:
        return "load not recorded"
    return f"load {m['load_during']:.1f} at the end, {m['load_before']:.1f} before, on {m['cores']} cores"


def plain(rows):
    rows = [list(map(str, row)) for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(each.ljust(width) for each, width in zip(row, widths)).rstrip() for row in rows)


def page(results):
    """The HTML of these results, and whether it has plots."""
    out, growing, all_metrics = [], Growth(results.benches), metrics.metrics(results.benches)
    specs = charts(results.benches)
    pictures = drawn(specs + growing.charts())
    out.append("<h1>muster, measured</h1>\n")
    out.append(f"<p class=note>{html.escape(results.source)}. Medians, with the quartiles p25 and p75 as bars or in brackets. "
               "A figure that was measured under load says so in its caption.</p>\n")
    rows, hosts = [["bench", "state", "commit", "date", "load before", "load at the end", "samples", "machine"]], []
    for name in metrics.BENCHES:
        if name in results.benches:
            m = results.benches[name].get("machine", {})
            host = (f"{m.get('cores', '?')} cores of {m.get('cpu', '?')}, {m.get('system', '?')}, kernel {m.get('kernel', '?')}, {m.get('compiler', '?')}")
            if host not in hosts:
                hosts.append(host)
            runs = [metric.summary["runs"] for key, metric in all_metrics.items() if key.startswith(f"{name}: ")]
            rows.append([name, "ok", f"{m.get('commit', '?')}{' with changes' if m.get('dirty') else ''}", m.get("date", "?"), f"{m.get('load_before', math.nan):.1f}",
                         f"{m.get('load_during', math.nan):.1f}", f"{min(runs)} to {max(runs)}" if runs else "0", hosts.index(host) + 1])
        else:
            rows.append([name, results.unfinished.get(name, "not measured"), *[""] * 6])
    out.append(table(rows, {4, 5}))
    out += [f"<p class=note>Machine {number}: {html.escape(host)}.</p>\n" for number, host in enumerate(hosts, 1)]
    if results.run.get("peers"):
        out.append("<p class=note>Compared with: " + html.escape("; ".join(f"{name}: {version or 'missing'}" for name, version in results.run["peers"].items())) + "</p>\n")
    if pictures is None:
        out.append("<p><strong>Without plots: matplotlib is missing; scripts/setup --full installs it.</strong></p>\n")
    out.append("<h2>Measured</h2>\n")
    for index, spec in enumerate(specs):
        out.append(_figure(spec, pictures and pictures[index], load_of(results.benches[spec["bench"]])))
    out.append(f"<h2>Growth, drawn out to {NODES:,} nodes with {RANKS} ranks each</h2>\n<p class=note>{html.escape(ASSUMPTIONS)}</p>\n")
    if growing.fits:
        out.append(table(growing.rows(), {2, 3, 4, 5, 6, 7, 8}))
    for index, spec in enumerate(growing.charts()):
        out.append(_figure(spec, pictures and pictures[len(specs) + index], "points are measured, lines are fits with their 90 % interval"))
    out += [f"<p class=note>Not fitted: {html.escape(each)}.</p>\n" for each in growing.unfit]
    if growing.limits:
        out.append(f"<h2>What breaks first</h2>\n{table(growing.limit_rows(), {1, 2})}")
    rows = [["metric", "unit", "better", "median [p25, p75]", "runs"]]
    rows += [[name, each.unit, each.better, compare.cell(each.summary), each.summary["runs"]] for name, each in all_metrics.items()]
    out.append(f"<h2>All {len(all_metrics)} metrics</h2>\n{table(rows, {3, 4})}")
    text = "".join(out)
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>muster, measured</title>\n<style>{STYLE}</style></head>\n'
            f"<body>\n{text}</body></html>\n"), pictures is not None


def _figure(spec, svg, how):
    samples = [point for series in spec["series"] for point in series["points"]]
    spreads = [(high - low) / median for _, median, low, high in samples if median]
    spread = f"p25 to p75 is {100 * statistics.median(spreads):.0f} % of the median in the middle, {100 * max(spreads):.0f} % at most" if spreads else ""
    values = table([["", "", f"median [p25, p75], {spec['y']}"]] + [
        [series["name"], f"{x:,}" if isinstance(x, int) else x, f"{compare.number(m)} [{compare.number(low)}, {compare.number(high)}]"]
        for series in spec["series"] for x, m, low, high in series["points"]], {2})
    return (f"<figure><strong>{html.escape(spec['title'])}</strong>\n{svg or ''}\n<figcaption>Unit: {html.escape(spec['y'])}; {html.escape(spread)}; "
            f"{html.escape(how)}.</figcaption>\n{values}</figure>\n")


def write(results, path):
    """Writes the report and prints what it says of growth."""
    text, has_plots = page(results)
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    growing = Growth(results.benches)
    print(f"\ngrowth, drawn out to {NODES:,} nodes with {RANKS} ranks each\n{ASSUMPTIONS}\n")
    if growing.fits:
        print(plain(growing.rows()))
    for line in growing.unfit:
        print(f"not fitted: {line}")
    if growing.limits:
        print(f"\nwhat breaks first\n{plain(growing.limit_rows())}")
    if not has_plots:
        print("without plots: matplotlib is missing; scripts/setup --full installs it")
    print(f"\nwrote {path}")
