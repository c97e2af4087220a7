"""Topics, settings, groups and the deletion of records, from a program.

Run: python examples/admin.py
"""

import os

from barnabas.client import ConfigResource, NewPartitions, NewTopic
from barnabas.client.blocking import Admin

SERVERS = os.environ.get("BARNABAS_BOOTSTRAP", "127.0.0.1:9092")

with Admin(bootstrap_servers=SERVERS) as admin:
    if "audit" not in admin.list_topics():
        admin.create_topics(NewTopic("audit", num_partitions=2, configs={"retention.ms": "60000"}))
        admin.create_partitions({"audit": NewPartitions(3)})
    audit = ConfigResource.topic("audit")
    admin.alter_configs({audit: {"retention.ms": "120000"}})
    print("retention.ms is", admin.describe_configs(audit)[audit]["retention.ms"].value)
    for info in admin.describe_topics("audit")["audit"].partitions:
        print(f"audit-{info.partition}: leader {info.leader}, in sync {list(info.isr)}")
    for group in admin.list_groups():
        print(f"group {group.group_id} has read", *admin.group_offsets(group.group_id))
    starts = admin.delete_records({("audit", number): -1 for number in range(3)})
    print("the records of audit begin at", list(starts.values()))
    admin.delete_topics("audit")
