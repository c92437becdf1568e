"""Stores records of topics in the format json in PostgreSQL, by the tables of exporter sql --for postgres.

usage: postgresql.py BROKERS PATTERN-OF-TOPICS

PostgreSQL is found by the usual variables: PGHOST, PGUSER, PGDATABASE, PGPASSWORD. A record that is there already changes
nothing, so offsets are committed to Kafka after the rows. Run one process, or several: Kafka assigns the partitions.
"""

import sys

import confluent_kafka
import psycopg


def store(database, messages):
    """Writes records in one transaction. A message without a value is no record."""
    with database.transaction(), database.cursor() as cursor:
        for m in messages:
            if m.error():
                raise confluent_kafka.KafkaException(m.error())
        cursor.executemany("SELECT kubecdc_add(%s)", [(m.value().decode(),) for m in messages if m.value()])


def main():
    brokers, pattern = sys.argv[1:]
    client = confluent_kafka.Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "postgresql",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 5000,  # finds topics of new types
        }
    )
    with psycopg.connect(autocommit=True) as database:
        client.subscribe([pattern])
        while True:
            messages = client.consume(500, 1.0)
            if messages:
                store(database, messages)
                client.commit(asynchronous=False)
                print(f"stored {len(messages)} records", flush=True)


try:
    main()
except KeyboardInterrupt:
    pass
