"""Prints each change of topics in the format json once, with confluent-kafka.

usage: table.py BROKERS PATTERN-OF-TOPICS

Records may be repeated after a restart of the exporter. Rule 4 of docs/consuming.md identifies them: the same id, or a lower
resourceVersion than that of the newest record of the object. pkg/consumer has the other rules for a table of objects.
"""

import json
import sys

import confluent_kafka

newest = {}  # by object, including deleted ones: id, uid and resourceVersion of its newest record


def version(change):
    """Versions that are no numbers have no order: the later record is the newer one."""
    text = change.get("resourceVersion") or ""
    return int(text) if text.isdecimal() else 0


def is_new(change):
    if change["type"] not in ("added", "updated", "deleted", "snapshot", "sync"):
        return True  # snapshots begin and end, gaps, who made a change: these are about a resource, and replace nothing
    key = (change["cluster"], change["group"], change["resource"], change.get("namespace"), change["name"])
    known = newest.get(key)
    if known and not change.get("coalesced"):
        if change["id"] == known["id"] or version(change) < version(known):
            return False
    newest[key] = {name: change.get(name) for name in ("id", "uid", "resourceVersion")}
    return True


def main():
    brokers, pattern = sys.argv[1:]
    client = confluent_kafka.Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "recipe",
            "enable.auto.commit": False,  # the state is in memory, so each start reads everything
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 5000,  # finds topics of new types
        }
    )
    client.subscribe([pattern])
    while True:
        message = client.poll(1.0)
        if message is None:
            continue
        if message.error():
            raise confluent_kafka.KafkaException(message.error())
        change = json.loads(message.value())
        if "resource" in change and is_new(change):  # rule 9: what is of no resource, as a fence, says nothing of the cluster
            print(change["type"], change["resource"], change.get("namespace", ""), change.get("name", ""), flush=True)


try:
    main()
except KeyboardInterrupt:
    pass
