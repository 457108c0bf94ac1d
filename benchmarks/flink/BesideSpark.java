package beside;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.FileVisitResult;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.SimpleFileVisitor;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;

import com.sun.management.OperatingSystemMXBean;

import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.CheckpointType;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;

/**
 * Workloads W and L (benchmarks/workload_w.py, workload_l.py) on Flink, in a cluster inside this process.
 *
 * <p>{@code w FOLDER BACKEND CHECKPOINTS INTERVAL_MS RUNS} reads everything as fast as it can and prints a line a run:
 * milliseconds, CPU milliseconds of the process, completed, expired, and the sums of their numbers. The end of the
 * files is the end of time: every operation that was not completed expires.
 *
 * <p>{@code q9 FOLDER BACKEND CHECKPOINTS INTERVAL_MS RUNS} does the same with query 9 of Nexmark: milliseconds, CPU
 * milliseconds, winners, and the sum of their hashes.
 *
 * <p>{@code l FOLDER BACKEND CHECKPOINTS ROWS WATERMARKS} lets the job read one file a side, waits until its rows are
 * processed and its watermark has passed, takes a checkpoint, and goes on to the next one. ROWS and WATERMARKS are
 * lists: rows up to and with each micro-batch, and the watermark in milliseconds after it. A line a micro-batch:
 * milliseconds and CPU milliseconds of its rows, those of its checkpoint, bytes of files that are new. Then a line with
 * completed, expired and the sums.
 */
public final class BesideSpark {
    private static final OperatingSystemMXBean PROCESS =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final String FROM_OUTSIDE_ONLY = String.valueOf(24L * 3600 * 1000);

    private BesideSpark() {}

    public static void main(String[] arguments) throws Exception {
        Path checkpoints = Path.of(arguments[3]);
        if (!arguments[0].equals("l")) {
            boolean auctions = arguments[0].equals("q9");
            for (int run = 0; run < Integer.parseInt(arguments[5]); run++) {
                delete(checkpoints);
                throughput(arguments[1], arguments[2], checkpoints, arguments[4], auctions);
            }
        } else {
            microBatches(arguments[1], arguments[2], checkpoints, longs(arguments[4]), longs(arguments[5]));
        }
        System.exit(0);
    }

    private static void throughput(
            String folder, String backend, Path checkpoints, String intervalMs, boolean auctions) throws Exception {
        Configuration settings = settings(backend, checkpoints, intervalMs);
        Progress.reset(Integer.MAX_VALUE);
        Auctions.reset();
        try (MiniCluster cluster = cluster(settings)) {
            long startedNs = System.nanoTime();
            long cpuNs = PROCESS.getProcessCpuTime();
            StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(settings);
            if (auctions) {
                Auctions.plan(env, folder);
            } else {
                plan(env, folder, false);
            }
            JobID job = submit(cluster, env);
            Progress.await(0, Long.MAX_VALUE);
            print(ms(System.nanoTime() - startedNs), ms(PROCESS.getProcessCpuTime() - cpuNs),
                    auctions ? Auctions.outcomes() : Progress.outcomes());
            cluster.requestJobResult(job).get();
        }
    }

    private static void microBatches(
            String folder, String backend, Path checkpoints, List<Long> rows, List<Long> watermarks) throws Exception {
        delete(checkpoints);
        Configuration settings = settings(backend, checkpoints, FROM_OUTSIDE_ONLY);
        Progress.reset(0);
        try (MiniCluster cluster = cluster(settings)) {
            StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(settings);
            plan(env, folder, true);
            JobID job = submit(cluster, env);
            Map<Path, Long> before = new HashMap<>();
            for (int batch = 0; batch < rows.size(); batch++) {
                long[] wallNs = new long[3];
                long[] cpuNs = new long[3];
                mark(wallNs, cpuNs, 0);
                Progress.openFiles = batch + 1;
                Progress.await(rows.get(batch), watermarks.get(batch));
                mark(wallNs, cpuNs, 1);
                cluster.triggerCheckpoint(job, CheckpointType.CONFIGURED).get();
                mark(wallNs, cpuNs, 2);
                Map<Path, Long> after = files(checkpoints);
                long newBytes = 0;
                for (Map.Entry<Path, Long> file : after.entrySet()) {
                    newBytes += file.getValue() - before.getOrDefault(file.getKey(), 0L);
                }
                before = after;
                print(ms(wallNs[1] - wallNs[0]), ms(cpuNs[1] - cpuNs[0]), ms(wallNs[2] - wallNs[1]),
                        ms(cpuNs[2] - cpuNs[1]), newBytes);
            }
            print(Progress.outcomes());
            cluster.cancelJob(job).get();
            cluster.requestJobResult(job).get();
        }
    }

    private static void plan(StreamExecutionEnvironment env, String folder, boolean gated) {
        Inputs.read(env, folder, "operations", Inputs.OPERATIONS, Inputs.CREATED, gated)
                .keyBy(row -> row.getString(Inputs.KEY).toString())
                .connect(Inputs.read(env, folder, "events", Inputs.EVENTS, Inputs.EVENT_TIME, gated)
                        .keyBy(row -> row.getString(Inputs.EVENT_KEY).toString()))
                .process(new AnyKey(), InternalTypeInfo.<RowData>of(Inputs.OUTCOMES))
                .sinkTo(new Counted());
    }

    private static JobID submit(MiniCluster cluster, StreamExecutionEnvironment env) throws Exception {
        JobGraph graph = env.getStreamGraph().getJobGraph();
        JobID job = cluster.submitJob(graph).get().getJobID();
        cluster.requestJobResult(job).thenAccept(result -> {
            if (result.getJobStatus().orElse(JobStatus.FAILED) == JobStatus.FAILED) {
                result.getSerializedThrowable().ifPresent(Throwable::printStackTrace);
                Progress.failed();
            }
        });
        return job;
    }

    private static MiniCluster cluster(Configuration settings) throws Exception {
        MiniCluster cluster = new MiniCluster(new MiniClusterConfiguration.Builder()
                .setConfiguration(settings)
                .setNumTaskManagers(1)
                .setNumSlotsPerTaskManager(Progress.PARALLELISM)
                .withRandomPorts()
                .build());
        cluster.start();
        return cluster;
    }

    private static Configuration settings(String backend, Path checkpoints, String intervalMs) {
        Map<String, String> settings = new HashMap<>(Map.of(
                "parallelism.default", String.valueOf(Progress.PARALLELISM),
                "pipeline.object-reuse", "true",
                "pipeline.auto-watermark-interval", "20 ms",
                // 100 ms by default, which a micro-batch would wait for with its last rows.
                "execution.buffer-timeout.interval", "10 ms",
                "execution.checkpointing.storage", "filesystem",
                "execution.checkpointing.incremental", "true",
                "restart-strategy.type", "none",
                "taskmanager.memory.managed.size", "512m",
                "rest.bind-address", "127.0.0.1"));
        settings.put("execution.checkpointing.interval", intervalMs + " ms");
        settings.put("execution.checkpointing.dir", checkpoints.toUri().toString());
        settings.put("state.backend.type", backend.equals("rocksdb") ? "rocksdb" : "hashmap");
        if (backend.equals("changelog")) {
            settings.put("state.changelog.enabled", "true");
            settings.put("state.changelog.storage", "filesystem");
            settings.put("dstl.dfs.base-path", checkpoints.toUri().toString());
        }
        return Configuration.fromMap(settings);
    }

    private static void mark(long[] wallNs, long[] cpuNs, int place) {
        wallNs[place] = System.nanoTime();
        cpuNs[place] = PROCESS.getProcessCpuTime();
    }

    private static Map<Path, Long> files(Path folder) throws IOException {
        Map<Path, Long> sizes = new HashMap<>();
        Files.walkFileTree(folder, new SimpleFileVisitor<>() {
            @Override
            public FileVisitResult visitFile(Path file, BasicFileAttributes attributes) {
                sizes.put(file, attributes.size());
                return FileVisitResult.CONTINUE;
            }

            @Override
            public FileVisitResult visitFileFailed(Path file, IOException error) {
                return FileVisitResult.CONTINUE; // Flink removes files of older checkpoints meanwhile.
            }

            @Override
            public FileVisitResult postVisitDirectory(Path below, IOException error) {
                return FileVisitResult.CONTINUE;
            }
        });
        return sizes;
    }

    private static void delete(Path folder) throws IOException {
        if (Files.exists(folder)) {
            try (Stream<Path> below = Files.walk(folder)) {
                for (Path path : below.sorted(Comparator.reverseOrder()).toList()) {
                    Files.delete(path);
                }
            }
        }
        Files.createDirectories(folder);
    }

    private static List<Long> longs(String list) {
        return Stream.of(list.split(",")).map(Long::parseLong).toList();
    }

    private static long ms(long ns) {
        return ns / 1_000_000;
    }

    private static void print(Object... parts) {
        System.out.println(String.join(" ", Stream.of(parts).map(String::valueOf).toList()));
    }
}
