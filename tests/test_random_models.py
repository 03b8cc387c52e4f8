"""60 random networks, bit-equal to both oracles; ``python tests/random_models.py`` checks as many more as wanted."""

import pytest
import random_models

CHUNK = 10


@pytest.mark.parametrize("first", range(0, 60, CHUNK))
def test_random_networks_equal_oracles(first):
    results = [random_models.difference(seed) for seed in range(first, first + CHUNK)]
    assert [found for found, _ in results if found] == []
    assert sum(varies for _, varies in results) >= 0.7 * CHUNK, "constant outputs prove nothing"
