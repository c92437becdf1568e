"""Reads native objects, one JSON object a line, and prints the objects that exist after them: python -m kubecdc."""

import json
import sys

from kubecdc import Table, parse


def main() -> None:
    table = Table()
    for line in sys.stdin.buffer:
        if line.strip():
            table.apply(parse(line))
    for resource in table.resources():
        for one in table.objects(resource):
            print(json.dumps({**resource._asdict(), **one.key._asdict(), "object": one.body}, ensure_ascii=False))
    for snapshot in table.snapshots():
        if not snapshot.verified:
            print(f"snapshot {snapshot.id} of {snapshot.resource.resource} is not verified", file=sys.stderr)


if __name__ == "__main__":
    main()
