package beside;

import java.util.ArrayList;
import java.util.List;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.utils.JoinedRowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.util.Collector;

/**
 * Nexmark's query 9, as a user of Flink who minds its speed writes it: the bid of the highest price while an auction is
 * open; of equal ones the first, then the one of the smallest bidder. A bid reads the small state alone, and writes it if
 * it is the best so far. Auctions and bids come through one channel in the order of their times, so a bid that comes
 * before its auction counts only if both are of one time; it is held until no auction of its time can come.
 */
final class Winning extends KeyedProcessFunction<Long, RowData, RowData> {
    private static final int OPENED = 0;
    private static final int EXPIRES = 1;
    private static final int PRICE = 2;
    private static final int BID_TIME = 3;
    private static final int BIDDER = 4;

    private transient ValueState<RowData> auction;

    /** When the auction is open, and the best bid so far: {@link Auctions#BEST}. */
    private transient ValueState<RowData> best;

    private transient ListState<RowData> early;

    @Override
    public void open(OpenContext context) {
        auction = getRuntimeContext()
                .getState(new ValueStateDescriptor<>("auction", InternalTypeInfo.of(Auctions.EVENTS)));
        best = getRuntimeContext().getState(new ValueStateDescriptor<>("best", InternalTypeInfo.of(Auctions.BEST)));
        early = getRuntimeContext()
                .getListState(new ListStateDescriptor<>("early", InternalTypeInfo.of(Auctions.EVENTS)));
    }

    @Override
    public void processElement(RowData event, Context context, Collector<RowData> out) throws Exception {
        RowData open = best.value();
        if (event.getByte(Auctions.KIND) == Auctions.IS_BID) {
            if (open == null) {
                early.add(event);
                context.timerService().registerEventTimeTimer(event.getLong(Auctions.TIME) / 1000);
            } else if (isBetter(event, open)) {
                best.update(withBid(open, event));
            }
            return;
        }
        if (open != null) {
            return; // The first auction of an id counts.
        }
        RowData row = GenericRowData.of(
                event.getLong(Auctions.TIME), event.getLong(Auctions.EXPIRES), null, null, null, null);
        for (RowData bid : early.get()) {
            row = isBetter(bid, row) ? withBid(row, bid) : row;
        }
        early.clear();
        auction.update(event);
        best.update(row);
        context.timerService().registerEventTimeTimer(event.getLong(Auctions.EXPIRES) / 1000);
    }

    @Override
    public void onTimer(long timerMs, OnTimerContext context, Collector<RowData> out) throws Exception {
        RowData open = best.value();
        if (open == null) {
            forget(timerMs);
        } else if (open.getLong(EXPIRES) / 1000 <= timerMs) {
            if (!open.isNullAt(PRICE)) {
                out.collect(new JoinedRowData(auction.value(), open));
            }
            auction.clear();
            best.clear();
        }
    }

    /** Bids up to a time, whose auction has not come. */
    private void forget(long untilMs) throws Exception {
        List<RowData> left = new ArrayList<>();
        for (RowData bid : early.get()) {
            if (bid.getLong(Auctions.TIME) / 1000 > untilMs) {
                left.add(bid);
            }
        }
        early.update(left);
    }

    private static RowData withBid(RowData open, RowData bid) {
        return GenericRowData.of(open.getLong(OPENED), open.getLong(EXPIRES), bid.getLong(Auctions.PRICE),
                bid.getLong(Auctions.TIME), bid.getLong(Auctions.BIDDER), bid.getString(Auctions.BID_EXTRA));
    }

    private static boolean isBetter(RowData bid, RowData open) {
        long time = bid.getLong(Auctions.TIME);
        if (time < open.getLong(OPENED) || time > open.getLong(EXPIRES)) {
            return false;
        }
        if (open.isNullAt(PRICE)) {
            return true;
        }
        int order = Long.compare(bid.getLong(Auctions.PRICE), open.getLong(PRICE));
        order = order != 0 ? order : Long.compare(open.getLong(BID_TIME), time);
        return order != 0 ? order > 0 : bid.getLong(Auctions.BIDDER) < open.getLong(BIDDER);
    }
}
