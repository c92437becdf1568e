import json, sys
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
url, encoding, topic = sys.argv[1:]
registry = SchemaRegistryClient({"url": url})
if encoding == "avro":
    deserialize = AvroDeserializer(registry)
else:
    deserialize = JSONDeserializer(None, schema_registry_client=registry)
for line in sys.stdin:
    out = []
    for field, text in zip((MessageField.KEY, MessageField.VALUE), line.split()):
        out.append(deserialize(bytes.fromhex(text), SerializationContext(topic, field)))
    print(json.dumps(out))
