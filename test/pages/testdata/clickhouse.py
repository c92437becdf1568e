"""Runs the statements of a file in an embedded ClickHouse, feeds it from Kafka, and prints what the query of another finds.

usage: clickhouse.py STATEMENTS QUERY BROKERS TOPIC...

The embedded form refuses tables of the Kafka engine. What stands in their place passes rows on to the view as they would.
"""

import re
import sys

import confluent_kafka
from chdb import session

TIMEOUT = 60


def records(brokers, topics):
    """Yields the value of every record that is there."""
    client = confluent_kafka.Consumer(
        {"bootstrap.servers": brokers, "group.id": "clickhouse", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    for topic in topics:
        for partition in client.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions:
            place = confluent_kafka.TopicPartition(topic, partition, 0)
            at, end = client.get_watermark_offsets(place, timeout=TIMEOUT)
            client.assign([place])
            while at < end:
                message = client.poll(TIMEOUT)
                if message is None:
                    raise TimeoutError(f"nothing came of {topic}")
                if message.error():
                    raise confluent_kafka.KafkaException(message.error())
                at = message.offset() + 1
                yield message.value().decode()
    client.close()


def main():
    statements, query, brokers, *topics = sys.argv[1:]
    with open(statements) as file:
        text, replaced = re.subn(r"ENGINE = Kafka\s+SETTINGS[^;]*", "ENGINE = Null", file.read())
    if replaced != 1:
        raise ValueError(f"{replaced} tables of the Kafka engine")
    database = session.Session()
    for statement in filter(str.strip, text.split(";")):
        database.query(statement)
    with open("records.jsonl", "w") as file:
        file.writelines(value + "\n" for value in records(brokers, topics))
    database.query("INSERT INTO changes_queue SELECT raw FROM file('records.jsonl', 'JSONAsString', 'raw String')")
    with open(query) as file:
        print(database.query(file.read(), "TSV"))
    database.close()


main()
