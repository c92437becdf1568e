"""Writes each line of its input into a topic.

usage: produce.py BROKERS TOPIC
"""

import sys

import confluent_kafka

brokers, topic = sys.argv[1:]
client = confluent_kafka.Producer({"bootstrap.servers": brokers})
for line in sys.stdin.buffer:
    client.produce(topic, line.strip())
if client.flush(60) > 0:
    raise TimeoutError("not every line was acknowledged")
