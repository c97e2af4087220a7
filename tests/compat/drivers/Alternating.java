import java.io.IOException;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Aborts and commits transactions in turn, with one record in each partition, until its standard input ends.
 *
 * Arguments: the brokers, the topic, its number of partitions, the transactional id. It prints the number of
 * each transaction, which is the value of its records, with its outcome.
 */
public final class Alternating {
    private Alternating() {
    }

    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(ProducerConfig.TRANSACTIONAL_ID_CONFIG, arguments[3]);
        settings.put(ProducerConfig.KEY_SERIALIZER_CLASS_CONFIG, StringSerializer.class);
        settings.put(ProducerConfig.VALUE_SERIALIZER_CLASS_CONFIG, StringSerializer.class);
        int partitions = Integer.parseInt(arguments[2]);
        AtomicBoolean isOver = whenInputEnds();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            for (int number = 0; !isOver.get(); number++) {
                producer.beginTransaction();
                for (int partition = 0; partition < partitions; partition++) {
                    String value = Integer.toString(number);
                    producer.send(new ProducerRecord<>(arguments[1], partition, null, value));
                }
                // The abort of a record that was not sent would show nothing.
                producer.flush();
                if (number % 2 == 0) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
                System.out.println(number + (number % 2 == 0 ? " aborted" : " committed"));
            }
        }
    }

    private static AtomicBoolean whenInputEnds() {
        AtomicBoolean isOver = new AtomicBoolean();
        Thread reading = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (IOException error) {
                error.printStackTrace();
            }
            isOver.set(true);
        });
        reading.setDaemon(true);
        reading.start();
        return isOver;
    }
}
