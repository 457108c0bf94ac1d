package beside;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
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

    /** An operation that waits, or an event whose operation has not come: {@link #eventRow}. One read a row. */
    private transient ValueState<RowData> held;

    @Override
    public void open(OpenContext context) {
        held = getRuntimeContext().getState(new ValueStateDescriptor<>("held", InternalTypeInfo.of(Inputs.OPERATIONS)));
    }

    @Override
    public void processElement1(RowData operation, Context context, Collector<RowData> out) throws Exception {
        Progress.ROWS.increment();
        RowData before = held.value();
        if (before != null && !isEvent(before)) {
            return; // The first one of its key counts.
        }
        if (before != null) {
            context.timerService().deleteEventTimeTimer(lastMs(before));
            if (completes(operation, timeUs(before))) {
                held.clear();
                end(operation, COMPLETED, timeUs(before), out);
                return;
            }
        }
        held.update(operation);
        context.timerService().registerEventTimeTimer(lastMs(operation));
    }

    @Override
    public void processElement2(RowData event, Context context, Collector<RowData> out) throws Exception {
        Progress.ROWS.increment();
        long timeUs = event.getLong(Inputs.EVENT_TIME);
        RowData before = held.value();
        boolean waits = before != null && !isEvent(before);
        if (waits ? !completes(before, timeUs) : before != null && timeUs(before) <= timeUs) {
            return;
        }
        if (before != null) {
            context.timerService().deleteEventTimeTimer(lastMs(before));
        }
        if (waits) {
            held.clear();
            end(before, COMPLETED, timeUs, out);
            return;
        }
        RowData row = eventRow(timeUs);
        held.update(row);
        context.timerService().registerEventTimeTimer(lastMs(row));
    }

    @Override
    public void onTimer(long timerMs, OnTimerContext context, Collector<RowData> out) throws Exception {
        RowData due = held.value();
        if (due == null || lastMs(due) > timerMs) {
            return;
        }
        held.clear();
        if (!isEvent(due)) {
            end(due, EXPIRED, due.getLong(Inputs.DEADLINE), out);
        }
    }

    /** An event in the columns of an operation: its time in place of {@code created}, and no id. */
    private static RowData eventRow(long timeUs) {
        return GenericRowData.of(null, null, timeUs, null, null);
    }

    private static boolean isEvent(RowData row) {
        return row.isNullAt(Inputs.ID);
    }

    private static long timeUs(RowData event) {
        return event.getLong(Inputs.CREATED);
    }

    /** When it need not be held any longer: an operation's deadline, an event's own time. */
    private static long lastMs(RowData row) {
        return isEvent(row) ? timeUs(row) / 1000 : -Math.floorDiv(-row.getLong(Inputs.DEADLINE), 1000L);
    }

    private static boolean completes(RowData operation, long timeUs) {
        return operation.getLong(Inputs.CREATED) <= timeUs && timeUs <= operation.getLong(Inputs.DEADLINE);
    }

    private static void end(RowData operation, StringData status, long resolvedUs, Collector<RowData> out) {
        long waitMs = (resolvedUs - operation.getLong(Inputs.CREATED)) / 1000;
        out.collect(new JoinedRowData(operation, GenericRowData.of(status, resolvedUs, waitMs)));
    }
}
