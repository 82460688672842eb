package moraine;

import org.apache.hadoop.fs.RawLocalFileSystem;

/**
 * Local files as they are, without the hidden checksum file that Hadoop otherwise puts beside each.
 * RawLocalFileSystem does not tell its scheme, which Iceberg asks for.
 */
public class PlainLocalFileSystem extends RawLocalFileSystem {
  @Override
  public String getScheme() {
    return "file";
  }
}
