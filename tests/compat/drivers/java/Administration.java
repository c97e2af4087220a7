import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;

/** The commands of the admin client. */
final class Administration {
    private Administration() {
    }

    /** What a command does with an admin client. */
    private interface Work {
        Object run(Admin admin, JsonNode arguments) throws Exception;
    }

    static void addTo(Map<String, Driver.Command> commands) {
        Map<String, Work> works = new HashMap<>();
        works.put("create_topic", Administration::createTopic);
        works.put("delete_topic", (admin, a) -> admin.deleteTopics(List.of(topic(a))).all().get());
        works.put("list_topics", (admin, a) -> admin.listTopics().names().get());
        works.put("describe_topic", Administration::describeTopic);
        works.put("describe_cluster", Administration::describeCluster);
        works.put("describe_configs", Administration::describeConfigs);
        works.put("alter_configs", Administration::alterConfigs);
        works.put("create_partitions", Administration::createPartitions);
        works.put("delete_records", Administration::deleteRecords);
        works.put("list_groups", Administration::listGroups);
        works.put("describe_group", Administration::describeGroup);
        works.put("delete_group", (admin, a) -> admin.deleteConsumerGroups(List.of(group(a))).all().get());
        works.put("group_offsets", Administration::groupOffsets);
        works.put("set_group_offsets", Administration::setGroupOffsets);
        works.put("delete_group_offsets", Administration::deleteGroupOffsets);
        works.forEach((name, work) -> commands.put(name, arguments -> {
            String bootstrap = arguments.get("bootstrap").asText();
            try (Admin admin = Admin.create(Access.settings(bootstrap))) {
                return work.run(admin, arguments);
            }
        }));
    }

    private static String topic(JsonNode arguments) {
        return arguments.get("topic").asText();
    }

    private static String group(JsonNode arguments) {
        return arguments.get("group").asText();
    }

    // -- topics -------------------------------------------------------------------------------------------

    private static Object createTopic(Admin admin, JsonNode arguments) throws Exception {
        NewTopic made;
        if (arguments.hasNonNull("assignment")) {
            Map<Integer, List<Integer>> replicas = new HashMap<>();
            arguments.get("assignment").forEach(brokers -> {
                List<Integer> ids = new ArrayList<>();
                brokers.forEach(id -> ids.add(id.asInt()));
                replicas.put(replicas.size(), ids);
            });
            made = new NewTopic(topic(arguments), replicas);
        } else {
            short replicas = (short) arguments.path("replicas").asInt(1);
            made = new NewTopic(topic(arguments), arguments.path("partitions").asInt(1), replicas);
        }
        made.configs(texts(arguments.path("configs")));
        boolean isCheck = arguments.path("validate_only").asBoolean(false);
        var options = new CreateTopicsOptions().validateOnly(isCheck);
        return admin.createTopics(List.of(made), options).all().get();
    }

    private static Map<String, String> texts(JsonNode object) {
        Map<String, String> made = new HashMap<>();
        object.properties().forEach(field -> made.put(field.getKey(), field.getValue().asText()));
        return made;
    }

    private static Object describeTopic(Admin admin, JsonNode arguments) throws Exception {
        String topic = topic(arguments);
        List<Object> found = new ArrayList<>();
        var description = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        for (TopicPartitionInfo partition : description.partitions()) {
            found.add(Map.of(
                "partition", partition.partition(),
                "leader", partition.leader() == null ? -1 : partition.leader().id(),
                "replicas", ids(partition.replicas()),
                "isr", ids(partition.isr())));
        }
        return found;
    }

    private static List<Integer> ids(List<Node> nodes) {
        List<Integer> found = new ArrayList<>();
        nodes.forEach(node -> found.add(node.id()));
        return found;
    }

    private static Object describeCluster(Admin admin, JsonNode arguments) throws Exception {
        var cluster = admin.describeCluster();
        List<Node> nodes = new ArrayList<>(cluster.nodes().get());
        nodes.sort(Comparator.comparing(Node::id));
        List<Object> brokers = new ArrayList<>();
        nodes.forEach(node -> brokers.add(List.of(node.id(), node.host(), node.port())));
        return Map.of("controller", cluster.controller().get().id(), "brokers", brokers);
    }

    private static Object createPartitions(Admin admin, JsonNode arguments) throws Exception {
        var total = NewPartitions.increaseTo(arguments.get("total").asInt());
        return admin.createPartitions(Map.of(topic(arguments), total)).all().get();
    }

    private static Object deleteRecords(Admin admin, JsonNode arguments) throws Exception {
        var place = new TopicPartition(topic(arguments), arguments.get("partition").asInt());
        var before = RecordsToDelete.beforeOffset(arguments.get("before").asLong());
        return admin.deleteRecords(Map.of(place, before)).lowWatermarks().get(place).get().lowWatermark();
    }

    // -- settings -----------------------------------------------------------------------------------------

    private static ConfigResource resource(JsonNode arguments) {
        return new ConfigResource(ConfigResource.Type.TOPIC, topic(arguments));
    }

    private static Object describeConfigs(Admin admin, JsonNode arguments) throws Exception {
        ConfigResource resource = resource(arguments);
        Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        Map<String, String> found = new HashMap<>();
        config.entries().forEach(entry -> found.put(entry.name(), entry.value()));
        return found;
    }

    private static Object alterConfigs(Admin admin, JsonNode arguments) throws Exception {
        Collection<AlterConfigOp> changes = new ArrayList<>();
        texts(arguments.get("configs")).forEach((name, value) ->
            changes.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
        return admin.incrementalAlterConfigs(Map.of(resource(arguments), changes)).all().get();
    }

    // -- groups -------------------------------------------------------------------------------------------

    private static Object listGroups(Admin admin, JsonNode arguments) throws Exception {
        List<String> found = new ArrayList<>();
        admin.listConsumerGroups().all().get().forEach(listing -> found.add(listing.groupId()));
        return found;
    }

    private static Object describeGroup(Admin admin, JsonNode arguments) throws Exception {
        String group = group(arguments);
        ConsumerGroupDescription found = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
        return Map.of("state", found.state().toString(), "members", found.members().size());
    }

    private static Object groupOffsets(Admin admin, JsonNode arguments) throws Exception {
        Map<Integer, Long> found = new HashMap<>();
        var all = admin.listConsumerGroupOffsets(group(arguments)).partitionsToOffsetAndMetadata().get();
        all.forEach((place, position) -> {
            if (position != null && place.topic().equals(topic(arguments))) {
                found.put(place.partition(), position.offset());
            }
        });
        return found;
    }

    static Map<TopicPartition, OffsetAndMetadata> positions(JsonNode arguments) {
        Map<TopicPartition, OffsetAndMetadata> made = new HashMap<>();
        arguments.get("offsets").properties().forEach(field -> {
            var place = new TopicPartition(topic(arguments), Integer.parseInt(field.getKey()));
            made.put(place, new OffsetAndMetadata(field.getValue().asLong()));
        });
        return made;
    }

    private static Object setGroupOffsets(Admin admin, JsonNode arguments) throws Exception {
        return admin.alterConsumerGroupOffsets(group(arguments), positions(arguments)).all().get();
    }

    private static Object deleteGroupOffsets(Admin admin, JsonNode arguments) throws Exception {
        Set<TopicPartition> places = new HashSet<>();
        for (JsonNode partition : arguments.get("partitions")) {
            places.add(new TopicPartition(topic(arguments), partition.asInt()));
        }
        return admin.deleteConsumerGroupOffsets(group(arguments), places).all().get();
    }
}
