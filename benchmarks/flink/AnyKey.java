package beside;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.functions.co.KeyedCoProcessFunction;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.utils.JoinedRowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.util.Collector;

/**
 * Criterion any_key with one operation a key, as a user of Flink writes it: one event within its time completes an
 * operation, else it expires. An event that comes before its operation waits until no operation of its time can come.
 */
final class AnyKey extends KeyedCoProcessFunction<String, RowData, RowData, RowData> {
    static final StringData COMPLETED = StringData.fromString("COMPLETED");
    static final StringData EXPIRED = StringData.fromString("EXPIRED");

    private transient ValueState<RowData> operation;
    private transient ValueState<Long> eventUs;

    @Override
    public void open(OpenContext context) {
        operation = getRuntimeContext()
                .getState(new ValueStateDescriptor<>("operation", InternalTypeInfo.of(Inputs.OPERATIONS)));
        eventUs = getRuntimeContext().getState(new ValueStateDescriptor<>("event", Types.LONG));
    }

    @Override
    public void processElement1(RowData row, Context context, Collector<RowData> out) throws Exception {
        Progress.ROWS.increment();
        Long early = eventUs.value();
        if (early != null && completes(row, early)) {
            context.timerService().deleteEventTimeTimer(lastMs(early));
            eventUs.clear();
            end(row, COMPLETED, early, out);
            return;
        }
        operation.update(row);
        context.timerService().registerEventTimeTimer(deadlineMs(row));
    }

    @Override
    public void processElement2(RowData row, Context context, Collector<RowData> out) throws Exception {
        Progress.ROWS.increment();
        long timeUs = row.getLong(Inputs.EVENT_TIME);
        RowData waiting = operation.value();
        if (waiting != null && completes(waiting, timeUs)) {
            context.timerService().deleteEventTimeTimer(deadlineMs(waiting));
            operation.clear();
            end(waiting, COMPLETED, timeUs, out);
            return;
        }
        Long held = eventUs.value();
        if (held == null || timeUs < held) {
            if (held != null) {
                context.timerService().deleteEventTimeTimer(lastMs(held));
            }
            eventUs.update(timeUs);
            context.timerService().registerEventTimeTimer(lastMs(timeUs));
        }
    }

    @Override
    public void onTimer(long timerMs, OnTimerContext context, Collector<RowData> out) throws Exception {
        RowData waiting = operation.value();
        if (waiting != null && deadlineMs(waiting) <= timerMs) {
            operation.clear();
            end(waiting, EXPIRED, waiting.getLong(Inputs.DEADLINE), out);
        }
        Long held = eventUs.value();
        if (held != null && lastMs(held) <= timerMs) {
            eventUs.clear();
        }
    }

    private static boolean completes(RowData operation, long timeUs) {
        return operation.getLong(Inputs.CREATED) <= timeUs && timeUs <= operation.getLong(Inputs.DEADLINE);
    }

    private static long deadlineMs(RowData operation) {
        return -Math.floorDiv(-operation.getLong(Inputs.DEADLINE), 1000L);
    }

    private static long lastMs(long eventUs) {
        return eventUs / 1000;
    }

    private static void end(RowData operation, StringData status, long resolvedUs, Collector<RowData> out) {
        long waitMs = (resolvedUs - operation.getLong(Inputs.CREATED)) / 1000;
        out.collect(new JoinedRowData(operation, GenericRowData.of(status, resolvedUs, waitMs)));
    }
}
