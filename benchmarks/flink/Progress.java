package beside;

import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.LongAdder;

/** What the job has done so far. The job and the program that starts it are one process, so these are plain statics. */
final class Progress {
    static final int PARALLELISM = 2;

    /** Files a side that the sources may read; more than there are: all. */
    static volatile int openFiles;

    static final LongAdder ROWS = new LongAdder();
    static final LongAdder COMPLETED = new LongAdder();
    static final LongAdder EXPIRED = new LongAdder();

    /** Sums of the operations' numbers. */
    static final LongAdder COMPLETED_NUMBERS = new LongAdder();

    static final LongAdder EXPIRED_NUMBERS = new LongAdder();

    private static final long LONGEST_WAIT_NS = 20L * 60 * 1_000_000_000;
    private static final AtomicLongArray WATERMARKS = new AtomicLongArray(PARALLELISM);
    private static final AtomicLong FAILED = new AtomicLong();

    private Progress() {}

    static void reset(int open) {
        for (LongAdder adder : new LongAdder[] {ROWS, COMPLETED, EXPIRED, COMPLETED_NUMBERS, EXPIRED_NUMBERS}) {
            adder.reset();
        }
        for (int subtask = 0; subtask < PARALLELISM; subtask++) {
            WATERMARKS.set(subtask, Long.MIN_VALUE);
        }
        FAILED.set(0);
        openFiles = open;
    }

    static void passed(int subtask, long watermarkMs) {
        WATERMARKS.set(subtask, watermarkMs);
    }

    static void failed() {
        FAILED.set(1);
    }

    /** Waits until so many rows were processed and every timer up to the watermark has fired. */
    static void await(long rows, long watermarkMs) throws InterruptedException {
        long untilNs = System.nanoTime() + LONGEST_WAIT_NS;
        while (ROWS.sum() < rows || WATERMARKS.get(0) < watermarkMs || WATERMARKS.get(1) < watermarkMs) {
            if (FAILED.get() != 0 || System.nanoTime() > untilNs) {
                throw new IllegalStateException((FAILED.get() != 0 ? "the job failed: " : "no end within 20 minutes: ")
                        + ROWS.sum() + " of " + rows + " rows were processed, watermarks " + WATERMARKS
                        + ", awaited " + watermarkMs);
            }
            Thread.sleep(1);
        }
    }

    static String outcomes() {
        return COMPLETED.sum() + " " + EXPIRED.sum() + " " + COMPLETED_NUMBERS.sum() + " " + EXPIRED_NUMBERS.sum();
    }
}
