#!/usr/bin/env python3
"""What `overlap` gains on the built-in traces: the table of docs/explanation/model.md.

    bench/overlap.py [BUILD]        BUILD is build/release
"""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/release"
CLUSTERS = ("paper-1-10gbe", "paper-2-10gbe", "paper-3-56gbib")
OTHERS = ("ddp", "optimal", "zero:25MiB", "dear:25MiB", "sharded")


def plan(trace, cluster, policy):
    out = subprocess.run([BUILD / "bin/mgwfbp", "plan", trace, cluster, "-p", policy, "--json"], check=True,
                         capture_output=True)
    return json.loads(out.stdout)["plan"]


def mean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))


def count(made):
    kinds = [operation["kind"] for operation in made["operations"]]
    return "+".join(str(kinds.count(kind)) for kind in ("all-reduce", "reduce-scatter", "all-gather"))


def main():
    rows = {}
    names = sorted(path.stem for path in (ROOT / "data/traces").glob("*.json"))
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            half = Path(folder) / "half.json"
            half.write_text(json.dumps(dict(json.loads((ROOT / f"data/traces/{name}.json").read_text()),
                                            parameter_dtype="bf16")))
            for cluster in CLUSTERS:
                row = {policy: plan(name, cluster, policy)["iteration_s"] for policy in OTHERS}
                row["plan"] = made = plan(name, cluster, "overlap")
                row["overlap"] = made["iteration_s"]
                row["half"] = plan(half, cluster, "overlap")["iteration_s"]
                rows[name, cluster] = row
    print("| trace | " + " | ".join(f"{c}: `optimal` / `overlap`, `overlap` / bound, operations" for c in CLUSTERS) + " |")
    print("|---|" + "---|" * len(CLUSTERS))
    for name in names:
        cells = []
        for cluster in CLUSTERS:
            row = rows[name, cluster]
            cells.append(f"{row['optimal'] / row['overlap']:.3f}, {row['overlap'] / row['plan']['lower_bound_s']:.4f}, "
                         f"{count(row['plan'])}")
        print(f"| {name.removesuffix('-h200')} | " + " | ".join(cells) + " |")
    print()
    print("| geometric mean (largest) | " + " | ".join(CLUSTERS) + " |")
    print("|---|" + "---|" * len(CLUSTERS))
    for label, ratio in [(f"`{other}` / `overlap`", lambda row, other=other: row[other] / row["overlap"])
                         for other in OTHERS] + [
            ("`overlap` / bound", lambda row: row["overlap"] / row["plan"]["lower_bound_s"]),
            ("`optimal` / `overlap` with bf16 parameters", lambda row: row["optimal"] / row["half"])]:
        cells = [[ratio(rows[name, cluster]) for name in names] for cluster in CLUSTERS]
        print(f"| {label} | " + " | ".join(f"{mean(cell):.3f} ({max(cell):.3f})" for cell in cells) + " |")


if __name__ == "__main__":
    main()
