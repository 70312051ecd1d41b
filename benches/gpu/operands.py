#!/usr/bin/env python3
"""Looks through kernels for registers that are written while a product of four warps may still read them.

Such a product (compute capability 9.0) reads its weights from registers while the warps go on, until they wait for it. Code that
loads the next weights to the same registers before that is wrong now and then, and neither the compiler nor compute-sanitizer
says so. All ways through the machine code of every kernel are followed. Needs nvdisasm of the CUDA toolkit.

Example: benches/gpu/operands.py ~/.cache/kvas/kernels/product_*-sm_90a-*.cubin
"""

import argparse
import re
import shutil
import subprocess
import sys

# What names a register first that it does not write.
READS = re.compile(r"(ST|RED|ATOM|LDGSTS|LDGDEPBAR|ISETP|FSETP|PLOP|HGMMA|WARP|R2UR|SYNCS|BAR|DEPBAR|BRA|BSYNC|BSSY|EXIT|NOP|VOTEU|U[A-Z])")
LABEL = re.compile(r"\s*(\.L_x_\d+):")
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?);")


def kernels(cubin, nvdisasm):
    """Instructions and labels of every kernel, in their order."""
    run = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{cubin}: {run.stderr.strip() or 'nvdisasm failed'}")
    lines, found = None, {}
    for line in run.stdout.splitlines():
        if name := re.search(r"\.text\.(\S+):", line):
            lines = found.setdefault(name.group(1), [])
        elif label := LABEL.match(line):
            lines.append(label.group(1))
        elif instruction := INSTRUCTION.search(line):
            lines.append(re.sub(r"^@!?U?P\w+\s+", "@ ", instruction.group(1).strip()))
    return found


def written(text):
    """Registers that an instruction writes."""
    text = text.removeprefix("@ ")
    first = re.search(r"\bR(\d+)\b", text)
    if READS.match(text) or first is None:
        return []
    operation = text.split()[0]
    count = 4 if ".128" in operation or operation.endswith("M88.4") else 2 if ".64" in operation or "WIDE" in operation else 1
    return range(int(first.group(1)), int(first.group(1)) + count)


def overwritten(lines):
    """Instructions that write what a product may still read."""
    labels = {text: at for at, text in enumerate(lines) if text.startswith(".L_x")}
    # A way: where it goes on, operands of groups of products that are under way, and of the group that is being made.
    ways, seen, found = [(0, (), frozenset())], set(), {}
    while ways:
        at, groups, group = ways.pop()
        while at < len(lines):
            text = lines[at]
            if text in labels:
                if (at, groups, group) in seen:
                    break
                seen.add((at, groups, group))
            elif "HGMMA" in text:
                # Sums come first, then weights, in registers or in shared memory.
                if weights := re.match(r"(?:@ )?\S+ R\d+, R(\d+),", text):
                    first = int(weights.group(1))
                    group = group | frozenset(range(first, first + 4))
                if "gsb0" in text:
                    groups, group = (*groups, group), frozenset()
            elif "WARPGROUP.DEPBAR" in text:
                under_way = int(text.rsplit(",", 1)[1], 16)
                groups = groups[max(len(groups) - under_way, 0) :]
            elif any(register in group or any(register in of for of in groups) for register in written(text)):
                found[at] = text
            target = re.search(r"BRA.*?(\.L_x_\d+)", text)
            if target and target.group(1) in labels:
                if text.startswith("@ ") or ".DIV" in text:
                    ways.append((labels[target.group(1)], groups, group))
                else:
                    at = labels[target.group(1)]
                    continue
            if text == "EXIT":
                break
            at += 1
    return found.values()


def main():
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("cubin", nargs="+", help="a compiled file of kernels")
    asked = parser.parse_args()
    nvdisasm = shutil.which("nvdisasm") or shutil.which("nvdisasm", path="/usr/local/cuda/bin")
    if nvdisasm is None:
        sys.exit("nvdisasm: not found: put the programs of the CUDA toolkit into PATH")
    wrong = seen = 0
    for cubin in asked.cubin:
        for name, lines in kernels(cubin, nvdisasm).items():
            if not any("HGMMA" in text for text in lines):
                continue
            seen += 1
            for text in overwritten(lines):
                wrong += 1
                print(f"{cubin}: {name}: {text}: expected to wait for products first")
    print(f"{seen} kernels with products of four warps, {wrong} registers overwritten")
    sys.exit(wrong > 0)


main()
