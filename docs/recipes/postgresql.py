"""Keeps a table of the objects in Kubernetes, from topics in the format upsert.

usage: postgresql.py BROKERS PATTERN-OF-TOPICS

PostgreSQL is found by the usual variables: PGHOST, PGUSER, PGDATABASE, PGPASSWORD. The tables are those of postgresql.sql. Run one
process, or several: Kafka assigns the partitions, and each is read from the offset in the database.
"""

import sys

import confluent_kafka
import psycopg

PUT = """INSERT INTO kubernetes_objects (topic, key, object) VALUES (%s, %s, %s::jsonb)
         ON CONFLICT (topic, key) DO UPDATE SET object = excluded.object"""
DROP = "DELETE FROM kubernetes_objects WHERE topic = %s AND key = %s"
DONE = """INSERT INTO kubernetes_offsets (topic, partition, next) VALUES (%s, %s, %s)
          ON CONFLICT (topic, partition) DO UPDATE SET next = excluded.next"""


def assigned(database):
    """Returns the callback that starts each partition at its stored offset."""

    def begin(client, partitions):
        for p in partitions:
            found = database.execute(
                "SELECT next FROM kubernetes_offsets WHERE topic = %s AND partition = %s", (p.topic, p.partition)
            ).fetchone()
            p.offset = found[0] if found else confluent_kafka.OFFSET_BEGINNING
        client.assign(partitions)

    return begin


def store(database, messages):
    """Writes records and their offsets in one transaction."""
    ends = {}
    with database.transaction():
        for m in messages:
            if m.error():
                raise confluent_kafka.KafkaException(m.error())
            key, value = m.key().decode(), m.value()
            if value:
                # jsonb does not support the NUL character, which strings of objects may contain.
                database.execute(PUT, (m.topic(), key, value.decode().replace("\\u0000", "")))
            else:  # the object is gone, or the record is about no object
                database.execute(DROP, (m.topic(), key))
            ends[m.topic(), m.partition()] = m.offset() + 1
        for (topic, partition), end in ends.items():
            database.execute(DONE, (topic, partition, end))


def main():
    brokers, pattern = sys.argv[1:]
    client = confluent_kafka.Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "postgresql",
            "enable.auto.commit": False,  # offsets are in the database
            "auto.offset.reset": "earliest",  # records that compaction removed are replaced by newer ones
            "topic.metadata.refresh.interval.ms": 5000,  # finds topics of new types
        }
    )
    with psycopg.connect(autocommit=True) as database:
        client.subscribe([pattern], on_assign=assigned(database))
        while True:
            messages = client.consume(500, 1.0)
            if messages:
                store(database, messages)
                print(f"stored {len(messages)} records", flush=True)


try:
    main()
except KeyboardInterrupt:
    pass
