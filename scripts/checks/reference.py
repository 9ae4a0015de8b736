# launcher/reference.md: its tables of options, rendezvous keys, exit codes and variables come from the tables in the code.
# SPDX-License-Identifier: Apache-2.0
# scripts/lint readme compares; python3 scripts/checks/reference.py writes them again.
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "launcher/reference.md"
GROUPS = "launcher/cli/help.cc"


def rows(path, kind):
    """Rows `Kind{a, b, ...}` of a table in C++: each field as text; neighbouring string literals are one field."""
    out = []
    for body in re.split(rf"\b{kind}\{{", (ROOT / path).read_text())[1:]:
        fields, quoted, depth = [""], False, 0
        for token in re.findall(r'"(?:[^"\\]|\\.)*"|//[^\n]*|[^"]', body):
            if token.startswith('"'):
                fields[-1] = ("" if not quoted else fields[-1]) + re.sub(r"\\(.)", r"\1", token[1:-1])
                quoted = True
            elif token == "}" and depth == 0:
                break
            elif token == "," and depth == 0:
                fields.append("")
                quoted = False
            elif not token.isspace() and not token.startswith("//"):
                depth += {"{": 1, "}": -1}.get(token, 0)
                fields[-1] += "" if quoted else token
        out.append([field for field in fields])
    return out


def options():
    """The rows of option_table.h, by the names of its fields."""
    out = []
    for name, letter, target, metavar, default, group, traits, meaning, *_ in rows("launcher/cli/option_table.h", "OptionRow"):
        traits = set(traits.split("|")) - {"0"}
        out.append({"name": name, "letter": letter.strip("'0"), "metavar": metavar, "default": default, "group": group,
                    "traits": traits, "meaning": meaning, "own": "kOwn" in traits, "takes": bool(metavar),
                    "variable": "" if "kTypedOnly" in traits else "PET_" + name.upper().replace("-", "_")})
    return out


def _cell(text):
    return text.replace("|", "\\|")


def _table(head, body):
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(_cell(cell) for cell in row).replace("|  |", "| |") + " |" for row in body])


def _options():
    groups = re.findall(r"std::pair\{(Group::k\w+), \"([^\"]+)\"\}", (ROOT / GROUPS).read_text())
    blocks = []
    for group, title in groups:
        body = []
        for row in options():
            if row["group"] == group:
                name = f"--{row['name']}" + (f"={row['metavar']}" if row["metavar"] else "")
                if row["letter"]:
                    name += f", -{row['letter']}"
                variable = f"`{row['variable']}`" if row["variable"] else ""
                body.append([f"`{name}`", row["default"], variable, row["meaning"]])
        blocks.append(f"### {title}\n\n" + _table(["option", "default", "variable", "meaning"], body))
    return "\n\n".join(blocks)


def _keys():
    return _table(["key", "default", "meaning"],
                  [[f"`{name}`", default, meaning] for name, default, meaning, *_ in rows("launcher/cli/rdzv_conf.h", "RdzvKey")])


def _exit_codes():
    path = "launcher/job/exit_status.h"
    numbers = dict(re.findall(r"int (kExit\w+) = (\d+);", (ROOT / path).read_text()))
    return _table(["code", "meaning"], [[numbers[name], meaning] for name, meaning in rows(path, "ExitCode")])


def _variables():
    path = "rendezvous/base/env_contract.h"
    names = dict(re.findall(r'string_view (k\w+) = "(\w+)";', (ROOT / path).read_text()))
    return _table(["variable", "meaning"], [[f"`{names[name]}`", meaning] for name, _, meaning in rows(path, "Variable")])


BLOCKS = {"options": _options, "rdzv-conf": _keys, "exit codes": _exit_codes, "environment": _variables}


def generated(text):
    """`text` with each block between its marks as the code has it."""
    for name, make in BLOCKS.items():
        marks = f"<!-- {name}: from the code -->", f"<!-- end of {name} -->"
        begin, end = text.index(marks[0]) + len(marks[0]), text.index(marks[1])
        text = f"{text[:begin]}\n\n{make()}\n\n{text[end:]}"
    return text


def run():
    text = REFERENCE.read_text(encoding="utf-8")
    problems = []
    if generated(text) != text:
        problems.append("launcher/reference.md: its tables are not the code's; run python3 scripts/checks/reference.py")
    events = set(re.findall(r'\b(?:write|put|event_line)\("(\w+)",', (ROOT / "launcher/telemetry/telemetry.cc").read_text()))
    section = text.partition("## Events")[2].partition("\n## ")[0]
    told = set(re.findall(r"^\| `(\w+)` ", section, re.MULTILINE))
    problems += [f"launcher/reference.md: there is no event {name}" for name in sorted(told - events)]
    problems += [f"launcher/reference.md: the event {name} is missing" for name in sorted(events - told)]
    return problems


if __name__ == "__main__":
    REFERENCE.write_text(generated(REFERENCE.read_text(encoding="utf-8")), encoding="utf-8")
