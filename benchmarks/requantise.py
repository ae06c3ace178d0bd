"""Write the same model in other quantisations, so that engines can be compared on the format each likes best.

    python benchmarks/requantise.py SmolLM2-135M-Instruct.Q4_1.gguf --to Q4_0 Q8_0 F16

Every matrix of the source file is dequantised to float32 and quantised again. A file of four-bit matrices keeps
`token_embd.weight` (and `output.weight`) in Q8_0, as llama.cpp's own quantiser leaves the head in a finer format;
norms and biases stay float32. Metadata and tokenizer are copied unchanged. The values carry the rounding of the source
file as well, so the results serve to compare speed, not quality.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

FILE_TYPES = {
    "F32": LlamaFileType.ALL_F32,
    "F16": LlamaFileType.MOSTLY_F16,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": LlamaFileType.MOSTLY_Q4_0,
    "Q4_1": LlamaFileType.MOSTLY_Q4_1,
}
HEAD = ("token_embd.weight", "output.weight")


def requantise(source: Path, target: Path, name: str) -> None:
    """Write `source` to `target` with its matrices in format `name`, one of `FILE_TYPES`."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        element = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], element)
    writer.add_file_type(FILE_TYPES[name])
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kind = _format(tensor.name, values.ndim, name)
        writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _format(tensor: str, ndim: int, name: str) -> GGMLQuantizationType:
    if ndim < 2:
        return GGMLQuantizationType.F32
    if tensor in HEAD and name.startswith("Q4"):
        return GGMLQuantizationType.Q8_0
    return GGMLQuantizationType[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--to", nargs="+", choices=FILE_TYPES, default=["Q4_0", "Q8_0"])
    parser.add_argument("--out", type=Path, help="folder to write to (default: next to the source)")
    options = parser.parse_args()
    if not options.source.is_file():
        sys.exit(f"{options.source}: no such file")
    stem = options.source.stem.rsplit(".", 1)[0]
    for name in options.to:
        target = (options.out or options.source.parent) / f"{stem}.{name}.gguf"
        if target.resolve() == options.source.resolve():
            sys.exit(f"{target} is the source itself; choose another folder with --out")
        requantise(options.source, target, name)
        print(f"{target}  {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
