import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's tools one after the other in this JVM, by their main methods: java.py starts it.
 *
 * A line of stdin is {"command": "run", "words": "..."}: the tool's class, its stdin and its arguments, each in
 * base64. The answer is the exit code, the stdout and the stderr, in base64. A tool that exits is ended by an
 * error from there, and its shutdown hooks run. The classes of the tools are loaded anew for each run, because
 * some have static fields (ConsoleConsumer counts its records in one).
 */
final class Toolbox {
    private static final List<String> OF_TOOLS = List.of("org.apache.kafka.tools.", "kafka.tools.", "kafka.admin.");

    private static final Output out = new Output();
    private static final Output err = new Output();
    private static final Input in = new Input();
    private static final List<Runnable> hooks = new ArrayList<>();
    private static Integer exitCode;

    private Toolbox() {
    }

    /** Stays the same object for every run, because Scala keeps the System.out that it finds first. */
    private static final class Output extends OutputStream {
        private ByteArrayOutputStream current = new ByteArrayOutputStream();

        @Override
        public synchronized void write(int one) {
            current.write(one);
        }

        @Override
        public synchronized void write(byte[] data, int start, int length) {
            current.write(data, start, length);
        }

        synchronized String take() {
            byte[] data = current.toByteArray();
            current = new ByteArrayOutputStream();
            return Base64.getEncoder().encodeToString(data);
        }
    }

    private static final class Input extends InputStream {
        private volatile InputStream current = InputStream.nullInputStream();

        @Override
        public int read() throws IOException {
            return current.read();
        }

        @Override
        public int read(byte[] data, int start, int length) throws IOException {
            return current.read(data, start, length);
        }
    }

    private static final class Ended extends Error {
        Ended() {
            super(null, null, false, false);
        }
    }

    private static final class ToolLoader extends ClassLoader {
        ToolLoader(ClassLoader parent) {
            super(parent);
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            synchronized (getClassLoadingLock(name)) {
                Class<?> found = findLoadedClass(name);
                if (found != null || OF_TOOLS.stream().noneMatch(name::startsWith)) {
                    return found != null ? found : super.loadClass(name, resolve);
                }
                try (InputStream data = getResourceAsStream(name.replace('.', '/') + ".class")) {
                    if (data == null) {
                        throw new ClassNotFoundException(name);
                    }
                    byte[] code = data.readAllBytes();
                    return defineClass(name, code, 0, code.length);
                } catch (IOException error) {
                    throw new ClassNotFoundException(name, error);
                }
            }
        }
    }

    private static void exit(int code, String message) {
        if (exitCode == null) {
            exitCode = code;
        }
        throw new Ended();
    }

    private static int run(String name, String[] arguments) {
        exitCode = null;
        hooks.clear();
        var loader = new ToolLoader(Toolbox.class.getClassLoader());
        Thread.currentThread().setContextClassLoader(loader);
        try {
            var main = loader.loadClass(name).getMethod("main", String[].class);
            main.setAccessible(true);
            main.invoke(null, (Object) arguments);
        } catch (InvocationTargetException error) {
            if (!(error.getCause() instanceof Ended)) {
                error.getCause().printStackTrace();
                exitCode = exitCode == null ? 1 : exitCode;
            }
        } catch (ReflectiveOperationException error) {
            error.printStackTrace();
            exitCode = 1;
        }
        hooks.forEach(Runnable::run);
        return exitCode == null ? 0 : exitCode;
    }

    public static void main(String[] ignored) throws IOException {
        var answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true);
        var commands = new BufferedReader(new InputStreamReader(System.in));
        System.setIn(in);
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure(Toolbox::exit);
        Exit.setHaltProcedure(Toolbox::exit);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String encoded = line.replaceAll(".*\"words\": \"([^\"]*)\".*", "$1");
            String[] words = Arrays.stream(encoded.split(" ", -1))
                .map(word -> new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8))
                .toArray(String[]::new);
            in.current = new ByteArrayInputStream(words[1].getBytes(StandardCharsets.UTF_8));
            int code = run(words[0], Arrays.copyOfRange(words, 2, words.length));
            answers.printf("{\"answer\": [%d, \"%s\", \"%s\"]}%n", code, out.take(), err.take());
        }
        Runtime.getRuntime().halt(0);
    }
}
