# The seed table: training loss over the last full 1000 steps at batch 4 per rank, lr 0.001, momentum 0.9, for five
# pairs of ranks and epochs. The bands are what six seeds of PyTorch gave, with a margin.
# SPDX-License-Identifier: Apache-2.0
import pytest

from test_fashion_mnist import job, ranks, summary_of  # noqa: F401 (fixtures)


@pytest.mark.parametrize("world, epochs, low, high", [
    (1, 1, 0.39, 0.46),
    (2, 1, 0.46, 0.54),
    (2, 2, 0.36, 0.43),
    (4, 1, 0.59, 0.68),
    (4, 4, 0.34, 0.40),
])
def test_the_training_loss_is_in_its_band(job, ranks, world, epochs, low, high):  # noqa: F811
    flags = (f"--epochs={epochs}", "--batch-size=4", "--lr=0.001", "--momentum=0.9", "--log-every=1000", "--seed=1",
             "--device=cpu")
    result = job(*flags, seconds=600) if world == 1 else ranks(world, *flags, seconds=600)[0]
    assert result.returncode == 0, result.stderr
    loss = summary_of(result.stdout)["train_loss"]
    print(f"{world} ranks, {epochs} epochs: training loss {loss:.4f} (band {low}-{high})")
    assert low <= loss <= high, result.stdout
