package beside;

import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.table.data.RowData;

/** Counts outcomes and drops them, as Spark's noop sink behind an observation. */
final class Counted implements Sink<RowData> {
    private static final int STATUS = 5;

    @Override
    public SinkWriter<RowData> createWriter(WriterInitContext context) {
        int subtask = context.getTaskInfo().getIndexOfThisSubtask();
        return new SinkWriter<>() {
            @Override
            public void write(RowData row, Context rowContext) {
                boolean completed = AnyKey.COMPLETED.equals(row.getString(STATUS));
                (completed ? Progress.COMPLETED : Progress.EXPIRED).increment();
                (completed ? Progress.COMPLETED_NUMBERS : Progress.EXPIRED_NUMBERS).add(number(row.getString(0).toBytes()));
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

    /** 17 of "order-17". */
    private static long number(byte[] id) {
        long number = 0;
        for (byte character : id) {
            if (character >= '0' && character <= '9') {
                number = 10 * number + character - '0';
            }
        }
        return number;
    }
}
