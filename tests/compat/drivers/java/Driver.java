import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.common.protocol.Errors;

/** Kafka's own Java clients, as an application uses them; the protocol is that of stdio.py. */
public final class Driver {
    static final ObjectMapper JSON = new ObjectMapper();

    private Driver() {
    }

    /** A command: its arguments as JSON; its answer is written as JSON. */
    interface Command {
        Object run(JsonNode arguments) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        Map<String, Command> commands = new HashMap<>();
        commands.put("hello", ignored -> Map.of("client", "Java 4.4", "version", version()));
        Access.addTo(commands);
        Records.addTo(commands);
        Administration.addTo(commands);
        Load.addTo(commands);
        Member.addTo(commands);
        Transactions.addTo(commands);
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            answers.println(JSON.writeValueAsString(reply(commands, (ObjectNode) JSON.readTree(line))));
            answers.flush();
        }
        // A member that was not stopped has a thread.
        System.exit(0);
    }

    private static String version() throws IOException {
        try (var stream = Errors.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            var properties = new Properties();
            properties.load(stream);
            return properties.getProperty("version");
        }
    }

    private static Map<String, Object> reply(Map<String, Command> commands, ObjectNode arguments) {
        String name = arguments.remove("command").asText();
        Command command = commands.get(name);
        if (command == null) {
            return Map.of("unsupported", "the driver of Java has no " + name);
        }
        Map<String, Object> reply = new HashMap<>();
        try {
            reply.put("answer", command.run(arguments));
        } catch (Exception error) {
            error.printStackTrace();
            reply.put("error", describe(error));
        }
        return reply;
    }

    /** Kafka's code of an error, -1 for an error of the client's own, its name and its text. */
    static Map<String, Object> describe(Throwable error) {
        Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
        int code = Errors.forException(cause).code();
        return Map.of(
            "code", code,
            "name", cause.getClass().getSimpleName(),
            "text", String.valueOf(cause.getMessage()));
    }
}
