import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;

/** A transactional producer; see transactions.py. */
final class Transactions {
    private static final long TIMEOUT_MS = 45_000;
    private static KafkaProducer<byte[], byte[]> producer;
    private static String bootstrap;
    private static boolean isStarted;

    private Transactions() {
    }

    static void addTo(Map<String, Driver.Command> commands) {
        commands.put("txn_start", Transactions::start);
        commands.put("txn_begin", Transactions::begin);
        commands.put("txn_send", arguments -> Records.sendAll(producer, arguments.get("records"), TIMEOUT_MS));
        commands.put("txn_offsets", Transactions::sendOffsets);
        commands.put("txn_commit", arguments -> {
            producer.commitTransaction();
            return new Object[0];
        });
        commands.put("txn_abort", arguments -> {
            producer.abortTransaction();
            return null;
        });
        commands.put("txn_close", Transactions::close);
    }

    private static Object start(JsonNode arguments) {
        bootstrap = arguments.get("bootstrap").asText();
        Properties settings = Records.producerSettings(bootstrap);
        settings.put(ProducerConfig.TRANSACTIONAL_ID_CONFIG, arguments.get("transactional_id").asText());
        int timeoutMs = arguments.path("timeout_ms").asInt(60_000);
        settings.put(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG, timeoutMs);
        settings.put(ProducerConfig.MAX_BLOCK_MS_CONFIG, TIMEOUT_MS);
        producer = new KafkaProducer<>(settings);
        isStarted = false;
        return null;
    }

    private static Object begin(JsonNode arguments) {
        if (!isStarted) {
            producer.initTransactions();
            isStarted = true;
        }
        producer.beginTransaction();
        return null;
    }

    private static Object sendOffsets(JsonNode arguments) {
        var positions = Administration.positions(arguments);
        if (arguments.path("as_member").asBoolean(false)) {
            producer.sendOffsetsToTransaction(positions, Member.kept());
            return null;
        }
        Properties settings = Records.consumerSettings(bootstrap);
        settings.put(ConsumerConfig.GROUP_ID_CONFIG, arguments.get("group").asText());
        try (var outsider = new KafkaConsumer<byte[], byte[]>(settings)) {
            producer.sendOffsetsToTransaction(positions, outsider.groupMetadata());
        }
        return null;
    }

    private static Object close(JsonNode arguments) {
        if (producer != null) {
            producer.close(Duration.ZERO);
            producer = null;
        }
        return null;
    }
}
