"""Reads native objects, one JSON object a line, and prints the objects that exist after them, and the newest watermarks:
python -m kubecdc."""

import sys

from kubecdc import Table, encode, parse


def main() -> None:
    table = Table()
    for line in sys.stdin.buffer:
        if line.strip():
            table.apply(parse(line))
    for resource in table.resources():
        for one in table.objects(resource):
            print(encode({**resource._asdict(), **one.key._asdict(), "object": one.body}))
    for one in table.watermarks():
        member = {"position": one.position, "check": one.check}
        print(encode({**one.resource._asdict(), "namespace": one.namespace, "watermark": member}))
        if one.different:
            print(f"{one.different} watermarks of {one.resource.resource} differ from the table", file=sys.stderr)
    for snapshot in table.snapshots():
        if snapshot.ended and not snapshot.verified:
            print(f"snapshot {snapshot.id} of {snapshot.resource.resource} is not verified", file=sys.stderr)


if __name__ == "__main__":
    main()
