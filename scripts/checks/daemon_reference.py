# rendezvous/reference.md: musterd's options and metrics, from the tables in the code. scripts/lint readme compares;
# python3 scripts/checks/daemon_reference.py writes it again.
# SPDX-License-Identifier: Apache-2.0
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "rendezvous/reference.md"
_STRING = r'"((?:[^"\\]|\\.)*)"'
_HEAD = """# Reference of musterd

The options and metrics of `musterd`, made from the code; after a change there run `python3 scripts/checks/daemon_reference.py`.
[README.md](README.md) says what they are for. Sizes take units (`KiB`, `MiB`, `GiB`).
The variable `MUSTER_SECRET` is the secret where no file is named. SIGHUP reads secrets and certificates again; SIGINT and SIGTERM end
`musterd` in order. Exit status: 0 after that, 1 when it cannot serve, 2 for wrong arguments.

## Options
"""


def options():
    """(group, name, value, default, meaning) of each option that define() in options.cc binds."""
    text = re.sub(r'"\n\s*"', "", (ROOT / "rendezvous/musterd/options.cc").read_text(encoding="utf-8"))
    group, values = "", {"seconds": "SECONDS", "size": "SIZE", "count": "N"}
    for kind, rest in re.findall(r"bind\.(\w+)\((.*?);\n", text, re.DOTALL):
        first, *strings = [re.sub(r"\\(.)", r"\1", each) for each in re.findall(_STRING, rest)]
        if kind == "group":
            group = first
        elif kind == "flag":
            yield group, first, "", "", strings[0]
        else:
            yield group, first, *([values[kind]] if kind in values else []), *strings[: 2 if kind in values else 3]


def metrics():
    """(name, kind, labels, meaning) of each family of metrics. The labels are those of the samples that follow its name."""
    for path in ("rendezvous/status/daemon_metrics.cc", "rendezvous/base/process_usage.cc"):
        text = re.sub(r'"\s*"', "", (ROOT / path).read_text(encoding="utf-8"))
        _, *families = re.split(r'\b(gauge|counter|family|each)\("(\w+)",', text)
        for call, name, rest in zip(families[::3], families[1::3], families[2::3]):
            kind = re.search(r"MetricType::k(\w+)", rest.partition(";\n")[0])
            samples = "".join(re.findall(r"sample\((.*?)\);", rest.partition("\n}\n")[0], re.DOTALL))
            labels = ["run_id"] if call == "each" else list(dict.fromkeys(re.findall(r'\{"(\w+)",', samples)))
            yield (name, kind[1].lower() if kind else {"counter": "counter"}.get(call, "gauge"),
                   ", ".join(f"`{label}`" for label in labels), re.search(_STRING, rest)[1])


def made():
    out, last = [_HEAD], ""
    for group, name, value, default, meaning in options():
        if group != last:
            out.append(f"### {group}\n\n| option | default | meaning |\n| --- | --- | --- |")
            last = group
        out.append(f"| `{name}{'=' + value if value else ''}` | {default} | {meaning} |".replace("|  |", "| |"))
    lines = "\n".join(out).replace("|\n###", "|\n\n###")
    lines += "\n\n## Metrics\n\n| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n"
    return lines + "".join(f"| `{name}` | {kind} | {labels} | {meaning} |\n".replace("|  |", "| |") for name, kind, labels, meaning in metrics())


def run():
    if REFERENCE.is_file() and REFERENCE.read_text(encoding="utf-8") == made():
        return []
    return ["rendezvous/reference.md: its tables are not the code's; run python3 scripts/checks/daemon_reference.py"]


if __name__ == "__main__":
    REFERENCE.write_text(made(), encoding="utf-8")
