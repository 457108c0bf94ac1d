package beside;

import java.math.BigInteger;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.LongAdder;

import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.TinyIntType;
import org.apache.flink.table.types.logical.VarCharType;

/** Nexmark's auctions and bids (benchmarks/nexmark_events.py): what their files hold, and the job of query 9. */
final class Auctions {
    static final int KIND = 0;
    static final int AUCTION = 1;
    static final int TIME = 2;
    static final int EXPIRES = 3;
    static final int BIDDER = 11;
    static final int PRICE = 12;
    static final int BID_EXTRA = 13;
    static final byte IS_BID = 2;
    static final RowType EVENTS = RowType.of(
            new LogicalType[] {
                new TinyIntType(), new BigIntType(), new BigIntType(), new BigIntType(), text(), text(),
                new BigIntType(), new BigIntType(), new BigIntType(), new BigIntType(), text(), new BigIntType(),
                new BigIntType(), text()
            },
            new String[] {
                "kind", "auction", "time", "expires", "item_name", "description", "initial_bid", "reserve", "seller",
                "category", "extra", "bidder", "price", "bid_extra"
            });
    static final RowType BEST = RowType.of(
            new LogicalType[] {
                new BigIntType(), new BigIntType(), new BigIntType(), new BigIntType(), new BigIntType(), text()
            },
            new String[] {"opened", "expires_at", "best_price", "bid_time", "best_bidder", "best_extra"});

    /** Sum of a hash of each winner: that of Spark's xxhash64 over id, bidder, price and time of the bid. */
    static final LongAdder FINGERPRINT_HIGH = new LongAdder();

    static final LongAdder FINGERPRINT_LOW = new LongAdder();

    private static final int BEST_AT = 14;
    private static final long P1 = 0x9E3779B185EBCA87L;
    private static final long P2 = 0xC2B2AE3D27D4EB4FL;
    private static final long P3 = 0x165667B19E3779F9L;
    private static final long P4 = 0x85EBCA77C2B2AE63L;
    private static final long P5 = 0x27D4EB2F165667C5L;
    private static final long SEED = 42;

    private Auctions() {}

    static void plan(StreamExecutionEnvironment env, String folder) {
        Inputs.read(env, folder, "", EVENTS, TIME, false)
                .keyBy(row -> row.getLong(AUCTION))
                .process(new Winning(), InternalTypeInfo.<RowData>of(joined()))
                .sinkTo(new Won());
    }

    static String outcomes() {
        // The halves are added up apart, so that no sum overflows.
        BigInteger high = BigInteger.valueOf(FINGERPRINT_HIGH.sum()).shiftLeft(32);
        return Progress.COMPLETED.sum() + " " + high.add(BigInteger.valueOf(FINGERPRINT_LOW.sum()));
    }

    static void reset() {
        FINGERPRINT_HIGH.reset();
        FINGERPRINT_LOW.reset();
    }

    private static RowType joined() {
        List<RowType.RowField> fields = new ArrayList<>(EVENTS.getFields());
        fields.addAll(BEST.getFields());
        return new RowType(fields);
    }

    private static LogicalType text() {
        return new VarCharType(VarCharType.MAX_LENGTH);
    }

    private static long hash(long value, long seed) {
        long hash = seed + P5 + 8;
        hash ^= Long.rotateLeft(value * P2, 31) * P1;
        hash = Long.rotateLeft(hash, 27) * P1 + P4;
        hash = (hash ^ hash >>> 33) * P2;
        hash = (hash ^ hash >>> 29) * P3;
        return hash ^ hash >>> 32;
    }

    /** Counts winners and drops them. */
    private static final class Won implements Sink<RowData> {
        @Override
        public SinkWriter<RowData> createWriter(WriterInitContext context) {
            int subtask = context.getTaskInfo().getIndexOfThisSubtask();
            return new SinkWriter<>() {
                @Override
                public void write(RowData row, Context rowContext) {
                    long hash = SEED;
                    for (int place : new int[] {AUCTION, BEST_AT + 4, BEST_AT + 2, BEST_AT + 3}) {
                        hash = hash(row.getLong(place), hash);
                    }
                    Progress.COMPLETED.increment();
                    FINGERPRINT_HIGH.add(hash >> 32);
                    FINGERPRINT_LOW.add(hash & 0xFFFFFFFFL);
                }

                @Override
                public void writeWatermark(Watermark watermark) {
                    Progress.passed(subtask, watermark.getTimestamp());
                }

                @Override
                public void flush(boolean endOfInput) {}

                @Override
                public void close() {}
            };
        }
    }
}
