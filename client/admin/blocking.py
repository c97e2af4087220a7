"""The admin client for threads: the calls of `barnabas.client.Admin`, each run on a thread of its own."""

from __future__ import annotations

from typing import Unpack

from barnabas.client.admin.admin import Admin as _Admin
from barnabas.client.config import AdminConfig, AdminSettings
from barnabas.client.loop_thread import BlockingClient, hop


class Admin(BlockingClient[_Admin]):
    """`barnabas.client.Admin` for threads; connects when it is made."""

    def __init__(self, config: AdminConfig | None = None, **settings: Unpack[AdminSettings]) -> None:
        super().__init__(_Admin(config, **settings))
        self.config = self._client.config

    @property
    def is_kafka(self) -> bool:
        return self._client.is_kafka

    create_topics = hop(_Admin.create_topics)
    delete_topics = hop(_Admin.delete_topics)
    create_partitions = hop(_Admin.create_partitions)
    elect_leaders = hop(_Admin.elect_leaders)
    alter_partition_reassignments = hop(_Admin.alter_partition_reassignments)
    list_partition_reassignments = hop(_Admin.list_partition_reassignments)
    list_topics = hop(_Admin.list_topics)
    describe_topics = hop(_Admin.describe_topics)
    describe_cluster = hop(_Admin.describe_cluster)
    describe_replicas = hop(_Admin.describe_replicas)
    describe_log_dirs = hop(_Admin.describe_log_dirs)
    alter_replica_log_dirs = hop(_Admin.alter_replica_log_dirs)
    list_offsets = hop(_Admin.list_offsets)
    delete_records = hop(_Admin.delete_records)
    watch_topics = hop(_Admin.watch_topics)
    wait_for_records = hop(_Admin.wait_for_records)
    batch_sizes = hop(_Admin.batch_sizes)
    read_log = hop(_Admin.read_log)
    describe_configs = hop(_Admin.describe_configs)
    alter_configs = hop(_Admin.alter_configs)
    describe_features = hop(_Admin.describe_features)
    update_features = hop(_Admin.update_features)
    list_groups = hop(_Admin.list_groups)
    describe_groups = hop(_Admin.describe_groups)
    survey_groups = hop(_Admin.survey_groups)
    delete_groups = hop(_Admin.delete_groups)
    remove_members = hop(_Admin.remove_members)
    group_offsets = hop(_Admin.group_offsets)
    alter_group_offsets = hop(_Admin.alter_group_offsets)
    delete_group_offsets = hop(_Admin.delete_group_offsets)
    list_transactions = hop(_Admin.list_transactions)
    describe_transactions = hop(_Admin.describe_transactions)
    survey_transactions = hop(_Admin.survey_transactions)
    describe_producers = hop(_Admin.describe_producers)
    find_hanging_transactions = hop(_Admin.find_hanging_transactions)
    abort_transaction = hop(_Admin.abort_transaction)
    fence_producers = hop(_Admin.fence_producers)
    complete_transaction = hop(_Admin.complete_transaction)
    describe_acls = hop(_Admin.describe_acls)
    create_acls = hop(_Admin.create_acls)
    delete_acls = hop(_Admin.delete_acls)
    describe_user_scram_credentials = hop(_Admin.describe_user_scram_credentials)
    alter_user_scram_credentials = hop(_Admin.alter_user_scram_credentials)
    describe_client_quotas = hop(_Admin.describe_client_quotas)
    alter_client_quotas = hop(_Admin.alter_client_quotas)
    add_fault_rules = hop(_Admin.add_fault_rules)
    remove_fault_rules = hop(_Admin.remove_fault_rules)
    describe_fault_rules = hop(_Admin.describe_fault_rules)
