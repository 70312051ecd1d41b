#!/usr/bin/env python3
"""Where the time of a command goes on a GPU: when its kernels begin and end, of graphs too, though they overlap.

Of each kernel, by its blocks: how long it ran, how long before the end of the launch ahead it began, and how long after that
it ended, which adds up to all. It takes about a tenth of the speed. Needs the toolkit (CUPTI) and a C compiler.

Example: benches/gpu/timeline.py target/release/kvas bench -m MODEL --device cuda -p 0 -n 24 -r 1
"""

import argparse
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
    if run(["cc", "-shared", "-fPIC", *flags, SOURCE, "-o", out, cupti]) != 0:
        sys.exit(f"{SOURCE}: cc did not build it")
    return out


def run(command, **more):
    try:
        return subprocess.run(command, **more).returncode
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


def table(lines, last):
    launches = []
    for number, line in enumerate(lines, 1):
        try:
            start, end, name, *grid = line.split()
            launches.append((int(start), int(end), name, tuple(map(int, grid))))
        except ValueError:
            sys.exit(f"timeline, line {number}: expected begin, end, kernel and blocks")
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
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--last", type=int, default=1200, metavar="N", help="of the last N launches (default: 1200)")
    parser.add_argument("--file", help="a timeline that was written before, instead of a command")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run")
    asked = parser.parse_args()
    if asked.last < 1 or (asked.file is None) == (not asked.command):
        parser.error("expected a command or --file, and at least one launch")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        timeline = pathlib.Path(asked.file) if asked.file else folder / "timeline"
        if asked.command:
            injected = {"CUDA_INJECTION64_PATH": str(library(folder)), "TIMELINE": str(timeline)}
            code = run(asked.command, env=os.environ | injected)
            if code != 0:
                sys.exit(code)
        try:
            lines = timeline.read_text().splitlines()
        except OSError as error:
            sys.exit(f"{timeline}: {error.strerror}: expected what the driver writes when it loads CUPTI")
    table(lines, asked.last)


main()
