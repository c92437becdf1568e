"""Takes an Iceberg table of a directory back to before its first commit of data, and forgets how far its coordinator has read:
uncommitted.py BROKERS TABLE GROUP. This is what a sink leaves that ends between announcing its files and committing them.
"""

import json
import pathlib
import sys
import time

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

brokers, table, group = sys.argv[1:]
metadata = pathlib.Path(table) / "metadata"
versions = sorted(int(p.name[1:].split(".")[0]) for p in metadata.glob("v*.metadata.json"))


def path(version):
    return metadata / f"v{version}.metadata.json"


empty = [v for v in versions if not json.loads(path(v).read_text()).get("snapshots")]
committed = [v for v in versions if v not in empty]
if not empty or not committed:
    sys.exit(f"of the versions {versions}, {empty} are without data")
for version in committed:
    path(version).unlink()
(metadata / "version-hint.text").write_text(str(empty[-1]))
for checksum in metadata.glob(".v*.crc"):
    checksum.unlink()
(metadata / ".version-hint.text.crc").unlink(missing_ok=True)
client = AdminClient({"bootstrap.servers": brokers})
while True:
    try:
        client.delete_consumer_groups([group])[group].result()
        break
    except KafkaException as e:
        if e.args[0].code() != KafkaError.NON_EMPTY_GROUP:  # its member is still known, until its session ends
            raise
        time.sleep(0.2)
