"""Keeps indexes of what exists in Kubernetes, from topics in the format upsert. A topic is an index; Kafka's key is the document's ID.

usage: opensearch.py BROKERS PATTERN-OF-TOPICS URL

The version of a document is the offset of its record, so that a record that comes again changes nothing. Run one process, or
several: Kafka shares the partitions out.
"""

import json
import sys
import time
import urllib.error
import urllib.request

import confluent_kafka

# What is there already, and what is gone already.
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
    """Returns what became of each line, once the server has taken the request."""
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
            "auto.offset.reset": "earliest",  # what a compacted topic has forgotten is in it again, or gone
            "topic.metadata.refresh.interval.ms": 5000,  # finds topics of new types
        }
    )
    client.subscribe([pattern])
    while True:
        messages = client.consume(500, 1.0)
        if not messages:
            continue
        for result in bulk(url, "\n".join(lines(messages)) + "\n"):
            if result["status"] not in DONE:  # a document that the mapping refuses, say: nothing is left out unseen
                sys.exit(json.dumps(result))
        client.commit(asynchronous=False)
        print(f"stored {len(messages)} records", flush=True)


try:
    main()
except KeyboardInterrupt:
    pass
