package moraine.bench;

import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import java.util.function.Consumer;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.ManifestWriter;
import org.apache.iceberg.Metrics;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Table;
import org.apache.iceberg.types.Conversions;
import org.apache.iceberg.types.Types;

/** Tables with many files in a few seconds: entries without the rows that they speak of. */
public final class BenchTables {
  private static final int FOLDERS = 100;
  private static final long FILE_SIZE = 734_003L;

  private BenchTables() {}

  /**
   * Append so many files to a table that is partitioned by the text column `day`, and write their
   * paths to a list. Where `touch` is set they are made, empty, on the local disk.
   */
  public static void fill(
      Table table, int files, int perManifest, int snapshots, boolean touch, String list)
      throws IOException {
    Metrics metrics = metrics(table.schema());
    int manifests = (files + perManifest - 1) / perManifest;
    int perSnapshot = (manifests + snapshots - 1) / snapshots;
    try (BufferedWriter paths = Files.newBufferedWriter(Path.of(list))) {
      for (int first = 0; first < manifests; first += perSnapshot) {
        AppendFiles append = table.newFastAppend();
        for (int m = first; m < Math.min(first + perSnapshot, manifests); m++) {
          String name = UUID.randomUUID() + "-m" + m + ".avro";
          String place = table.location() + "/metadata/" + name;
          ManifestWriter<DataFile> writer =
              ManifestFiles.write(2, table.spec(), table.io().newOutputFile(place), null);
          try (writer) {
            int last = Math.min((m + 1) * perManifest, files);
            for (int number = m * perManifest; number < last; number++) {
              DataFile file = file(table, number, metrics);
              writer.add(file);
              paths.write(file.location());
              paths.write('\n');
              if (touch) {
                touch(file.location());
              }
            }
          }
          append.appendManifest(writer.toManifestFile());
        }
        append.commit();
      }
    }
  }

  public static Consumer<String> deletingNothing() {
    return path -> {};
  }

  private static DataFile file(Table table, int number, Metrics metrics) {
    int folder = number / 7 % FOLDERS;
    String day = String.format("day=2026-%02d-%02d", folder / 28 + 1, folder % 28 + 1);
    String name = String.format("%05d-%d-%s-00001.parquet", number, number, UUID.randomUUID());
    return DataFiles.builder(table.spec())
        .withPath(table.location() + "/data/" + day + "/" + name)
        .withFormat(FileFormat.PARQUET)
        .withPartitionPath(day)
        .withFileSizeInBytes(FILE_SIZE)
        .withMetrics(metrics)
        .build();
  }

  private static void touch(String location) throws IOException {
    Path path = Path.of(location.replaceFirst("^file:/+", "/"));
    try {
      Files.createFile(path);
    } catch (java.nio.file.NoSuchFileException noFolder) {
      Files.createDirectories(path.getParent());
      Files.createFile(path);
    }
  }

  /** What a writer says of every column: a good part of a real manifest is made of it. */
  private static Metrics metrics(Schema schema) {
    Map<Integer, Long> counts = new HashMap<>();
    Map<Integer, Long> nulls = new HashMap<>();
    Map<Integer, Long> sizes = new HashMap<>();
    Map<Integer, ByteBuffer> lower = new HashMap<>();
    Map<Integer, ByteBuffer> upper = new HashMap<>();
    for (Types.NestedField column : schema.columns()) {
      int id = column.fieldId();
      boolean text = column.type() instanceof Types.StringType;
      counts.put(id, 10_000L);
      nulls.put(id, 12L);
      sizes.put(id, 90_000L);
      Object smallest = text ? "aardvark 0001" : (Object) 1L;
      Object largest = text ? "zebra 9999" : (Object) 9_999_999L;
      lower.put(id, Conversions.toByteBuffer(column.type(), smallest));
      upper.put(id, Conversions.toByteBuffer(column.type(), largest));
    }
    return new Metrics(10_000L, sizes, counts, nulls, new HashMap<>(), lower, upper);
  }
}
