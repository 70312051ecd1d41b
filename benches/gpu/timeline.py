#!/usr/bin/env python3
"""Where the time of a command goes on a GPU: when its kernels begin and end, of graphs too, though they overlap.

Of each kernel, by its blocks: how long it ran, how long before the end of the launch ahead it began, and how long after that
it ended, which adds up to all. It takes about a tenth of the speed. Needs the toolkit (CUPTI) and a C compiler.

usage: benches/gpu/timeline.py [--last N] COMMAND…   of the last N launches (default: 1200), such as
       benches/gpu/timeline.py target/release/kvas bench -m MODEL --device cuda -p 0 -n 24 -r 1
       benches/gpu/timeline.py --file TIMELINE       of a timeline that was written before
"""

import collections
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).with_name("timeline.c")


def library(folder):
    """Builds what the driver loads."""
    roots = [root for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda", "/opt/cuda") if root]
    found = [path.resolve() for root in roots for path in pathlib.Path(root).rglob("cupti.h")]
    if not found:
        sys.exit(f"cupti.h: not found in {', '.join(roots)}: set CUDA_HOME to a CUDA toolkit")
    include = found[0].parent
    libraries = sorted(path for root in roots for path in pathlib.Path(root).resolve().rglob("libcupti.so*"))
    if not libraries:
        sys.exit("libcupti.so: not found beside cupti.h")
    text = "".join(path.read_text(errors="replace") for path in include.glob("cupti*.h"))
    record = max(re.findall(r"CUpti_ActivityKernel\d+", text), key=lambda name: int(name.removeprefix("CUpti_ActivityKernel")))
    out, cupti = folder / "timeline.so", libraries[0]
    flags = [f"-DRECORD={record}", f"-I{include}", f"-Wl,-rpath,{cupti.parent}"]
    subprocess.run(["cc", "-shared", "-fPIC", *flags, SOURCE, "-o", out, cupti], check=True)
    return out


def table(lines, last):
    launches = []
    for line in lines:
        start, end, name, *grid = line.split()
        launches.append((int(start), int(end), name, tuple(map(int, grid[:3]))))
    launches = sorted(launches)[-last - 1:]
    if len(launches) < 2:
        sys.exit("no kernels were launched")
    total = launches[-1][1] - launches[0][1]
    groups = collections.defaultdict(list)
    for before, (start, end, name, grid) in zip(launches, launches[1:]):
        groups[name, grid].append((end - start, before[1] - start, end - before[1]))
    print(f"{len(launches) - 1} launches, {total / 1e3:.0f} us; medians, us")
    print(f"{'kernel':36} {'blocks':>14} {'times':>6} {'ran':>8} {'before':>8} {'after':>8} {'of all':>7}")
    for (name, grid), times in sorted(groups.items(), key=lambda group: -sum(after for _, _, after in group[1])):
        ran, before, after = (statistics.median(column) / 1e3 for column in zip(*times))
        share = sum(after for _, _, after in times) / total
        blocks = "x".join(map(str, grid))
        print(f"{name[:36]:36} {blocks:>14} {len(times):6} {ran:8.2f} {before:8.2f} {after:8.2f} {share:7.1%}")


def main():
    arguments, last = sys.argv[1:], 1200
    if arguments[:1] == ["--last"] and len(arguments) > 1:
        last, arguments = int(arguments[1]), arguments[2:]
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.exit(__doc__)
    if arguments[0] == "--file":
        return table(pathlib.Path(arguments[1]).open(), last)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        timeline = folder / "timeline"
        environment = os.environ | {"CUDA_INJECTION64_PATH": str(library(folder)), "TIMELINE": str(timeline)}
        code = subprocess.run(arguments, env=environment).returncode
        if code != 0:
            sys.exit(code)
        table(timeline.open(), last)


main()
