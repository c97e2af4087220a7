import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.common.TopicPartition;

/** A consumer of a group, which reads and takes notes on a thread of its own; see member.py. */
final class Member implements ConsumerRebalanceListener {
    private static final int TIMEOUT_S = 60;
    private static Member current;
    private static ConsumerGroupMetadata kept;

    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Thread thread = new Thread(this::run);
    private final ConcurrentLinkedQueue<FutureTask<Object>> orders = new ConcurrentLinkedQueue<>();
    private volatile boolean isStopping;

    // The notes are guarded by this object.
    private List<List<Object>> assigned = new ArrayList<>();
    private final List<List<Object>> taken = new ArrayList<>();
    private final List<List<Object>> read = new ArrayList<>();
    private final List<String> errors = new ArrayList<>();

    private Member(JsonNode arguments) {
        Properties settings = Records.consumerSettings(arguments.get("bootstrap").asText());
        boolean isStatic = arguments.hasNonNull("instance");
        boolean isCooperative = arguments.path("strategy").asText("range").equals("cooperative-sticky");
        settings.put(ConsumerConfig.GROUP_ID_CONFIG, arguments.get("group").asText());
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        settings.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, arguments.path("auto_commit").asBoolean(false));
        // Short, so that a killed member is evicted soon; a static member that is away must not be.
        settings.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, isStatic ? 60_000 : arguments.path("session_ms").asInt(6_000));
        settings.put(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, 500);
        settings.put(ConsumerConfig.METADATA_MAX_AGE_CONFIG, 300);
        settings.put(ConsumerConfig.AUTO_COMMIT_INTERVAL_MS_CONFIG, 500);
        settings.put(
            ConsumerConfig.PARTITION_ASSIGNMENT_STRATEGY_CONFIG,
            List.of(isCooperative ? CooperativeStickyAssignor.class : RangeAssignor.class));
        if (isStatic) {
            settings.put(ConsumerConfig.GROUP_INSTANCE_ID_CONFIG, arguments.get("instance").asText());
        }
        consumer = new KafkaConsumer<>(settings);
        if (arguments.hasNonNull("pattern")) {
            consumer.subscribe(Pattern.compile("^" + arguments.get("pattern").asText()), this);
        } else {
            List<String> topics = new ArrayList<>();
            arguments.get("topics").forEach(topic -> topics.add(topic.asText()));
            consumer.subscribe(topics, this);
        }
        thread.setDaemon(true);
    }

    static void addTo(Map<String, Driver.Command> commands) {
        commands.put("member_start", arguments -> {
            current = new Member(arguments);
            current.thread.start();
            return null;
        });
        commands.put("member_status", arguments -> current.status());
        commands.put("member_commit", arguments -> {
            boolean isSync = arguments.get("how").asText().equals("sync");
            return current.order(() -> current.commit(isSync));
        });
        commands.put("member_keep", arguments -> {
            kept = (ConsumerGroupMetadata) current.order(current.consumer::groupMetadata);
            return null;
        });
        commands.put("member_pid", arguments -> ProcessHandle.current().pid());
        commands.put("member_stop", arguments -> current.stop());
    }

    /** The group metadata that `member_keep` kept last. */
    static ConsumerGroupMetadata kept() {
        return kept;
    }

    private void run() {
        try (consumer) {
            while (!isStopping) {
                for (FutureTask<Object> order = orders.poll(); order != null; order = orders.poll()) {
                    order.run();
                }
                poll();
            }
        } catch (RuntimeException error) {
            error.printStackTrace();
            synchronized (this) {
                errors.add(error.toString());
            }
        }
    }

    private void poll() {
        var records = consumer.poll(Duration.ofMillis(100));
        synchronized (this) {
            assigned = pairs(consumer.assignment());
            records.forEach(record -> read.add(List.of(record.topic(), record.partition(), record.offset())));
        }
    }

    private Object commit(boolean isSync) throws Exception {
        if (isSync) {
            consumer.commitSync();
            return null;
        }
        List<Object> answers = new ArrayList<>();
        consumer.commitAsync((offsets, error) -> answers.add(error == null ? "committed" : error));
        long endNs = System.nanoTime() + TimeUnit.SECONDS.toNanos(TIMEOUT_S);
        while (answers.isEmpty() && System.nanoTime() < endNs) {
            poll();
        }
        if (answers.get(0) instanceof Exception) {
            throw (Exception) answers.get(0);
        }
        return null;
    }

    private Object order(Callable<Object> work) throws Exception {
        FutureTask<Object> order = new FutureTask<>(work);
        orders.add(order);
        return order.get(TIMEOUT_S, TimeUnit.SECONDS);
    }

    private Object stop() throws InterruptedException {
        isStopping = true;
        thread.join(TIMEOUT_S * 1000L);
        return status();
    }

    private synchronized Map<String, Object> status() {
        return Map.of(
            "assigned", assigned,
            "taken", new ArrayList<>(taken),
            "read", new ArrayList<>(read),
            "errors", new ArrayList<>(errors));
    }

    private static List<List<Object>> pairs(Collection<TopicPartition> places) {
        List<List<Object>> made = new ArrayList<>();
        places.forEach(place -> made.add(List.of(place.topic(), place.partition())));
        return made;
    }

    @Override
    public synchronized void onPartitionsRevoked(Collection<TopicPartition> revoked) {
        taken.addAll(pairs(revoked));
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        // Noted after each poll.
    }
}
