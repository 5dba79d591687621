// Takes the requests of a Java context and runs them with JShell, in this process. main.sh starts it.
//
// A cell is cut into snippets (declarations, statements, expressions), which run one after the other until one fails.
// The keeper's SIGINT comes in a thread of its own, which stops the snippet that runs; snippets that follow are left out.

import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Collectors;
import jdk.jshell.DeclarationSnippet;
import jdk.jshell.Diag;
import jdk.jshell.EvalException;
import jdk.jshell.JShell;
import jdk.jshell.JShellException;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis.CompletionInfo;

public class Main {
    static final int MAX_TEXT = 1024 * 1024, MAX_VALUE = 16_384, MAX_TRACEBACK = 131_072;
    static final String[] IMPORTS = {
        "java.io", "java.math", "java.net", "java.nio.file", "java.util", "java.util.concurrent", "java.util.function",
        "java.util.regex", "java.util.stream",
    };

    static DataInputStream requests;
    static OutputStream frames;
    static JShell shell;
    static int cells;
    static final Map<String, int[]> places = new HashMap<>(); // by id of a snippet: its cell, and the line it begins at
    static volatile boolean running, interrupted;

    public static void main(String[] arguments) throws Exception {
        FileDescriptor channel = new FileDescriptor();
        opened(FileDescriptor.class, "fd").setInt(channel, 3);
        requests = new DataInputStream(new FileInputStream(channel));
        frames = new FileOutputStream(channel);
        System.setOut(stream(FileDescriptor.out));
        System.setErr(stream(FileDescriptor.err));
        System.setIn(InputStream.nullInputStream());
        listenToInterrupts();
        send('h', Map.of("version", System.getProperty("java.version")));
        shell = JShell.builder().executionEngine("local").build();
        for (String name : IMPORTS) shell.eval("import " + name + ".*;");
        while (true) run(receive());
    }

    static PrintStream stream(FileDescriptor descriptor) {
        return new PrintStream(new BufferedOutputStream(new FileOutputStream(descriptor)), true, StandardCharsets.UTF_8);
    }

    static Field opened(Class<?> type, String name) throws NoSuchFieldException {
        Field field = type.getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }

    // ---- cells

    static void run(Map<?, ?> request) throws Exception {
        Map<String, String> before = setVariables(variables(request.get("env")));
        cells++;
        interrupted = false;
        running = true;
        Map<String, String> failure;
        try {
            failure = runCode((String) request.get("code"));
        } finally {
            running = false;
            setVariables(before);
        }
        if (interrupted) failure = failure("Interrupted", "The cell was interrupted.", "");
        flush();
        Map<String, Object> end = new LinkedHashMap<>();
        end.put("execution_count", cells);
        end.put("error", failure);
        send('x', end);
    }

    // Null, or what went wrong.
    static Map<String, String> runCode(String code) throws IOException {
        int line = 1;
        SnippetEvent last = null;
        for (String rest = code; !rest.isBlank() && !interrupted; ) {
            CompletionInfo info = shell.sourceCodeAnalysis().analyzeCompletion(rest);
            boolean complete = info.completeness().isComplete();
            String source = complete ? info.source() : rest, remaining = complete ? info.remaining() : "";
            for (SnippetEvent event : shell.eval(source)) {
                if (event.causeSnippet() != null) continue; // of an earlier snippet that this one completes or replaces
                places.put(event.snippet().id(), new int[] {cells, line + lines(source) - lines(source.stripLeading())});
                Map<String, String> failure = failureOf(event, source, line);
                if (failure != null) return failure;
                last = event;
            }
            line += lines(rest) - lines(remaining);
            rest = remaining;
        }
        if (last != null && !interrupted && isValue(last)) show(last.value());
        return null;
    }

    static int lines(String text) {
        return (int) text.chars().filter(character -> character == '\n').count();
    }

    // Whether it is an expression. JShell also gives the values of variables that are declared.
    static boolean isValue(SnippetEvent event) {
        Snippet snippet = event.snippet();
        boolean isExpression = snippet.kind() == Snippet.Kind.EXPRESSION
            || snippet.subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND;
        return isExpression && event.value() != null && !event.value().isEmpty();
    }

    static void show(String text) throws IOException {
        flush();
        Map<String, Object> result = new LinkedHashMap<>(Map.of("type", "result", "is_main_result", true));
        result.put("text", text.length() > MAX_TEXT ? text.substring(0, MAX_TEXT) : text);
        if (text.length() > MAX_TEXT) result.put("cut", List.of("text"));
        send('r', result);
    }

    // ---- errors

    static Map<String, String> failure(String name, String value, String traceback) {
        return Map.of("name", name, "value", shortened(value, MAX_VALUE), "traceback", shortened(traceback, MAX_TRACEBACK));
    }

    static String shortened(String text, int most) {
        if (text.length() <= most) return text;
        String left = "\n\u2026 " + (text.length() - most) + " characters are left out here \u2026\n";
        return text.substring(0, most / 2) + left + text.substring(text.length() - most / 2);
    }

    static Map<String, String> failureOf(SnippetEvent event, String source, int line) {
        if (event.exception() != null) return thrown(event.exception());
        Snippet.Status status = event.status();
        if (status != Snippet.Status.REJECTED && status != Snippet.Status.RECOVERABLE_NOT_DEFINED) return null;
        List<String> texts = new ArrayList<>();
        shell.diagnostics(event.snippet()).filter(Diag::isError).forEach(found -> {
            int at = line + lines(source.substring(0, (int) Math.max(0, Math.min(found.getPosition(), source.length()))));
            texts.add(place(cells, at) + ": " + found.getMessage(Locale.ROOT).strip());
        });
        if (event.snippet() instanceof DeclarationSnippet)
            shell.unresolvedDependencies((DeclarationSnippet) event.snippet()).forEach(name -> texts.add("there is no " + name));
        String first = texts.isEmpty() ? "the code cannot be compiled" : texts.get(0);
        String value = first.lines().limit(2).map(String::strip).collect(Collectors.joining(", ")); // with the symbol
        return failure("CompilationError", value, String.join("\n", texts));
    }

    static Map<String, String> thrown(JShellException error) {
        String name = nameOf(error), message = error.getMessage() == null ? "" : error.getMessage();
        return failure(name.substring(name.lastIndexOf('.') + 1), message, trace(error));
    }

    static String nameOf(Throwable error) {
        return error instanceof EvalException ? ((EvalException) error).getExceptionClassName() : error.getClass().getName();
    }

    static String trace(Throwable error) {
        String head = nameOf(error) + (error.getMessage() == null ? "" : ": " + error.getMessage());
        StringBuilder text = new StringBuilder(head);
        for (StackTraceElement element : error.getStackTrace()) text.append("\n\tat ").append(shown(element));
        if (error.getCause() != null) text.append("\nCaused by: ").append(trace(error.getCause()));
        return text.toString();
    }

    // JShell calls the file of a snippet by the snippet's id.
    static String shown(StackTraceElement element) {
        String file = element.getFileName();
        int[] place = file != null && file.startsWith("#") ? places.get(file.substring(1)) : null;
        if (place == null) return element.toString();
        String type = element.getClassName().isEmpty() ? "" : element.getClassName() + ".";
        return type + element.getMethodName() + "(" + place(place[0], place[1] + element.getLineNumber() - 1) + ")";
    }

    static String place(int cell, int line) {
        return "cell_" + cell + ".java:" + line;
    }

    // ---- interrupts

    // By reflection: the compiler warns of sun.misc, and that warning would be printed into the first cell.
    static void listenToInterrupts() throws Exception {
        Class<?> signal = Class.forName("sun.misc.Signal"), handler = Class.forName("sun.misc.SignalHandler");
        Object ours = Proxy.newProxyInstance(Main.class.getClassLoader(), new Class<?>[] {handler}, (proxy, method, given) -> {
            if (method.getDeclaringClass() == handler) interrupt();
            return null;
        });
        signal.getMethod("handle", signal, handler).invoke(null, signal.getConstructor(String.class).newInstance("INT"), ours);
    }

    // Stops again until the cell has ended: what is compiled at this moment runs only after that.
    static void interrupt() throws InterruptedException {
        int cell = cells;
        if (running) interrupted = true;
        while (running && cells == cell) {
            shell.stop();
            Thread.sleep(20);
        }
    }

    // ---- the environment

    static Map<String, String> variables(Object given) {
        Map<String, String> found = new LinkedHashMap<>();
        if (given instanceof Map) ((Map<?, ?>) given).forEach((name, value) -> found.put((String) name, (String) value));
        return found;
    }

    // Sets variables for System.getenv and ProcessBuilder.environment, and properties of the same names, which are what
    // clients of E2B expect; those of Java itself have dots in their names. Null takes one away. Returns those from before.
    @SuppressWarnings("unchecked")
    static Map<String, String> setVariables(Map<String, String> variables) throws Exception {
        Map<String, String> shown = System.getenv();
        Map<String, String> real = (Map<String, String>) opened(shown.getClass(), "m").get(shown);
        Map<String, String> before = new LinkedHashMap<>();
        for (String name : variables.keySet()) before.put(name, shown.get(name));
        variables.forEach((name, value) -> {
            if (value == null) real.remove(name);
            else real.put(name, value);
            if (name.isEmpty() || name.contains(".")) return;
            if (value == null) System.clearProperty(name);
            else System.setProperty(name, value);
        });
        return before;
    }

    // ---- frames

    static void flush() {
        System.out.flush();
        System.err.flush();
    }

    static synchronized void send(char type, Map<String, ?> values) throws IOException {
        byte[] payload = json(values).getBytes(StandardCharsets.UTF_8);
        int size = payload.length;
        frames.write(new byte[] {(byte) type, (byte) (size >> 24), (byte) (size >> 16), (byte) (size >> 8), (byte) size});
        frames.write(payload);
    }

    static Map<?, ?> receive() throws IOException {
        try {
            requests.readByte();
            byte[] payload = new byte[requests.readInt()];
            requests.readFully(payload);
            return (Map<?, ?>) new Json(new String(payload, StandardCharsets.UTF_8)).value();
        } catch (EOFException gone) { // the keeper is gone
            Runtime.getRuntime().halt(0);
            return null;
        }
    }

    static String json(Object value) {
        if (value instanceof Map) {
            return ((Map<?, ?>) value).entrySet().stream()
                .map(entry -> json(entry.getKey()) + ":" + json(entry.getValue())).collect(Collectors.joining(",", "{", "}"));
        }
        if (value instanceof List) return ((List<?>) value).stream().map(Main::json).collect(Collectors.joining(",", "[", "]"));
        if (!(value instanceof String)) return String.valueOf(value);
        StringBuilder text = new StringBuilder("\"");
        for (char character : ((String) value).toCharArray()) {
            boolean plain = character >= ' ' && character != '"' && character != '\\' && !Character.isSurrogate(character);
            text.append(plain ? character : String.format("\\u%04x", (int) character));
        }
        return text.append('"').toString();
    }

    // Reads what requests consist of: objects and texts.
    static class Json {
        final String text;
        int at;

        Json(String text) {
            this.text = text;
        }

        Object value() {
            return next() == '{' ? object() : string();
        }

        char next() {
            while (" \t\r\n,:".indexOf(text.charAt(at)) >= 0) at++;
            return text.charAt(at++);
        }

        Map<String, Object> object() {
            Map<String, Object> found = new LinkedHashMap<>();
            while (next() != '}') {
                String name = string();
                found.put(name, value());
            }
            return found;
        }

        String string() { // after its first quote
            StringBuilder found = new StringBuilder();
            for (char character; (character = text.charAt(at++)) != '"'; ) {
                if (character == '\\') {
                    character = text.charAt(at++);
                    int place = "bfnrtu".indexOf(character);
                    if (character == 'u') character = (char) Integer.parseInt(text.substring(at, at += 4), 16);
                    else if (place >= 0) character = "\b\f\n\r\t".charAt(place);
                }
                found.append(character);
            }
            return found.toString();
        }
    }
}
