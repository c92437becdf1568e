"""Writes every record of topics once more, behind the last one, as a restart of the exporter may.

usage: again.py BROKERS TOPIC...
"""

import sys

import confluent_kafka

TIMEOUT = 60


def read(client, place, end):
    """Yields the records of a partition up to an offset."""
    client.assign([confluent_kafka.TopicPartition(*place, 0)])
    while client.position([confluent_kafka.TopicPartition(*place)])[0].offset < end:
        message = client.poll(TIMEOUT)
        if message is None:
            raise TimeoutError(f"nothing came of {place}")
        if message.error():
            raise confluent_kafka.KafkaException(message.error())
        yield message


def main():
    brokers, *topics = sys.argv[1:]
    client = confluent_kafka.Consumer(
        {"bootstrap.servers": brokers, "group.id": "again", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    producer = confluent_kafka.Producer({"bootstrap.servers": brokers, "enable.idempotence": True})
    for topic in topics:
        for partition in client.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions:
            _, end = client.get_watermark_offsets(confluent_kafka.TopicPartition(topic, partition), timeout=TIMEOUT)
            for m in list(read(client, (topic, partition), end)):
                producer.produce(topic, m.value(), m.key(), partition, headers=m.headers())
    if producer.flush(TIMEOUT):
        raise TimeoutError("not everything was written")
    client.close()


main()
