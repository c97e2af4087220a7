import com.fasterxml.jackson.databind.JsonNode;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Sends to every partition in turn until it is stopped, and keeps the outcomes; see load.py. */
final class Load {
    private static Load current;

    private final KafkaProducer<byte[], byte[]> producer;
    private final String topic;
    private final int partitions;
    private final long intervalNs;
    private final Thread thread = new Thread(this::run);
    private volatile boolean isStopping;

    // The ledger is guarded by this object.
    private final Map<Integer, List<long[]>> acknowledged = new HashMap<>();
    private final List<String> errors = new ArrayList<>();
    private final Map<Integer, Double> slowestMs = new HashMap<>();
    private final Map<Integer, Double> firstMs = new HashMap<>();
    private long markedNs = System.nanoTime();
    private long sent;

    private Load(JsonNode arguments) {
        Properties settings = Records.producerSettings(arguments.get("bootstrap").asText());
        settings.put(ProducerConfig.ACKS_CONFIG, "all");
        if (arguments.hasNonNull("idempotent")) {
            settings.put(ProducerConfig.ENABLE_IDEMPOTENCE_CONFIG, arguments.get("idempotent").asBoolean());
        }
        producer = new KafkaProducer<>(settings);
        topic = arguments.get("topic").asText();
        partitions = arguments.get("partitions").asInt();
        intervalNs = Math.round(arguments.get("interval_ms").asDouble() * 1e6);
    }

    static void addTo(Map<String, Driver.Command> commands) {
        commands.put("load_start", arguments -> {
            current = new Load(arguments);
            current.thread.start();
            return null;
        });
        commands.put("load_mark", arguments -> {
            current.mark(arguments.path("at_ns").asLong(System.nanoTime()));
            return null;
        });
        commands.put("load_status", arguments -> current.status());
        commands.put("load_stop", arguments -> current.stop(arguments));
    }

    private void run() {
        long due = System.nanoTime();
        for (long number = 0; !isStopping; number++) {
            for (int partition = 0; partition < partitions; partition++) {
                send(partition, number);
            }
            due = Math.max(due + intervalNs, System.nanoTime());
            try {
                Thread.sleep(Math.max(0, (due - System.nanoTime()) / 1_000_000));
            } catch (InterruptedException error) {
                return;
            }
        }
    }

    private void send(int partition, long number) {
        byte[] value = (partition + ":" + number).getBytes(StandardCharsets.UTF_8);
        long sentNs = System.nanoTime();
        synchronized (this) {
            sent++;
        }
        producer.send(new ProducerRecord<>(topic, partition, null, value), (metadata, error) -> {
            if (error == null) {
                acknowledge(partition, number, metadata.offset(), sentNs);
            } else {
                fail(error);
            }
        });
    }

    private synchronized void acknowledge(int partition, long number, long offset, long sentNs) {
        long nowNs = System.nanoTime();
        acknowledged.computeIfAbsent(partition, ignored -> new ArrayList<>()).add(new long[] {number, offset});
        slowestMs.merge(partition, (nowNs - sentNs) / 1e6, Math::max);
        if (sentNs > markedNs) {
            firstMs.putIfAbsent(partition, (nowNs - markedNs) / 1e6);
        }
    }

    private synchronized void fail(Exception error) {
        errors.add(error.toString());
    }

    private synchronized void mark(long atNs) {
        firstMs.clear();
        slowestMs.clear();
        markedNs = atNs;
    }

    private synchronized Map<String, Object> status() {
        return Map.of(
            "sent", sent,
            "acknowledged", acknowledged.values().stream().mapToInt(List::size).sum(),
            "errors", new ArrayList<>(errors.subList(0, Math.min(20, errors.size()))),
            "failed", errors.size(),
            "slowest_ms", new HashMap<>(slowestMs),
            "first_ms", new HashMap<>(firstMs));
    }

    private Object stop(JsonNode arguments) throws InterruptedException, IOException {
        isStopping = true;
        thread.join();
        producer.close(Duration.ofSeconds(arguments.path("timeout_s").asLong(60)));
        synchronized (this) {
            Driver.JSON.writeValue(new File(arguments.get("path").asText()), acknowledged);
            return status();
        }
    }
}
