import com.fasterxml.jackson.databind.JsonNode;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.CommonClientConfigs;
import org.apache.kafka.common.config.SaslConfigs;
import org.apache.kafka.common.config.SslConfigs;

/** How the clients reach a secured cluster: the command `access`, see access.py. */
final class Access {
    private static final String MODULES = "org.apache.kafka.common.security.";
    private static Map<String, Object> security = Map.of();

    private Access() {
    }

    static void addTo(Map<String, Driver.Command> commands) {
        commands.put("access", arguments -> {
            security = securityOf(arguments);
            return null;
        });
    }

    /** The settings with which every client reaches the bootstrap servers. */
    static Map<String, Object> settings(String bootstrap) {
        Map<String, Object> settings = new HashMap<>(security);
        settings.put(CommonClientConfigs.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        return settings;
    }

    private static Map<String, Object> securityOf(JsonNode arguments) throws IOException {
        Map<String, Object> settings = new HashMap<>();
        boolean isSecure = arguments.hasNonNull("ca_file");
        boolean isNamed = arguments.hasNonNull("mechanism");
        if (isSecure) {
            settings.put(SslConfigs.SSL_TRUSTSTORE_TYPE_CONFIG, "PEM");
            settings.put(SslConfigs.SSL_TRUSTSTORE_LOCATION_CONFIG, arguments.get("ca_file").asText());
        }
        if (arguments.hasNonNull("certificate")) {
            settings.put(SslConfigs.SSL_KEYSTORE_TYPE_CONFIG, "PEM");
            settings.put(SslConfigs.SSL_KEYSTORE_LOCATION_CONFIG, arguments.get("certificate").asText());
        }
        if (isNamed) {
            settings.put(SaslConfigs.SASL_MECHANISM, arguments.get("mechanism").asText());
            settings.putAll(loginOf(arguments));
        }
        String protocol = (isNamed ? "SASL_" : "") + (isSecure ? "SSL" : "PLAINTEXT");
        settings.put(CommonClientConfigs.SECURITY_PROTOCOL_CONFIG, protocol);
        return settings;
    }

    private static Map<String, Object> loginOf(JsonNode arguments) throws IOException {
        if (arguments.hasNonNull("token")) {
            Path file = Files.writeString(File.createTempFile("token", "").toPath(), arguments.get("token").asText());
            file.toFile().deleteOnExit();
            String url = file.toUri().toString();
            System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", url);
            System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.files", file.toString());
            return Map.of(
                SaslConfigs.SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL, url,
                SaslConfigs.SASL_LOGIN_CALLBACK_HANDLER_CLASS, MODULES + "oauthbearer.OAuthBearerLoginCallbackHandler",
                SaslConfigs.SASL_JAAS_CONFIG, MODULES + "oauthbearer.OAuthBearerLoginModule required;");
        }
        boolean isPlain = arguments.get("mechanism").asText().equals("PLAIN");
        String module = MODULES + (isPlain ? "plain.PlainLoginModule" : "scram.ScramLoginModule");
        String login = module + " required username=\"%s\" password=\"%s\";";
        String user = arguments.get("user").asText();
        return Map.of(SaslConfigs.SASL_JAAS_CONFIG, String.format(login, user, arguments.get("password").asText()));
    }
}
