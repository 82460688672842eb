import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.common.Attributes;
import io.opentelemetry.api.logs.Logger;
import io.opentelemetry.api.logs.Severity;
import io.opentelemetry.exporter.otlp.http.logs.OtlpHttpLogRecordExporter;
import io.opentelemetry.exporter.otlp.logs.OtlpGrpcLogRecordExporter;
import io.opentelemetry.sdk.logs.SdkLoggerProvider;
import io.opentelemetry.sdk.logs.export.BatchLogRecordProcessor;
import io.opentelemetry.sdk.logs.export.LogRecordExporter;
import io.opentelemetry.sdk.resources.Resource;
import java.time.Instant;
import java.util.concurrent.TimeUnit;

/** Sends logs as an application in Java does: PROTOCOL ENDPOINT TOKEN COMPRESSION COUNT. */
class SendLogs {
  public static void main(String[] given) {
    int count = Integer.parseInt(given[4]);
    Resource resource =
        Resource.create(Attributes.of(AttributeKey.stringKey("service.name"), "in-java"));
    SdkLoggerProvider provider =
        SdkLoggerProvider.builder()
            .setResource(resource)
            .addLogRecordProcessor(
                BatchLogRecordProcessor.builder(exporter(given[0], given[1], given[2], given[3]))
                    .setMaxQueueSize(count)
                    .build())
            .build();
    Logger logger = provider.get("send-logs");
    Instant start = Instant.now();
    for (int number = 0; number < count; number++) {
      logger
          .logRecordBuilder()
          .setTimestamp(start.plusNanos(number))
          .setSeverity(Severity.WARN)
          .setBody("log " + number)
          .setAttribute(AttributeKey.longKey("number"), (long) number)
          .emit();
    }
    boolean sent = provider.shutdown().join(60, TimeUnit.SECONDS).isSuccess();
    System.exit(sent ? 0 : 1);
  }

  private static LogRecordExporter exporter(
      String protocol, String endpoint, String token, String compression) {
    String bearer = "Bearer " + token;
    return protocol.equals("grpc")
        ? OtlpGrpcLogRecordExporter.builder()
            .setEndpoint(endpoint)
            .setCompression(compression)
            .addHeader("authorization", bearer)
            .build()
        : OtlpHttpLogRecordExporter.builder()
            .setEndpoint(endpoint)
            .setCompression(compression)
            .addHeader("Authorization", bearer)
            .build();
  }
}
