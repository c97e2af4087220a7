import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The commands that write records, read them, and look up offsets. */
final class Records {
    private static final double TIMEOUT_S = 45;

    private Records() {
    }

    static void addTo(Map<String, Driver.Command> commands) {
        commands.put("produce", Records::produce);
        commands.put("fetch", Records::fetch);
        commands.put("offsets", Records::offsets);
    }

    // -- settings -----------------------------------------------------------------------------------------

    static Properties producerSettings(String bootstrap) {
        var settings = new Properties();
        settings.putAll(Access.settings(bootstrap));
        settings.put(ProducerConfig.KEY_SERIALIZER_CLASS_CONFIG, ByteArraySerializer.class);
        settings.put(ProducerConfig.VALUE_SERIALIZER_CLASS_CONFIG, ByteArraySerializer.class);
        return settings;
    }

    static Properties consumerSettings(String bootstrap) {
        var settings = new Properties();
        settings.putAll(Access.settings(bootstrap));
        settings.put(ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class);
        settings.put(ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class);
        return settings;
    }

    /** A consumer without a group. */
    private static KafkaConsumer<byte[], byte[]> reader(JsonNode arguments) {
        Properties settings = consumerSettings(arguments.get("bootstrap").asText());
        settings.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false);
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "none");
        // A consumer that is closed waits for its last fetch, at the end of the log for 500 ms by default.
        settings.put(ConsumerConfig.FETCH_MAX_WAIT_MS_CONFIG, 50);
        if (arguments.hasNonNull("isolation")) {
            settings.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, arguments.get("isolation").asText());
        }
        if (arguments.hasNonNull("max_bytes")) {
            int limit = arguments.get("max_bytes").asInt();
            settings.put(ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG, limit);
        }
        return new KafkaConsumer<>(settings);
    }

    private static long timeoutMs(JsonNode arguments) {
        return Math.round(arguments.path("timeout_s").asDouble(TIMEOUT_S) * 1000);
    }

    // -- write --------------------------------------------------------------------------------------------

    private static Object produce(JsonNode arguments) {
        Properties settings = producerSettings(arguments.get("bootstrap").asText());
        long timeoutMs = timeoutMs(arguments);
        settings.put(ProducerConfig.ACKS_CONFIG, arguments.path("acks").asText("all"));
        settings.put(ProducerConfig.COMPRESSION_TYPE_CONFIG, arguments.path("compression").asText("none"));
        settings.put(ProducerConfig.ENABLE_IDEMPOTENCE_CONFIG, arguments.path("idempotent").asBoolean(false));
        settings.put(ProducerConfig.LINGER_MS_CONFIG, 20);
        settings.put(ProducerConfig.MAX_BLOCK_MS_CONFIG, timeoutMs);
        settings.put(ProducerConfig.DELIVERY_TIMEOUT_MS_CONFIG, (int) timeoutMs);
        settings.put(ProducerConfig.REQUEST_TIMEOUT_MS_CONFIG, (int) timeoutMs - 20);
        if (arguments.hasNonNull("max_request_bytes")) {
            settings.put(ProducerConfig.MAX_REQUEST_SIZE_CONFIG, arguments.get("max_request_bytes").asInt());
        }
        try (var producer = new KafkaProducer<byte[], byte[]>(settings)) {
            return sendAll(producer, arguments.get("records"), timeoutMs);
        }
    }

    /** Sends every record, then waits for each: its place, or its error. */
    static List<Object> sendAll(KafkaProducer<byte[], byte[]> producer, JsonNode records, long timeoutMs) {
        List<Object> sent = new ArrayList<>();
        for (JsonNode record : records) {
            try {
                sent.add(producer.send(recordOf(record)));
            } catch (Exception error) {
                sent.add(error);
            }
        }
        producer.flush();
        List<Object> answers = new ArrayList<>();
        for (Object outcome : sent) {
            answers.add(answerOf(outcome, timeoutMs));
        }
        return answers;
    }

    @SuppressWarnings("unchecked")
    private static Object answerOf(Object outcome, long timeoutMs) {
        try {
            if (outcome instanceof Exception) {
                throw (Exception) outcome;
            }
            RecordMetadata metadata = ((Future<RecordMetadata>) outcome).get(timeoutMs, TimeUnit.MILLISECONDS);
            return Map.of("partition", metadata.partition(), "offset", metadata.offset());
        } catch (Exception error) {
            return Map.of("error", Driver.describe(error));
        }
    }

    private static ProducerRecord<byte[], byte[]> recordOf(JsonNode record) {
        Integer partition = record.hasNonNull("partition") ? record.get("partition").asInt() : null;
        Long timestamp = record.hasNonNull("timestamp") ? record.get("timestamp").asLong() : null;
        String topic = record.get("topic").asText();
        byte[] key = bytes(record.path("key"));
        var made = new ProducerRecord<>(topic, partition, timestamp, key, bytes(record.path("value")));
        for (JsonNode header : record.path("headers")) {
            made.headers().add(header.get(0).asText(), bytes(header.get(1)));
        }
        return made;
    }

    static byte[] bytes(JsonNode text) {
        return text.isTextual() ? Base64.getDecoder().decode(text.asText()) : null;
    }

    private static String text(byte[] value) {
        return value == null ? null : Base64.getEncoder().encodeToString(value);
    }

    // -- read ---------------------------------------------------------------------------------------------

    private static Object fetch(JsonNode arguments) {
        var place = new TopicPartition(arguments.get("topic").asText(), arguments.get("partition").asInt());
        int count = arguments.get("count").asInt();
        List<Object> found = new ArrayList<>();
        long endNs = System.nanoTime() + timeoutMs(arguments) * 1_000_000;
        try (KafkaConsumer<byte[], byte[]> consumer = reader(arguments)) {
            consumer.assign(List.of(place));
            consumer.seek(place, arguments.get("offset").asLong());
            while (found.size() < count && System.nanoTime() < endNs) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> found.add(asJson(record)));
            }
        }
        return found.subList(0, Math.min(count, found.size()));
    }

    private static Object asJson(ConsumerRecord<byte[], byte[]> record) {
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            List<Object> pair = new ArrayList<>();
            pair.add(header.key());
            pair.add(text(header.value()));
            headers.add(pair);
        }
        Map<String, Object> made = new HashMap<>();
        made.put("offset", record.offset());
        made.put("key", text(record.key()));
        made.put("value", text(record.value()));
        made.put("headers", headers);
        made.put("timestamp", record.timestamp());
        boolean isOfBroker = record.timestampType() == TimestampType.LOG_APPEND_TIME;
        made.put("timestamp_type", isOfBroker ? "log_append" : "create");
        return made;
    }

    private static Object offsets(JsonNode arguments) {
        List<TopicPartition> places = new ArrayList<>();
        for (JsonNode partition : arguments.get("partitions")) {
            places.add(new TopicPartition(arguments.get("topic").asText(), partition.asInt()));
        }
        JsonNode at = arguments.get("at");
        Map<Integer, Long> found = new HashMap<>();
        try (KafkaConsumer<byte[], byte[]> consumer = reader(arguments)) {
            if (at.isNumber()) {
                Map<TopicPartition, Long> times = new HashMap<>();
                places.forEach(place -> times.put(place, at.asLong()));
                consumer.offsetsForTimes(times).forEach((place, answer) ->
                    found.put(place.partition(), answer == null ? -1L : answer.offset()));
            } else {
                Map<TopicPartition, Long> answers = at.asText().equals("earliest")
                    ? consumer.beginningOffsets(places)
                    : consumer.endOffsets(places);
                answers.forEach((place, offset) -> found.put(place.partition(), offset));
            }
        }
        return found;
    }
}
