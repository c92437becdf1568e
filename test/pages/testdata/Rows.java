import java.io.FileReader;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;

/**
 * Prints type, namespace, name and resourceVersion of each row of a table of changes, with tabs between. Table and catalog are
 * those of a configuration of the sink for Kafka Connect.
 */
class Rows {
  private static final String CATALOG = "iceberg.catalog.";

  public static void main(String[] args) throws Exception {
    Properties sink = new Properties();
    try (var file = new FileReader(args[0])) {
      sink.load(file);
    }
    Map<String, String> settings = new HashMap<>();
    for (String name : sink.stringPropertyNames()) {
      if (name.startsWith(CATALOG)) {
        settings.put(name.substring(CATALOG.length()), sink.getProperty(name));
      }
    }
    Catalog catalog = CatalogUtil.buildIcebergCatalog("iceberg", settings, new Configuration());
    Table table = catalog.loadTable(TableIdentifier.parse(sink.getProperty("iceberg.tables")));
    try (var rows = IcebergGenerics.read(table).build()) {
      for (Record row : rows) {
        System.out.println(
            String.join(
                "\t",
                text(row.getField("type")),
                text(row.getField("namespace")),
                text(row.getField("name")),
                text(row.getField("resourceVersion"))));
      }
    }
  }

  private static String text(Object value) {
    return value == null ? "" : value.toString();
  }
}
