"""Keeps indexes of the objects in Kubernetes, from topics in the format upsert. A topic is an index; Kafka's key is the document's ID.

usage: opensearch.py BROKERS PATTERN-OF-TOPICS URL

The version of a document is the offset of its record, so that a repeated record changes nothing. Run one process, or
several: Kafka assigns the partitions.
"""

import json
import sys
import time
import urllib.error
import urllib.request

import confluent_kafka

# 404 (already deleted) and 409 (this or a newer version is stored) are successes too.
DONE = {200, 201, 404, 409}
BUSY = {429, 502, 503, 504}


def lines(messages):
    """Makes the body of a bulk request."""
    for m in messages:
        if m.error():
            raise confluent_kafka.KafkaException(m.error())
        target = {"_index": m.topic(), "_id": m.key().decode(), "version": m.offset(), "version_type": "external"}
        if m.value():
            yield json.dumps({"index": target})
            yield m.value().decode().replace("\n", " ")
        else:  # the object is gone, or the record is about no object
            yield json.dumps({"delete": target})


def bulk(url, body):
    """Returns the result of each line, once the server has accepted the request."""
    request = urllib.request.Request(url + "/_bulk", body.encode(), {"Content-Type": "application/x-ndjson"}, method="POST")
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                results = [result for item in json.load(response)["items"] for result in item.values()]
            if not any(r["status"] in BUSY for r in results):
                return results
        except urllib.error.HTTPError as error:
            if error.code not in BUSY:
                raise
        except OSError as error:
            print(error, file=sys.stderr)
        time.sleep(1)


def main():
    brokers, pattern, url = sys.argv[1:]
    client = confluent_kafka.Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "opensearch",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",  # records that compaction removed are replaced by newer ones
            "topic.metadata.refresh.interval.ms": 5000,  # finds topics of new types
        }
    )
    client.subscribe([pattern])
    while True:
        messages = client.consume(500, 1.0)
        if not messages:
            continue
        for result in bulk(url, "\n".join(lines(messages)) + "\n"):
            if result["status"] not in DONE:  # for example rejected by the mapping: never skip a document silently
                sys.exit(json.dumps(result))
        client.commit(asynchronous=False)
        print(f"stored {len(messages)} records", flush=True)


try:
    main()
except KeyboardInterrupt:
    pass
