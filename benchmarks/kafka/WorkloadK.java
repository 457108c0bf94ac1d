// In Kafka's package: TimingWheel's constructor and TimerTaskList are not public.
package org.apache.kafka.server.util.timer;

import java.lang.management.ManagementFactory;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.DelayQueue;
import java.util.concurrent.atomic.AtomicInteger;

import com.sun.management.OperatingSystemMXBean;

import org.apache.kafka.server.purgatory.DelayedOperation;
import org.apache.kafka.server.purgatory.DelayedOperationKey;
import org.apache.kafka.server.purgatory.DelayedOperationPurgatory;

/**
 * Workload K (benchmarks/workload_k.py) on Kafka's own classes, on a logical clock, in one thread.
 *
 * <p>Arguments: operations, steps, rounds, then one or more of {@code wheel} and purge intervals. Every contender runs
 * {@code rounds + 1} times, the first unreported; a line for each: contender, operations a second, completed, expired,
 * checksum, CPU milliseconds of the process.
 */
public final class WorkloadK {
    private static final OperatingSystemMXBean PROCESS =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final int KEYS = 100_000;
    private static final int STEP_MS = 10;
    private static final int LONGEST_DELAY_MS = 2000;

    private final int operations;
    private final int steps;
    private final Key[][] keys;
    private final int[] delayMs;
    private final int[][] eventsOf;
    private final int[] firstOf;
    private long state = 42;
    private int step;
    private int completed;
    private int expired;
    private long checksum;

    record Key(long id) implements DelayedOperationKey {
        @Override
        public String keyLabel() {
            return Long.toString(id);
        }
    }

    /** Kafka's SystemTimer, but for the clock, which is ours, and the executor: tasks run where the clock is moved. */
    static final class LogicalTimer implements Timer {
        private final DelayQueue<TimerTaskList> queue = new DelayQueue<>();
        private final AtomicInteger counter = new AtomicInteger();
        private final TimingWheel wheel = new TimingWheel(1, 20, 0, counter, queue);
        long nowMs;

        @Override
        public void add(TimerTask task) {
            add(new TimerTaskEntry(task, task.delayMs + nowMs));
        }

        private void add(TimerTaskEntry entry) {
            if (!wheel.add(entry) && !entry.cancelled()) {
                entry.timerTask.run();
            }
        }

        @Override
        public boolean advanceClock(long timeoutMs) {
            boolean any = false;
            // A bucket's real delay is long over: logical time begins at 0, the machine's at its boot.
            for (TimerTaskList bucket = queue.peek();
                    bucket != null && bucket.getExpiration() <= nowMs;
                    bucket = queue.peek()) {
                queue.poll();
                wheel.advanceClock(bucket.getExpiration());
                bucket.flush(this::add);
                any = true;
            }
            return any;
        }

        @Override
        public int size() {
            return counter.get();
        }

        @Override
        public void close() {}
    }

    final class Operation extends DelayedOperation {
        private final int number;
        boolean done;

        Operation(int number) {
            super(WorkloadK.this.delayMs[number]);
            this.number = number;
        }

        @Override
        public boolean tryComplete() {
            return done && forceComplete();
        }

        @Override
        public void onComplete() {
            completed++;
            checksum += (number + 1L) * step;
        }

        @Override
        public void onExpiration() {
            expired++;
        }
    }

    private WorkloadK(int operations, int steps) {
        this.operations = operations;
        this.steps = steps;
        keys = new Key[operations][];
        delayMs = new int[operations];
        firstOf = new int[lastStep() + 1];
        Arrays.fill(firstOf, steps, firstOf.length, operations);
        int[] event = new int[operations];
        int[] counts = new int[lastStep()];
        for (int i = 0; i < operations; i++) {
            keys[i] = drawKeys();
            delayMs[i] = STEP_MS + 1 + below(LONGEST_DELAY_MS);
            boolean completes = below(100) < 75;
            int when = below((delayMs[i] - 1) / STEP_MS);
            int arrive = (int) ((long) i * steps / operations);
            firstOf[arrive + 1] = i + 1;
            event[i] = completes ? arrive + 1 + when : -1;
            if (completes) {
                counts[event[i]]++;
            }
        }
        eventsOf = new int[lastStep()][];
        for (int s = 0; s < lastStep(); s++) {
            eventsOf[s] = new int[counts[s]];
        }
        int[] at = new int[lastStep()];
        for (int i = 0; i < operations; i++) {
            if (event[i] >= 0) {
                eventsOf[event[i]][at[event[i]]++] = i;
            }
        }
    }

    private int lastStep() {
        return steps + LONGEST_DELAY_MS / STEP_MS + 2;
    }

    private Key[] drawKeys() {
        Key[] drawn = new Key[1 + below(3)];
        int distinct = 0;
        for (int k = 0; k < drawn.length; k++) {
            Key key = new Key(below(KEYS));
            boolean repeated = false;
            for (int j = 0; j < distinct; j++) {
                repeated |= drawn[j].equals(key);
            }
            if (!repeated) {
                drawn[distinct++] = key;
            }
        }
        return Arrays.copyOf(drawn, distinct);
    }

    private int below(int m) {
        state += 0x9E3779B97F4A7C15L;
        long z = (state ^ (state >>> 30)) * 0xBF58476D1CE4E5B9L;
        z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
        return (int) (((z ^ (z >>> 31)) >>> 1) % m);
    }

    private void purgatory(int purgeInterval) throws Exception {
        LogicalTimer timer = new LogicalTimer();
        DelayedOperationPurgatory<Operation> purgatory =
                new DelayedOperationPurgatory<>("k", timer, 0, purgeInterval, false, true);
        // What its reaper thread calls: the timer's clock, then a purge where one is due.
        Method advance = DelayedOperationPurgatory.class.getDeclaredMethod("advanceClock", long.class);
        advance.setAccessible(true);
        Operation[] alive = new Operation[operations];
        List<Key> watched = new ArrayList<>(3);
        for (step = 0; step < lastStep(); step++) {
            timer.nowMs = (long) step * STEP_MS;
            advance.invoke(purgatory, 0L);
            for (int i : eventsOf[step]) {
                alive[i].done = true;
                purgatory.checkAndComplete(keys[i][0]);
                alive[i] = null;
            }
            for (int i = firstOf[step]; i < firstOf[step + 1]; i++) {
                watched.clear();
                watched.addAll(List.of(keys[i]));
                alive[i] = new Operation(i);
                purgatory.tryCompleteElseWatch(alive[i], watched);
            }
        }
        completed -= expired;
        purgatory.shutdown();
    }

    private void wheel() {
        LogicalTimer timer = new LogicalTimer();
        for (step = 0; step < lastStep(); step++) {
            timer.nowMs = (long) step * STEP_MS;
            timer.advanceClock(0);
            for (int i = firstOf[step]; i < firstOf[step + 1]; i++) {
                int number = i;
                timer.add(new TimerTask(delayMs[i]) {
                    @Override
                    public void run() {
                        expired++;
                        checksum += (number + 1L) * step;
                    }
                });
            }
        }
    }

    private void run(String contender, boolean report) throws Exception {
        completed = 0;
        expired = 0;
        checksum = 0;
        long cpu = PROCESS.getProcessCpuTime();
        long started = System.nanoTime();
        if (contender.equals("wheel")) {
            wheel();
        } else {
            purgatory(Integer.parseInt(contender));
        }
        double seconds = (System.nanoTime() - started) / 1e9;
        if (report) {
            long cpuMs = (PROCESS.getProcessCpuTime() - cpu) / 1_000_000;
            System.out.printf(
                    "%s %.0f %d %d %d %d%n", contender, operations / seconds, completed, expired, checksum, cpuMs);
        }
    }

    public static void main(String[] args) throws Exception {
        WorkloadK workload = new WorkloadK(Integer.parseInt(args[0]), Integer.parseInt(args[1]));
        for (int contender = 3; contender < args.length; contender++) {
            for (int round = 0; round <= Integer.parseInt(args[2]); round++) {
                workload.run(args[contender], round > 0);
            }
        }
    }
}
