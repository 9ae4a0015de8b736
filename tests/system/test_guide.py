# Every command of worker_runtime/guide.md and guide.zh.md, typed as it stands there, prints what stands below it.
# SPDX-License-Identifier: Apache-2.0
import re
import subprocess

import pytest

from guide_support import GUIDES, HERE, blocks, differences, environment, fences
from image_folders import MISSING, make_image_folders
from launcher_support import BIN, clean_environment

SECTIONS = sorted({block.section for block in blocks(GUIDES["en"]) if block.marker in HERE})


def test_both_guides_have_the_same_commands_output_and_code_in_the_same_order():
    for language in ("console", "cpp", "yaml", "cmake"):
        first, second = (list(fences(text, language)) for text in GUIDES.values())
        assert first == second


@pytest.mark.parametrize("text", GUIDES.values(), ids=GUIDES)
def test_a_guide_finds_every_recipe_from_its_table(text):
    recipes = re.findall(r"^## (\d+)\. (.*)$", text, re.M)
    assert [int(number) for number, _ in recipes] == list(range(1, len(recipes) + 1))
    assert {block.section for block in blocks(text)} <= {int(number) for number, _ in recipes}
    named = re.findall(r"\[(\d+)\. ([^\]]*)\]\(#([^)]*)\)", text.split("\n## ", 1)[0])
    # As GitHub makes an anchor of a heading.
    assert [(number, title, re.sub(r"[^\w -]", "", f"{number}. {title}".lower()).replace(" ", "-")) for number, title in recipes] == named


def test_code_of_the_guides_is_code_that_is_built(root):
    built = [re.sub(r"\s+", " ", path.read_text()) for folder in ("tests/embed", "worker_runtime/examples")
             for path in (root / folder).glob("*.cc")]
    for _, _, text in fences(GUIDES["en"], "cpp"):
        assert any(re.sub(r"\s+", " ", text).strip() in source for source in built), text


@pytest.mark.parametrize("section", SECTIONS)
def test_the_commands_of_a_recipe_print_what_the_guide_says(section, tmp_path):
    gpus = tmp_path / "gpus"
    gpus.write_text("".join(f"GPU-{i}000 0000:{0x17 + i:02x}:00.0 0 0 0 -\n" for i in range(4)))
    if any(block.marker == "images" for block in blocks(GUIDES["en"]) if block.section == section):
        if MISSING:
            pytest.skip(MISSING)
        make_image_folders(tmp_path / "images", images=4)
    for block in blocks(GUIDES["en"]):
        if block.section != section or block.marker not in HERE:
            continue
        commands = tmp_path / "commands"  # a file: its words are not those of a process
        commands.write_text("\n".join(block.commands))
        described = {"MUSTER_NVML_LIBRARY": BIN / "libfake_nvml.so", "FAKE_NVML": gpus} if block.marker == "four-gpus" else {}
        env = environment(BIN, tmp_path, clean_environment(), **described)
        done = subprocess.run(["bash", commands], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=60, stdin=subprocess.DEVNULL, cwd=tmp_path, env=env)
        assert not differences(block, done.stdout), done.stdout
