package org.apache.iceberg.rest;

import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.catalog.Catalog;
import org.eclipse.jetty.compression.gzip.GzipCompression;
import org.eclipse.jetty.compression.server.CompressionHandler;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/**
 * Iceberg's REST catalog fixture on 127.0.0.1. The published main listens on every interface; what
 * it is made of is private to this package, hence the package of this class.
 */
public class LoopbackCatalog {
  private LoopbackCatalog() {}

  public static void main(String[] args) throws Exception {
    Map<String, String> properties = RCKUtils.environmentCatalogConfig();
    Catalog catalog =
        CatalogUtil.buildIcebergCatalog("demo", properties, new Configuration());
    RESTCatalogAdapter adapter =
        new RESTServerCatalogAdapter(
            new RESTCatalogServer.CatalogContext(catalog, properties));

    ServletContextHandler context = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
    context.addServlet(new ServletHolder(new RESTCatalogServlet(adapter)), "/*");
    CompressionHandler compression = new CompressionHandler();
    compression.putCompression(new GzipCompression());
    context.insertHandler(compression);

    Server server = new Server();
    ServerConnector connector = new ServerConnector(server);
    connector.setHost("127.0.0.1");
    connector.setPort(Integer.parseInt(properties.get("rest.port")));
    server.addConnector(connector);
    server.setHandler(context);
    server.start();
    server.join();
  }
}
