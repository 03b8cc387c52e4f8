"""What the Neural-ART compiler is given: memory pools that keep weights apart in RAM, a profile, a command line.

Interfaces as ST documents them: `stedgeai generate --st-neural-art PROFILE@FILE`, the profile's JSON, the pools' JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from converters.errors import UserError
from converters.neural_art.layouts import Dims
from converters.neural_art.solver import filters_of
from converters.tflite_model import Graph, trainable_segments

VARIANTS = ("nucleo", "dk")  # NUCLEO-N657X0-Q, STM32N6570-DK
PROFILE = "weights_in_ram"
MPOOL_FILE, PROFILE_FILE = "weights_in_ram.mpool", "user_neuralart.json"

# No epoch controller (it bakes scales and biases into a command stream), no virtual pools (a filter could straddle
# two), all buffers listed (the solver needs them). --mvei is left out: STEdgeAI 4 rejects it.
OPTIONS = "-O3 --all-buffers-info --cache-maintenance --native-float --Oauto-sched --Omax-ca-pipe 4 --Os"

BANK = 448 << 10  # AXISRAM3 to 6 lie one after the other
NPU_RAM, BANKS = 0x34200000, 4
CPU_RAM, CPU_RAM_SIZE = 0x34100000, 1 << 20  # AXISRAM2, between the application in AXISRAM1 and the NPU's banks
PSRAM, PSRAM_SIZE = 0x90000000, 32767 << 10  # the DK's, on XSPI1; its last KiB is not used (docs/stm32n6.md)

# What the compiler weighs pools by: throughput, latency, bytes a cycle, the NPU's clock over the memory's (as
# boards/stm32n6/clocks.c has them), power.
_NPU_SRAM = ("HIGH", "LOW", 8, 1.0, 18.5, 16.2)
_CPU_SRAM = ("MID", "MID", 8, 2.0, 17.3, 15.3)
_PSRAM = ("MID", "HIGH", 2, 16.0, 380, 340)
_COST_KEYS = ("throughput", "latency", "byteWidth", "freqRatio", "read_power", "write_power")


@dataclass(frozen=True)
class MemoryPool:
    name: str
    address: int
    size: int
    rights: str
    costs: tuple[object, ...]

    def as_json(self) -> dict[str, object]:
        """Never cached by the NPU: then cleaning the CPU's cache is all that a write needs."""
        properties = {"rights": self.rights, **dict(zip(_COST_KEYS, self.costs, strict=True))}
        properties |= {"cacheable": "CACHEABLE_OFF", "constants_preferred": str(self.rights == "ACC_READ").lower()}
        return {
            "fname": self.name,
            "name": self.name,
            "fformat": "FORMAT_RAW",
            "prop": properties,
            "offset": {"value": f"{self.address:#x}", "magnitude": "BYTES"},
            "size": {"value": str(self.size >> 10), "magnitude": "KBYTES"},
        }


def parameter_bytes(graph: Graph) -> int:
    """An upper estimate of a network's parameters once it is compiled: filters, and every other constant."""
    segments = trainable_segments(graph)
    filters = filters_of(graph, segments)
    others = {t.data for t in graph.tensors if t.data is not None} - {(s.offset, s.count) for s in segments}
    constants = sum(size + size // 100 + 64 for _, size in others)
    return constants + weight_bytes([(s.op, f.dims) for s, f in zip(segments, filters, strict=True)])


def weight_bytes(filters: Sequence[tuple[str, Dims]]) -> int:
    """Of the filters: (kind of op, dimensions) of each.

    Depthwise filters are inflated up to 8 times; frames pad a byte or two in some hundred; a channel has 2 bytes of
    scale and 4 of bias; buffers begin at multiples of 16.
    """
    total = 0
    for kind, (outputs, rows, columns, inputs) in filters:
        count = outputs * rows * columns * inputs
        channels = inputs if kind == "DEPTHWISE_CONV_2D" else outputs
        total += (8 * count if kind == "DEPTHWISE_CONV_2D" else count + count // 100) + 6 * channels + 64
    return total


def most_for_weights(variant: str) -> int:
    """Bytes of the largest pool for weights that a board has."""
    return PSRAM_SIZE if variant == "dk" else BANKS * BANK


def memory_pools(parameters: int, variant: str) -> tuple[MemoryPool, ...]:
    """Weights in the NPU's first banks, as many as they need; activations in the rest and in AXISRAM2.

    parameters: bytes, see parameter_bytes. What does not fit lies in the DK's PSRAM, which is slower. Raises UserError
    where the board has no memory of that size.
    """
    banks = max(1, -(-parameters // BANK))
    pools = []
    if banks <= BANKS:
        pools.append(MemoryPool("WEIGHTS", NPU_RAM, banks * BANK, "ACC_READ", _NPU_SRAM))
    elif variant == "dk" and parameters <= PSRAM_SIZE:
        pools.append(MemoryPool("WEIGHTS", PSRAM, PSRAM_SIZE, "ACC_READ", _PSRAM))
        banks = 0
    else:
        limit = most_for_weights(variant)
        hint = "" if variant == "dk" else ", or use the DK (--variant dk), which has 32 MiB of PSRAM"
        raise UserError(
            f"the network may need {parameters:,} bytes of RAM for parameters, more than the {limit:,} that are there: "
            f"take a narrower one{hint}."
        )
    if banks < BANKS:
        pools.append(MemoryPool("ACTIVATIONS", NPU_RAM + banks * BANK, (BANKS - banks) * BANK, "ACC_WRITE", _NPU_SRAM))
    return *pools, MemoryPool("CPU_RAM", CPU_RAM, CPU_RAM_SIZE, "ACC_WRITE", _CPU_SRAM)


def mpool_file(pools: Sequence[MemoryPool]) -> str:
    memory = {"cacheinfo": [], "mem_file_prefix": "atonbuf", "mempools": [pool.as_json() for pool in pools]}
    params = [{"paramname": "max_onchip_sram_size", "value": "1024", "magnitude": "KBYTES"}]
    return json.dumps({"params": {"param": params}, "memory": memory}, indent=2) + "\n"


def profile_file() -> str:
    profile = {"memory_pool": f"./{MPOOL_FILE}", "options": OPTIONS}
    return json.dumps({"Globals": {}, "Profiles": {PROFILE: profile}}, indent=2) + "\n"


def command(model: str, output: str) -> list[str]:
    """The compiler's command line, to be run in the directory of the profile."""
    return [
        "stedgeai", "generate", "--model", model, "--target", "stm32n6", "--st-neural-art", f"{PROFILE}@{PROFILE_FILE}",
        "--name", "network", "--input-data-type", "int8", "--output-data-type", "int8", "--output", output,
        "--workspace", f"{output}_ws",
    ]  # fmt: skip
