"""Reads what the exporter wrote, as its consumers do: with librdkafka, nats-py and the CloudEvents SDK for Python.

usage: read.py FORMAT kafka BROKERS TOPIC-PREFIX
       read.py FORMAT nats URL STREAM

Prints one JSON object a record: the key under which it lies, the ID of the change, and whether there is a value. It exits
with 1 at the first record that a client or the SDK does not understand.
"""

import asyncio
import json
import sys

import confluent_kafka
import nats
from cloudevents.core.bindings import http, kafka
from cloudevents.core.formats.json import JSONFormat

TIMEOUT = 60  # seconds that one answer may take; far above what it takes


def tell(key, change_id, value):
    print(json.dumps({"key": key, "id": change_id, "value": bool(value)}))


def of_event(event, key):
    """Judges what the SDK made of a CloudEvent."""
    data = event.get_data()
    if isinstance(data, (bytes, str)):
        data = json.loads(data)
    if event.get_id() != data["id"]:
        raise ValueError(f"the event {event.get_id()} carries the change {data['id']}")
    if event.get_type() != "io.kubecdc.resource." + data["type"]:
        raise ValueError(f"{event.get_id()} has the type {event.get_type()}")
    if key is not None and event.get_extension("partitionkey") != key:
        raise ValueError(f"{event.get_id()} lies under {key} and names {event.get_extension('partitionkey')}")
    return event.get_id()


def of_native(header_id, header_type, value, change):
    """Judges a record that is no CloudEvent by its headers."""
    body = json.loads(value) if value else json.loads(change)
    native = body.get("source", body) if "op" in body else body
    if "id" in native and (native["id"], native["type"]) != (header_id, header_type):
        raise ValueError(f"the headers say {header_id}, the value {native['id']}")
    return header_id


def read_kafka(fmt, brokers, prefix):
    client = confluent_kafka.Consumer(
        {"bootstrap.servers": brokers, "group.id": "reader", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    ends = {}
    for name, topic in client.list_topics(timeout=TIMEOUT).topics.items():
        for partition in topic.partitions if name.startswith(prefix) else ():
            low, high = client.get_watermark_offsets(confluent_kafka.TopicPartition(name, partition), timeout=TIMEOUT)
            if high > low:
                ends[(name, partition)] = high
    client.assign([confluent_kafka.TopicPartition(*place, 0) for place in ends])
    while ends:
        message = client.poll(TIMEOUT)
        if message is None:
            raise TimeoutError(f"nothing came for {TIMEOUT} seconds; still to read: {ends}")
        if message.error():
            raise confluent_kafka.KafkaException(message.error())
        take_kafka(fmt, message)
        place = (message.topic(), message.partition())
        if message.offset() + 1 >= ends[place]:
            client.incremental_unassign([confluent_kafka.TopicPartition(*place)])
            del ends[place]
    client.close()


def take_kafka(fmt, message):
    headers, key, value = dict(message.headers()), message.key().decode(), message.value()
    if fmt.startswith("cloudevents"):
        # The SDK would put the record's key in the place of the attribute: keep it from seeing the key.
        event = kafka.from_kafka(kafka.KafkaMessage(headers, None, value), JSONFormat())
        tell(key, of_event(event, key), value)
        return
    change_id, change_type = headers["id"].decode(), headers["type"].decode()
    if value or "change" in headers:
        of_native(change_id, change_type, value, headers.get("change"))
    elif change_type != "deleted":
        raise ValueError(f"{change_id} has no value, and nothing says why")
    tell(key, change_id, value)


async def read_nats(fmt, url, stream):
    client = await nats.connect(url)
    context = client.jetstream()
    left = (await context.stream_info(stream)).state.messages
    consumer = await context.add_consumer(stream, ack_policy="none", deliver_policy="all", mem_storage=True)
    subscription = await context.pull_subscribe_bind(consumer=consumer.name, stream=stream)
    while left > 0:
        for message in await subscription.fetch(min(left, 500), timeout=TIMEOUT):
            take_nats(fmt, message)
            left -= 1
    await client.close()


def take_nats(fmt, message):
    headers, value = message.headers, message.data
    if fmt.startswith("cloudevents"):
        # The bindings of HTTP and NATS name and encode headers alike.
        event = http.from_http(http.HTTPMessage(headers, value), JSONFormat())
        change_id = of_event(event, None)
        key = event.get_extension("partitionkey")
    else:
        change_id, key = headers["Kubecdc-Id"], headers["Kubecdc-Key"]
        of_native(change_id, headers["Kubecdc-Type"], value, headers.get("Kubecdc-Change"))
    known = headers.get("Nats-Msg-Id", change_id)  # batches need none
    if known != change_id and not (change_id.endswith("/snapshot") and known.startswith(change_id + "/")):
        raise ValueError(f"{change_id} is known to the stream as {known}")
    tell(key, change_id, value)


def main():
    fmt, bus, address, place = sys.argv[1:]
    if bus == "kafka":
        read_kafka(fmt, address, place)
    else:
        asyncio.run(read_nats(fmt, address, place))


main()
