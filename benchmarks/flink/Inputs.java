package beside;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.stream.Stream;

import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.connector.file.src.assigners.FileSplitAssigner;
import org.apache.flink.connector.file.src.enumerate.FileEnumerator;
import org.apache.flink.core.fs.FileStatus;
import org.apache.flink.core.fs.Path;
import org.apache.flink.formats.parquet.ParquetColumnarRowInputFormat;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.DoubleType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.VarCharType;
import org.apache.hadoop.conf.Configuration;

/**
 * The benchmark's two folders of Parquet files, through Flink's vectorised reader, one reader a side. Files are read in
 * order of their names, which is that of their times; inside a file rows are sorted, so watermarks are ascending.
 * Times are read as the microseconds that the files hold.
 */
final class Inputs {
    static final int ID = 0;
    static final int KEY = 1;
    static final int CREATED = 2;
    static final int DEADLINE = 3;
    static final int EVENT_KEY = 0;
    static final int EVENT_TIME = 1;
    static final RowType OPERATIONS = row(
            new LogicalType[] {text(), text(), new BigIntType(), new BigIntType(), new DoubleType()},
            "op_id", "key", "created", "deadline", "amount");
    static final RowType EVENTS = row(new LogicalType[] {text(), new BigIntType()}, "key", "time");
    static final RowType OUTCOMES = row(
            new LogicalType[] {
                text(), text(), new BigIntType(), new BigIntType(), new DoubleType(), text(), new BigIntType(),
                new BigIntType()
            },
            "op_id", "key", "created", "deadline", "amount", "status", "resolved_at", "wait_ms");

    private static final int BATCH_ROWS = 2048;

    /** How often a source that waits for the next micro-batch looks whether it may read it. */
    private static final Duration LOOK = Duration.ofMillis(10);

    private Inputs() {}

    static DataStream<RowData> read(
            StreamExecutionEnvironment env, String folder, String side, RowType type, int time, boolean gated) {
        ParquetColumnarRowInputFormat<FileSourceSplit> format = new ParquetColumnarRowInputFormat<>(
                new Configuration(), type, InternalTypeInfo.of(type), BATCH_ROWS, true, true);
        FileSource.FileSourceBuilder<RowData> source = FileSource.forBulkFileFormat(format, new Path(folder + "/" + side))
                .setFileEnumerator(InOrder::new)
                .setSplitAssigner(FirstFirst::new);
        if (gated) {
            source.monitorContinuously(LOOK);
        }
        WatermarkStrategy<RowData> ascending = WatermarkStrategy.<RowData>forMonotonousTimestamps()
                .withTimestampAssigner((row, before) -> row.getLong(time) / 1000);
        // Behind the source, not in it: a source takes a file's watermark along when it closes the file, before the
        // next periodic watermark, and the last rows of a micro-batch would move the clock only with the next one.
        return env.fromSource(source.build(), WatermarkStrategy.noWatermarks(), "read " + side)
                .setParallelism(1)
                .assignTimestampsAndWatermarks(ascending)
                .setParallelism(1);
    }

    private static RowType row(LogicalType[] types, String... names) {
        return RowType.of(types, names);
    }

    private static LogicalType text() {
        return new VarCharType(VarCharType.MAX_LENGTH);
    }

    /** The files that may be read, sorted by name, one split each. */
    private static final class InOrder implements FileEnumerator {
        private List<FileSourceSplit> all;

        @Override
        public Collection<FileSourceSplit> enumerateSplits(Path[] folders, int fewest) throws IOException {
            if (all == null) {
                FileStatus[] files = folders[0].getFileSystem().listStatus(folders[0]);
                Arrays.sort(files, Comparator.comparing(file -> file.getPath().getName()));
                all = Stream.of(files).map(InOrder::whole).toList();
            }
            return all.subList(0, Math.min(all.size(), Progress.openFiles));
        }

        private static FileSourceSplit whole(FileStatus file) {
            return new FileSourceSplit(file.getPath().getName(), file.getPath(), 0, file.getLen(),
                    file.getModificationTime(), file.getLen());
        }
    }

    /** Splits in the order in which they came; Flink's own assigner takes the last one first. */
    private static final class FirstFirst implements FileSplitAssigner {
        private final ArrayList<FileSourceSplit> waiting;

        FirstFirst(Collection<FileSourceSplit> splits) {
            waiting = new ArrayList<>(splits);
        }

        @Override
        public Optional<FileSourceSplit> getNext(String host) {
            return waiting.isEmpty() ? Optional.empty() : Optional.of(waiting.remove(0));
        }

        @Override
        public void addSplits(Collection<FileSourceSplit> splits) {
            waiting.addAll(splits);
        }

        @Override
        public Collection<FileSourceSplit> remainingSplits() {
            return waiting;
        }
    }
}
