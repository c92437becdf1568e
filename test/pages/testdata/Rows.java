import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;

/** Prints type, namespace, name and resourceVersion of each row of a table of changes, with tabs between. */
class Rows {
  public static void main(String[] args) throws Exception {
    Catalog catalog =
        CatalogUtil.buildIcebergCatalog("test", Map.of("type", "hadoop", "warehouse", args[0]), new Configuration());
    Table table = catalog.loadTable(TableIdentifier.parse(args[1]));
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
